//! Faults in Rust code, by `cargo mutants`: each is a build and a run of the package's tests.

use std::process::Command;

use serde::Deserialize;

use super::{Selection, draw};
use crate::step::{self, Failure, Outcome};
use crate::workspace::{cargo, root};

/// One of the mutants that `cargo mutants --list --json` names.
#[derive(Debug, Deserialize)]
struct Mutant {
    name: String,
}

pub(super) fn run(selection: &Selection) -> Outcome {
    install()?;
    let mutants = list(&selection.what)?;
    let chosen = draw(mutants, selection.sample, selection.seed);
    eprintln!("  {} mutants of {}, seed {}", chosen.len(), selection.what, selection.seed);
    let mut command = cargo(["mutants", "--package", &selection.what, "--all-features", "--no-shuffle"]);
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

    #[test]
    fn names_are_matched_letter_by_letter() {
        let name = "src/a.rs:1:2: replace f -> Vec<(u8, T)> with vec![] in x::y".to_owned();
        let pattern = pattern(&[Mutant { name }, Mutant { name: "m1".to_owned() }]);
        assert_eq!(pattern, r"^(?:src/a\.rs:1:2: replace f \-> Vec<\(u8, T\)> with vec!\[\] in x::y|m1)$");
    }
}
