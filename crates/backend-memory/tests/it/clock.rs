//! The store's time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{MINUTE, SECOND, now};
use chrono::{DateTime, Utc};
use leasehold_core::Store;
use leasehold_memory::{Clock, ManualClock, MemoryStore};

#[test]
fn time_is_whole_and_never_goes_back() {
    let start: chrono::DateTime<chrono::Utc> = "2026-11-16T12:00:00.123456789Z".parse().unwrap();
    let clock = ManualClock::new(start);
    let store = MemoryStore::with_clock(clock.clone());
    let first = now(store.now()).unwrap();
    assert_eq!(first.to_string(), "2026-11-16 12:00:00.123456 UTC");
    clock.set(start - MINUTE);
    assert_eq!(now(store.now()).unwrap(), first);
    clock.advance(MINUTE + SECOND);
    assert_eq!(now(store.now()).unwrap(), first + SECOND);
    assert_eq!(clock.now(), start + SECOND);
}

/// Panics once, under the store's lock.
struct BrokenClock(AtomicBool);

impl Clock for BrokenClock {
    fn now(&self) -> DateTime<Utc> {
        assert!(self.0.swap(true, Ordering::Relaxed), "the clock is broken");
        Utc::now()
    }
}

#[test]
fn a_panic_under_the_lock_leaves_the_store_fit_for_use() {
    let store = MemoryStore::with_clock(BrokenClock(AtomicBool::new(false)));
    assert!(catch_unwind(AssertUnwindSafe(|| now(store.now()))).is_err());
    assert!(now(store.now()).is_ok());
}
