//! How the results are printed.

use crate::{Measured, Rates};

/// Medians over the rounds, and the ratio of the medians: larger is better.
pub fn print(rounds: &[(impl Measured + Copy, Vec<Rates>)], json: bool) {
    if !json {
        println!("{:<16} {:>10} {:>10} {:>7} {:>5}  unit", "", "ours", "limit", "ratio", "bar");
    }
    for (measure, rates) in rounds {
        let (ours, limit) = (median(rates, |rates| rates.ours), median(rates, |rates| rates.limit));
        let (name, ratio, unit) = (measure.name(), ours / limit, measure.unit());
        if json {
            println!(
                r#"{{"name":"{name}","ours":{ours:.0},"limit":{limit:.0},"ratio":{ratio:.3},"unit":"{unit}"}}"#
            );
        } else {
            println!("{name:<16} {ours:>10.0} {limit:>10.0} {ratio:>7.2} {:>5.1}  {unit}", measure.bar());
        }
    }
}

fn median(rates: &[Rates], rate: fn(&Rates) -> f64) -> f64 {
    let mut rates: Vec<f64> = rates.iter().map(rate).collect();
    rates.sort_by(f64::total_cmp);
    let middle = rates.len() / 2;
    if rates.len().is_multiple_of(2) { (rates[middle - 1] + rates[middle]) / 2.0 } else { rates[middle] }
}
