//! The chores of this repository: `cargo xtask test`, `verify`, `fix`, `bench`, `servers`, `mutants`.
//!
//! One file per command. [`step`] runs commands and shows how they go, [`metadata`] reads what Cargo knows about the
//! workspace. Progress goes to standard error, so that standard output has nothing but what a
//! benchmark measured, or how to find the servers.
#![allow(clippy::print_stderr, reason = "a command-line program talks to its user")]

mod artifact;
mod bench;
mod book;
mod deny;
mod features;
mod fix;
mod metadata;
mod msrv;
mod mutants;
mod parallel;
mod program;
mod rules;
mod servers;
mod step;
mod test;
mod verify;
mod version;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::step::Outcome;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The chores of this repository")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every test, doctest and example program, with the servers that they need
    Test(test::Selection),
    /// Check everything, changing no source file: format, lints, docs, features, Rust version, rules, tests
    Verify {
        /// Leave the tests out
        #[arg(long)]
        no_tests: bool,
    },
    /// Mend what can be mended by machine: lints, then format
    Fix,
    /// Run the servers that tests need until Ctrl-C or the end of standard input, and print how to find them
    Servers,
    /// Put small faults into the code of a package, and list those that no test notices
    Mutants(mutants::Selection),
    /// Measure a backend or the worker
    Bench {
        /// Which one
        backend: bench::Backend,
        /// Print the measurements as JSON
        #[arg(long)]
        json: bool,
        /// What else to tell the benchmark: see docs/benchmarks.md
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        more: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\n{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Outcome {
    match command {
        Command::Test(selection) => test::run(selection),
        Command::Verify { no_tests } => verify::run(*no_tests),
        Command::Fix => fix::run(),
        Command::Servers => servers::run(),
        Command::Mutants(selection) => mutants::run(selection),
        Command::Bench { backend, json, more } => bench::run(*backend, *json, more),
    }
}
