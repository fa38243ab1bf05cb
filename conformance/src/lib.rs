//! The suite that every backend of Leasehold runs, ours and strangers'.
//!
//! A backend author writes a [`Harness`] and a test target `conformance`:
//!
//! ```toml
//! # Cargo.toml
//! [[test]]
//! name = "conformance"
//! harness = false
//! ```
//!
//! ```no_run
//! // tests/conformance.rs
//! use std::{sync::Arc, time::Duration};
//!
//! use leasehold_conformance::{BoxError, Harness};
//! use leasehold_core::Store;
//! # use leasehold_memory::{ManualClock, MemoryStore as MyStore};
//!
//! #[derive(Clone)]
//! struct Mine;
//!
//! #[async_trait::async_trait]
//! impl Harness for Mine {
//!     // Whatever it takes to find one database: a path, a schema name, a pool.
//!     type Database = (MyStore, ManualClock);
//!
//!     async fn create(&self) -> Result<Self::Database, BoxError> {
//!         let clock = ManualClock::new("2001-01-01T00:00:00.123456789Z".parse()?);
//!         Ok((MyStore::with_clock(clock.clone()), clock))
//!     }
//!
//!     async fn connect(&self, (store, _): &Self::Database) -> Result<Arc<dyn Store>, BoxError> {
//!         Ok(Arc::new(store.clone()))
//!     }
//!
//!     async fn age(&self, (_, clock): &Self::Database, by: Duration) -> Result<(), BoxError> {
//!         clock.advance(by);
//!         Ok(())
//!     }
//! }
//!
//! fn main() {
//!     leasehold_conformance::main(Mine);
//! }
//! ```
//!
//! Then `cargo test --test conformance` shows every check as a named case that can be filtered
//! (`cargo test --test conformance -- dequeue`). A check that does not apply to the backend is shown as ignored with the
//! reason. A failure names the clause of [`leasehold_core::contract`] that is broken, what was promised and what was
//! seen. [`run`] gives the same as a [`Report`].
//!
//! The groups of checks: `enqueue`, `dequeue`, `order`, `settle`, `stale` (receipts), `heartbeat`, `reclaim`, `admin`
//! (`intervene`, `release`), `redrive`, `list` and `page` (`get`, `jobs`, `history`), `receipts` (and `stuck`), `stats`,
//! `explain`, `next` (`next_available_at`), `derived` (overrides against the defaults), `prune`, `pause`, `policy`,
//! `backoff`, `limits`, `rate`, `fifo`, `input`, `time`, `wake`, `events`, `race`, `bulk`, `cancel`, `transaction`,
//! `interleave`, `twin` (ids that are there twice), `model`. Most of them use `enqueue`, `dequeue`, `settle`, `get`, `jobs` and `history` to set the scene, so
//! write those first.
//!
//! A failure of `model` prints a sequence of operations and a line `LEASEHOLD_REPLAY='…'`. Put that before the command to
//! play the same sequence again: `LEASEHOLD_REPLAY='…' cargo test --test conformance -- model`.
//!
//! Time passes by [`Harness::age`], never by sleeping. A harness whose clock can be set should start it far from the
//! host's, so that a store which uses the wrong clock is caught.

mod cancel;
mod check;
mod checks;
mod dump;
mod failure;
mod harness;
mod model;
mod plain;
mod report;
mod stage;
mod suites;

pub use check::{Check, Need};
pub use failure::Failure;
pub use harness::{Ending, Harness, Isolation, Transaction};
pub use leasehold_core::BoxError;
pub use model::{Operation, Planned, Rule, Sentence};
pub use plain::Plain;
pub use report::{CheckReport, Outcome, Report};
pub use suites::Suites;

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::Arguments;

/// Every check of the suite.
pub fn checks() -> Vec<Check> {
    checks::all()
}

/// Runs the suite as a test target with `harness = false`: one named case per check. [`Suites`] runs several in one target.
pub fn main<H: Harness>(harness: H) {
    let arguments = Arguments::from_args();
    let harness = Arc::new(harness);
    let case = |check: Check| suites::trial(check.name.to_owned(), Arc::clone(&harness), check);
    let trials = checks().into_iter().map(case).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

/// Runs the suite and reports on every check. A harness that is not `Clone` can be given in an [`Arc`].
pub fn run<H: Harness + Clone>(harness: &H) -> Report {
    run_checks(harness, |_| true)
}

/// Runs the checks for which `wanted` says so, as many at once as there are processors, and reports on them.
pub fn run_checks<H: Harness + Clone>(harness: &H, wanted: impl Fn(&Check) -> bool) -> Report {
    let harness = Arc::new(harness.clone());
    let checks: Vec<_> = checks().into_iter().filter(wanted).collect();
    let (next, reports) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some((index, check)) = take_next(&checks, &next) {
            let report = CheckReport::new(check, check.run(Arc::clone(&harness)));
            reports.lock().unwrap_or_else(PoisonError::into_inner).insert(index, report);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let reports = reports.into_inner().unwrap_or_else(PoisonError::into_inner);
    Report::new(harness.name(), reports.into_values().collect())
}

/// The next check that nobody has taken, with its place.
fn take_next<'a>(checks: &'a [Check], next: &AtomicUsize) -> Option<(usize, &'a Check)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    checks.get(index).map(|check| (index, check))
}
