//! `cargo xtask test`: every test, doctest and example program, with the servers that they need.

use clap::Args;

use crate::metadata::Metadata;
use crate::servers::Running;
use crate::step::{self, Outcome};
use crate::workspace::cargo;

/// The packages whose example programs are run; those of other packages are only compiled.
const EXAMPLES: [&str; 2] = ["leasehold-examples", "leasehold-example-redb"];

/// What to test; everything unless something is named.
#[derive(Debug, Default, Args)]
pub(crate) struct Selection {
    /// Test this package alone
    #[arg(short, long)]
    package: Option<String>,
    /// What the test programs are given: names of tests, or their options
    #[arg(last = true)]
    args: Vec<String>,
}

impl Selection {
    fn is_everything(&self) -> bool {
        self.package.is_none() && self.args.is_empty()
    }

    /// The arguments of Cargo.
    fn words(&self) -> Vec<&str> {
        let mut words = vec!["test", "--all-features", "--no-fail-fast"];
        match &self.package {
            Some(package) => words.extend(["--package", package]),
            None => words.push("--workspace"),
        }
        if !self.args.is_empty() {
            words.push("--");
            words.extend(self.args.iter().map(String::as_str));
        }
        words
    }
}

pub(crate) fn run(selection: &Selection) -> Outcome {
    let servers = Running::start()?;
    tests(selection, &servers)?;
    drop(servers);
    if selection.is_everything() { examples() } else { Ok(()) }
}

fn tests(selection: &Selection, servers: &Running) -> Outcome {
    step::run(
        "tests",
        servers.export(&mut cargo(selection.words())),
        "the failing tests are named above; run one alone with `cargo xtask test -p <package> -- <name>`",
    )
}

fn examples() -> Outcome {
    let metadata = Metadata::read()?;
    let packages = metadata.members().filter(|package| EXAMPLES.contains(&package.name.as_str()));
    packages
        .flat_map(|package| package.examples().map(move |name| (package, name)))
        .try_for_each(|(package, name)| example(&package.name, name))
}

fn example(package: &str, name: &str) -> Outcome {
    step::run(
        &format!("example {name}"),
        &mut cargo(["run", "--quiet", "--package", package, "--example", name]),
        &format!("run `cargo run --example {name}` and read what it printed last"),
    )
}

#[cfg(test)]
mod tests {
    use super::Selection;

    #[test]
    fn everything_is_tested_unless_something_is_named() {
        let everything = Selection::default();
        assert!(everything.is_everything());
        assert_eq!(everything.words().join(" "), "test --all-features --no-fail-fast --workspace");

        let one = Selection { package: Some("xtask".into()), args: vec!["name".into(), "--exact".into()] };
        assert!(!one.is_everything());
        let line = "test --all-features --no-fail-fast --package xtask -- name --exact";
        assert_eq!(one.words().join(" "), line);
    }
}
