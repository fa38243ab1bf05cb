//! Runs programs several at a time, the longest first, and says how each went.

use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::step::{self, Failure, Outcome};

/// How many of the slowest are named at the end.
const SLOWEST: usize = 10;

/// A program that is to be run.
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) command: Command,
    /// The larger, the sooner it is started.
    pub(crate) weight: u32,
}

/// How a program went.
struct Ended {
    name: String,
    took: Duration,
    passed: u64,
    failed: u64,
    ignored: u64,
    is_good: bool,
}

/// Runs all of them, `at_once` at a time. One that fails stops no other.
pub(crate) fn run(mut jobs: Vec<Job>, at_once: usize) -> Outcome {
    jobs.sort_by_key(|job| job.weight);
    let count = jobs.len();
    let (jobs, ended) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    let start = Instant::now();
    let next = || jobs.lock().unwrap_or_else(|poison| poison.into_inner()).pop();
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(job) = next() {
                    let one = one(job);
                    let mut ended = ended.lock().unwrap_or_else(|poison| poison.into_inner());
                    ended.push(one);
                    eprintln!("  {} of {count} done after {}", ended.len(), step::elapsed(start.elapsed()));
                }
            });
        }
    });
    conclude(ended.into_inner().unwrap_or_else(|poison| poison.into_inner()), start.elapsed())
}

/// Runs one, and prints what it said when it has ended, so that outputs do not mix.
fn one(mut job: Job) -> Ended {
    let line = step::spell(&job.command);
    eprintln!("▶ {} …", job.name);
    let start = Instant::now();
    let output = job.command.stdin(Stdio::null()).output();
    let took = start.elapsed();
    let (status, text) = match output {
        Ok(output) => {
            let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            (Some(output.status), text.concat())
        }
        Err(error) => (None, format!("{line} could not be started: {error}\n")),
    };
    let is_good = status.as_ref().is_some_and(ExitStatus::success);
    let [passed, failed, ignored] = totals(&text);
    show(&job.name, &line, took, is_good, &text);
    Ended { name: job.name, took, passed, failed, ignored, is_good }
}

/// Of a program that went well only how many tests it had; of one that did not, everything but its tests that did.
fn show(name: &str, line: &str, took: Duration, is_good: bool, text: &str) {
    let took = step::elapsed(took);
    let results: Vec<&str> = text.lines().filter(|line| line.starts_with("test result:")).collect();
    let seeds: Vec<&str> = text.lines().filter(|line| line.starts_with("seed")).collect();
    if is_good {
        eprintln!("✔ {name} {took}");
        seeds.iter().chain(&results).for_each(|line| eprintln!("  {line}"));
    } else {
        eprintln!("✘ {name} {took}\n  {line}");
        text.lines().filter(|line| !is_fine(line)).for_each(|line| eprintln!("{line}"));
        eprintln!("✘ {name} failed, see above");
    }
}

/// Whether the line says nothing but that one test went well or does not apply.
fn is_fine(line: &str) -> bool {
    line.starts_with("test ") && (line.ends_with("... ok") || line.contains("... ignored"))
}

/// How many tests passed, failed and were ignored, by the lines with which test programs end.
fn totals(text: &str) -> [u64; 3] {
    let mut totals = [0; 3];
    for line in text.lines().filter(|line| line.starts_with("test result:")) {
        for part in line.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(number), Some(what)) = (words.next(), words.next()) else { continue };
            let place = ["passed", "failed", "ignored"].iter().position(|name| *name == what);
            if let (Some(place), Ok(number)) = (place, number.parse::<u64>()) {
                totals[place] += number;
            }
        }
    }
    totals
}

fn conclude(mut ended: Vec<Ended>, took: Duration) -> Outcome {
    ended.sort_by_key(|one| std::cmp::Reverse(one.took));
    eprintln!("the slowest of {} programs, {} in all:", ended.len(), step::elapsed(took));
    for one in ended.iter().take(SLOWEST) {
        eprintln!("  {:>7} {}", step::elapsed(one.took), one.name);
    }
    let sum = |count: fn(&Ended) -> u64| ended.iter().map(count).sum::<u64>();
    let bad: Vec<&str> = ended.iter().filter(|one| !one.is_good).map(|one| one.name.as_str()).collect();
    let failed = sum(|one| one.failed);
    eprintln!("{} passed, {failed} failed, {} skipped", sum(|one| one.passed), sum(|one| one.ignored));
    if bad.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        format!("{} of {} programs: {}", bad.len(), ended.len(), bad.join(", ")),
        "what failed is printed above; run it alone with `cargo xtask test -p <package> -- <name>`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_by_the_last_lines_of_programs() {
        let text = "running 3 tests\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 5 filtered out; finished in 0.10s\n\
            test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured\n";
        assert_eq!(totals(text), [5, 4, 1]);
        assert_eq!(totals("an example says: 3 passed"), [0, 0, 0]);
    }

    #[test]
    fn one_that_fails_is_named_and_stops_no_other() {
        let job = |name: &str, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Job { name: name.to_owned(), command, weight: 1 }
        };
        let file = std::env::temp_dir().join(format!("leasehold-parallel-{}", std::process::id()));
        let touch = format!("touch {}", file.display());
        let failure = run(vec![job("good", &touch), job("bad", "exit 3")], 1).unwrap_err().to_string();
        assert!(failure.contains("1 of 2 programs: bad"), "{failure}");
        assert!(std::fs::remove_file(&file).is_ok(), "the other one was run");
        assert!(run(vec![job("good", "true")], 3).is_ok());
    }

    #[test]
    fn what_cannot_be_started_is_a_failure() {
        let job = Job { name: "gone".to_owned(), command: Command::new("/no/such/program"), weight: 1 };
        assert!(run(vec![job], 1).is_err());
    }
}
