//! The suite as a function: what it reports, and what becomes of checks that do not apply.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_conformance::{BoxError, Harness, Outcome, Plain, run, run_checks};
use leasehold_core::{Capabilities, Store};
use leasehold_memory::{ManualClock, MemoryStore};

/// The memory store, promising no more than it is told to.
#[derive(Clone)]
struct Modest(Capabilities);

#[async_trait]
impl Harness for Modest {
    type Database = (MemoryStore, ManualClock);

    fn name(&self) -> &str {
        "modest"
    }

    async fn create(&self) -> Result<Self::Database, BoxError> {
        let clock = ManualClock::new("2001-09-09T01:46:40.123456789Z".parse()?);
        Ok((MemoryStore::with_clock(clock.clone()), clock))
    }

    async fn connect(&self, (store, _): &Self::Database) -> Result<Arc<dyn Store>, BoxError> {
        Ok(Arc::new(Plain::promising(Arc::new(store.clone()), self.0)))
    }

    async fn age(&self, (_, clock): &Self::Database, by: Duration) -> Result<(), BoxError> {
        clock.advance(by);
        Ok(())
    }

    fn race_budget(&self) -> Duration {
        Duration::from_millis(20)
    }
}

#[test]
fn a_backend_that_promises_little_is_not_asked_for_more() {
    let report = run(&Modest(Capabilities::minimal()));
    assert!(report.passed(), "{}", report.table());
    let reasons: Vec<_> = report
        .checks
        .iter()
        .filter_map(|check| match &check.outcome {
            Outcome::NotApplicable { reason } => Some((check.check, reason.as_str())),
            _ => None,
        })
        .collect();
    let transactions = "the backend has no transactions to share";
    assert!(reasons.contains(&("transaction::once_is_true_once", transactions)), "{reasons:?}");
    let passed = report.checks.iter().filter(|check| check.outcome == Outcome::Passed).count();
    assert!(passed > 150 && reasons.len() > 80, "{passed} passed, {} do not apply", reasons.len());
}

#[test]
fn a_promise_that_is_not_kept_is_reported() {
    // It says that it tells events, but the defaults tell none; and it has transactions that the harness cannot open.
    let proud = Capabilities { events: true, transactions: true, ..Capabilities::minimal() };
    let wanted = ["events::the_life_of_a_job_is_told_in_order", "transaction::once_is_true_once"];
    let report = run_checks(&Arc::new(Modest(proud)), |check| {
        wanted.contains(&check.name) || check.name == "enqueue::attempts_default_to_five"
    });
    assert!(!report.passed());
    let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(json["backend"], "modest");
    let harness = report.failures().find(|failure| failure.check == wanted[1]).unwrap();
    assert_eq!(harness.clause, None, "{harness}");
    let table = report.table();
    assert!(table.contains("enqueue::attempts_default_to_five") && table.contains("ok      E12"), "{table}");
    assert!(table.contains("the harness failed"), "{table}");
}
