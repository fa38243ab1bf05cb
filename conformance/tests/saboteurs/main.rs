//! The suite's own test: stores that are each wrong in one way, and must be caught by the check that owns the clause.
//!
//! The store that is right ([`naive`]) passes the whole suite, and several times in a row: fifty times with `LEASEHOLD_TEST_LONG` set. With one [`Fault`](fault::Fault)
//! put into it, it fails the check that [`table`] names, with the clause that [`table`] names.

mod fault;
mod harness;
mod naive;
mod overridden;
mod table;

use std::sync::Arc;
use std::time::Duration;

use leasehold_conformance::{Failure, Outcome};
use leasehold_core::contract::Clause;
use libtest_mimic::{Arguments, Failed, Trial};

use fault::Fault;
use harness::Saboteur;

/// How many sequences the model-based check tries on a store of this target.
const MODEL_CASES: u32 = 8;

/// How long each race goes on.
const RACE_BUDGET: Duration = Duration::from_millis(400);

fn main() {
    let mut trials = vec![
        Trial::test("every_fault_has_one_case", every_fault_has_one_case),
        Trial::test("the_correct_store_passes", || passes(1, 64, RACE_BUDGET, false)),
        Trial::test("the_correct_store_with_row_locks_passes", || passes(1, 64, RACE_BUDGET, true)),
        // Many short races find as much as several long ones.
        Trial::test("the_correct_store_passes_many_runs_in_a_row", || {
            passes(runs_in_a_row(), MODEL_CASES, RACE_BUDGET / 20, false)
        }),
    ];
    let cases = table::CASES.iter();
    trials.extend(
        cases.map(|(fault, clause, check)| Trial::test(fault.case(), || is_caught(*fault, *clause, check))),
    );
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn runs_in_a_row() -> u32 {
    if std::env::var_os("LEASEHOLD_TEST_LONG").is_some() { 50 } else { 5 }
}

fn every_fault_has_one_case() -> Result<(), Failed> {
    let count = |fault: &Fault| table::CASES.iter().filter(|(other, ..)| other == fault).count();
    match Fault::ALL.iter().find(|fault| count(fault) != 1) {
        Some(fault) => Err(format!("{fault:?} has {} cases", count(fault)).into()),
        None => Ok(()),
    }
}

fn passes(runs: u32, model_cases: u32, race_budget: Duration, row_locks: bool) -> Result<(), Failed> {
    for run in 1..=runs {
        let report =
            leasehold_conformance::run(&Saboteur { fault: None, model_cases, race_budget, row_locks });
        if !report.passed() {
            return Err(format!("run {run} of {runs}: {}", report.table()).into());
        }
    }
    Ok(())
}

fn is_caught(fault: Fault, clause: Clause, check: &str) -> Result<(), Failed> {
    let saboteur =
        Saboteur { fault: Some(fault), model_cases: MODEL_CASES, race_budget: RACE_BUDGET, row_locks: false };
    let failures = if check.is_empty() { by_any(saboteur) } else { by_check(saboteur, check)? };
    if failures.iter().any(|failure| failure.clause == Some(clause.id)) {
        return Ok(());
    }
    let seen: Vec<String> = failures.iter().map(ToString::to_string).collect();
    let seen = if seen.is_empty() { "nothing failed".to_owned() } else { seen.join("\n") };
    Err(format!("{fault:?} should be caught as {clause}\nby {check:?}, but:\n{seen}").into())
}

/// What the check that owns the clause says.
fn by_check(saboteur: Saboteur, name: &str) -> Result<Vec<Failure>, Failed> {
    let checks = leasehold_conformance::checks();
    let check = checks.iter().find(|check| check.name == name).ok_or(format!("there is no check {name}"))?;
    match check.run(Arc::new(saboteur)) {
        Outcome::Failed(failure) => Ok(vec![failure]),
        Outcome::Passed => Ok(Vec::new()),
        Outcome::NotApplicable { reason } => Err(format!("{name} does not apply: {reason}").into()),
    }
}

/// What the whole suite says.
fn by_any(saboteur: Saboteur) -> Vec<Failure> {
    leasehold_conformance::run(&saboteur).failures().cloned().collect()
}
