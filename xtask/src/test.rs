//! `cargo xtask test`: every test, doctest and example program, with the servers that they need.
//!
//! Everything is built once. Then the programs run, several at a time, since most of them wait for servers more than they
//! compute; those that take longest come first.

use std::process::Command;
use std::thread;

use clap::Args;

use crate::artifact::{self, Program};
use crate::metadata::Metadata;
use crate::parallel::{self, Job};
use crate::program::{self, needs_servers};
use crate::servers::Running;
use crate::step::{Failure, Outcome};
use crate::workspace::cargo;

/// How many programs run at once.
const AT_ONCE: usize = 3;

/// What to test; everything unless something is named.
#[derive(Debug, Default, Args)]
pub(crate) struct Selection {
    /// Test this package alone
    #[arg(short, long)]
    package: Option<String>,
    /// Only what needs no database server
    #[arg(long)]
    no_servers: bool,
    /// Every seed, every repetition, and the whole suite on every version of a server: hours
    #[arg(long)]
    long: bool,
    /// What the test programs are given: names of tests, or their options
    #[arg(last = true)]
    args: Vec<String>,
}

impl Selection {
    fn is_everything(&self) -> bool {
        self.package.is_none() && self.args.is_empty()
    }

    /// What Cargo is told to select. Packages that need servers are not even built without them.
    fn packages(&self, metadata: &Metadata) -> Vec<String> {
        let mut words = vec!["--all-features".to_owned(), "--locked".to_owned()];
        match &self.package {
            Some(package) => words.extend(["--package".to_owned(), package.clone()]),
            None => words.push("--workspace".to_owned()),
        }
        if self.no_servers && self.package.is_none() {
            let closed = metadata.members().filter(|package| program::is_server_package(&package.name));
            words.extend(closed.flat_map(|package| ["--exclude".to_owned(), package.name.clone()]));
        }
        words
    }
}

pub(crate) fn run(selection: &Selection) -> Outcome {
    let metadata = Metadata::read()?;
    let packages = selection.packages(&metadata);
    let (servers, programs) = thread::scope(|scope| {
        // Servers are fetched and started while the compiler works.
        let servers = (!selection.no_servers).then(|| scope.spawn(Running::start));
        let programs = build(&packages);
        let servers = servers.map(|starting| starting.join().unwrap_or_else(|_| Err(crashed()))).transpose();
        (servers, programs)
    });
    let (servers, programs) = (servers?.unwrap_or_default(), programs?);
    let jobs = jobs(selection, &programs, &packages, &servers);
    parallel::run(jobs, AT_ONCE)
}

fn build(packages: &[String]) -> Outcome<Vec<Program>> {
    let words = ["test", "--no-run"].into_iter().chain(packages.iter().map(String::as_str));
    artifact::build("build", &mut cargo(words))
}

fn crashed() -> Failure {
    Failure::new("the servers could not be started", "see what is printed above")
}

/// Everything that is to be run.
fn jobs(selection: &Selection, programs: &[Program], packages: &[String], servers: &Running) -> Vec<Job> {
    let examples = selection.is_everything();
    let wanted = programs
        .iter()
        .filter(|program| program.is_run(examples) && !(selection.no_servers && needs_servers(program)));
    let mut jobs: Vec<Job> =
        wanted.map(|program| program::job(program, &selection.args, selection.no_servers)).collect();
    if selection.args.is_empty() {
        jobs.push(doctests(packages));
    }
    for job in &mut jobs {
        servers.export(&mut job.command);
        if selection.long {
            job.command.env("LEASEHOLD_TEST_LONG", "1");
        }
    }
    jobs
}

/// The code blocks of docs, which Cargo must build and run itself.
fn doctests(packages: &[String]) -> Job {
    let words = ["test", "--doc", "--no-fail-fast"].into_iter().chain(packages.iter().map(String::as_str));
    let command: Command = cargo(words);
    Job { name: "doctests".to_owned(), command, weight: 100 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::tests::sample;

    #[test]
    fn everything_is_tested_unless_something_is_named() {
        let everything = Selection::default();
        assert!(everything.is_everything());
        assert_eq!(everything.packages(&sample()).join(" "), "--all-features --locked --workspace");

        let one =
            Selection { package: Some("xtask".into()), args: vec!["name".into()], ..Selection::default() };
        assert!(!one.is_everything());
        assert_eq!(one.packages(&sample()).join(" "), "--all-features --locked --package xtask");
    }
}
