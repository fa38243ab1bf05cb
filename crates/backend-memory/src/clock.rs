//! Where the store's time comes from.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::time;

/// A source of time for a [`MemoryStore`](crate::MemoryStore).
///
/// The store cuts what is finer than a microsecond, and does not follow a clock that goes backwards.
pub trait Clock: Send + Sync {
    /// The time.
    fn now(&self) -> DateTime<Utc>;
}

/// The clock of this computer.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> DateTime<Utc> {
        Utc::now()
    }
}

/// A clock that stands still until it is told to move: for tests. Clones show the same time.
///
/// ```
/// use leasehold_memory::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let start = "2026-11-16T12:00:00Z".parse().unwrap();
/// let clock = ManualClock::new(start);
/// clock.clone().advance(Duration::from_secs(60));
/// assert_eq!(clock.now(), start + Duration::from_secs(60));
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<DateTime<Utc>>>);

impl ManualClock {
    /// A clock that shows `start`.
    pub fn new(start: DateTime<Utc>) -> Self {
        Self(Arc::new(Mutex::new(start)))
    }

    /// Lets time pass, at most until the end of the year 9999.
    pub fn advance(&self, by: Duration) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *now = time::later(*now, by);
    }

    /// Shows another time. One that is earlier changes nothing for a store that has seen a later one.
    pub fn set(&self, time: DateTime<Utc>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = time;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> DateTime<Utc> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
