//! How the results are printed.

use crate::measure::{Measure, Reading};

/// Medians over the rounds, and the ratio of the medians: larger is better. A measure with several numbers has a line for
/// each, and one with its own name for the worst of them.
pub(crate) fn print(rounds: &[(Measure, Vec<Vec<Reading>>)], json: bool) {
    if !json {
        println!("{:<16} {:>10} {:>10} {:>7} {:>5}  unit", "", "ours", "limit", "ratio", "bar");
    }
    for (measure, rounds) in rounds {
        let mut lines = medians(rounds);
        let ratio = |line: &Reading| measure.ratio(line.ours, line.limit);
        let worst = lines.iter().min_by(|a, b| ratio(a).total_cmp(&ratio(b))).copied();
        if let Some(worst) = worst.filter(|_| lines.len() > 1) {
            lines.push(Reading { name: measure.name(), ..worst });
        }
        for line in &lines {
            let (Reading { name, unit, ours, limit }, ratio) = (line, ratio(line));
            if json {
                println!(
                    r#"{{"name":"{name}","ours":{ours:.3},"limit":{limit:.3},"ratio":{ratio:.3},"unit":"{unit}"}}"#
                );
            } else {
                println!("{name:<16} {ours:>10.2} {limit:>10.2} {ratio:>7.2} {:>5.2}  {unit}", measure.bar());
            }
        }
    }
}

/// The median of each number. Every round has the same ones, in the same order.
fn medians(rounds: &[Vec<Reading>]) -> Vec<Reading> {
    let names = rounds.first().map_or(0, Vec::len);
    let column = |place: usize| rounds.iter().map(|round| round[place]).collect::<Vec<_>>();
    (0..names).map(column).map(|column| middle(&column)).collect()
}

fn middle(column: &[Reading]) -> Reading {
    let median = |number: fn(&Reading) -> f64| quantile(column.iter().map(number).collect(), 0.5);
    Reading { ours: median(|reading| reading.ours), limit: median(|reading| reading.limit), ..column[0] }
}

/// The number below which such a part of all lies.
pub(crate) fn quantile(mut numbers: Vec<f64>, part: f64) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let place = part * (numbers.len() - 1) as f64;
    let (low, high) = (numbers[place.floor() as usize], numbers[place.ceil() as usize]);
    low + (high - low) * place.fract()
}
