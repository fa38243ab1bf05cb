//! `cargo xtask mutants`: small faults that a program puts into the code. One that no test notices shows where a test is missing.
//!
//! Not part of `verify`: each mutant is a build and a run of tests. A sample is drawn by a seed, so that it can be drawn again.

use std::process::Command;

use clap::Args;
use serde::Deserialize;

use crate::step::{self, Failure, Outcome};
use crate::workspace::{cargo, root};

/// What to change, and how much of it.
#[derive(Debug, Args)]
pub(crate) struct Selection {
    /// The package whose code is changed, such as leasehold-worker
    package: String,
    /// How many mutants are drawn. Default: all of them
    #[arg(long)]
    sample: Option<usize>,
    /// What the sample is drawn by. Default: 1
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What `cargo test` is given after `--`, such as `--skip ui`
    #[arg(last = true)]
    args: Vec<String>,
}

/// One of the mutants that `cargo mutants --list --json` names.
#[derive(Debug, Deserialize)]
struct Mutant {
    name: String,
}

pub(crate) fn run(selection: &Selection) -> Outcome {
    install()?;
    let mutants = list(&selection.package)?;
    let chosen = draw(mutants, selection.sample, selection.seed);
    eprintln!("  {} mutants of {}, seed {}", chosen.len(), selection.package, selection.seed);
    let mut command = cargo(["mutants", "--package", &selection.package, "--all-features", "--no-shuffle"]);
    command.args(["--output", "target/mutants", "--baseline", "skip", "--timeout", "300"]);
    command.args(["--build-timeout", "600", "--re", &pattern(&chosen)]);
    command.args(["--", "--lib", "--tests", "--"]).args(&selection.args);
    step::run(
        "mutants",
        &mut command,
        "each line of target/mutants/mutants.out/missed.txt is a fault that no test notices: write that test, or say why \
         nobody could notice",
    )
}

/// Sees that `cargo mutants` is there.
fn install() -> Outcome {
    let is_there = cargo(["mutants", "--version"]).output().is_ok_and(|output| output.status.success());
    if is_there {
        return Ok(());
    }
    let mut command = cargo(["install", "--locked", "cargo-mutants"]);
    step::run("install cargo-mutants", &mut command, "install it by hand, then run this again")
}

fn list(package: &str) -> Outcome<Vec<Mutant>> {
    let mut command: Command = cargo(["mutants", "--list", "--json", "--package", package]);
    let json = step::output(command.current_dir(root()), "see what it says of the package")?;
    serde_json::from_str(&json).map_err(|error| {
        Failure::new(format!("the list of mutants was not understood: {error}"), "see xtask/src/mutants.rs")
    })
}

/// Takes `sample` of them, the same for the same seed.
fn draw(mut mutants: Vec<Mutant>, sample: Option<usize>, seed: u64) -> Vec<Mutant> {
    let wanted = sample.unwrap_or(mutants.len()).min(mutants.len());
    let mut state = seed;
    for place in 0..wanted {
        let left = (mutants.len() - place) as u64;
        mutants.swap(place, place + (next(&mut state) % left) as usize);
    }
    mutants.truncate(wanted);
    mutants
}

/// SplitMix64: all that a sample needs of chance.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// An expression that matches the names of these, and nothing else.
fn pattern(mutants: &[Mutant]) -> String {
    let names: Vec<String> = mutants.iter().map(|mutant| escape(&mutant.name)).collect();
    format!("^(?:{})$", names.join("|"))
}

fn escape(name: &str) -> String {
    name.chars().fold(String::new(), |mut text, letter| {
        // Only these: `\<` and `\>` would be the bounds of a word.
        if r"\.+*?()|[]{}^$#&-~".contains(letter) {
            text.push('\\');
        }
        text.push(letter);
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutants() -> Vec<Mutant> {
        (0..50).map(|number| Mutant { name: format!("m{number}") }).collect()
    }

    fn names(mutants: &[Mutant]) -> Vec<&str> {
        mutants.iter().map(|mutant| mutant.name.as_str()).collect()
    }

    #[test]
    fn the_same_seed_draws_the_same_sample() {
        let one = draw(mutants(), Some(10), 7);
        assert_eq!(names(&one), names(&draw(mutants(), Some(10), 7)));
        assert_ne!(names(&one), names(&draw(mutants(), Some(10), 8)));
        let mut distinct = names(&one);
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 10);
        assert_eq!(draw(mutants(), None, 1).len(), 50);
    }

    #[test]
    fn names_are_matched_letter_by_letter() {
        let name = "src/a.rs:1:2: replace f -> Vec<(u8, T)> with vec![] in x::y".to_owned();
        let pattern = pattern(&[Mutant { name }, Mutant { name: "m1".to_owned() }]);
        assert_eq!(pattern, r"^(?:src/a\.rs:1:2: replace f \-> Vec<\(u8, T\)> with vec!\[\] in x::y|m1)$");
    }
}
