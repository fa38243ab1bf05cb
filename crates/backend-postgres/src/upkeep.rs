//! Keeping the numbers of jobs few.
//!
//! Every statement that makes a job wait, or ends that, leaves a row in `job_queue_count`; `stats` adds them up. Somebody has to make
//! one row of many: a process that has left a thousand offers to, and so does one that asks for numbers. The server says whether it
//! is time. Nobody waits for it, and a process that does nothing offers nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use diesel::sql_types::Bool;
use leasehold_core::Result;

use crate::Shared;
use crate::error::{Effect, Failure};
use crate::statement::Statement;

/// After how many statements a process offers it.
const STATEMENTS: u64 = 1000;
/// How often it does at most because it was asked for numbers.
const EVERY: Duration = Duration::from_secs(10);

/// What this process has left behind, and when it next offers to sum up because it was asked for numbers.
#[derive(Debug)]
pub(crate) struct Upkeep {
    left: AtomicU64,
    next: Mutex<Instant>,
}

impl Upkeep {
    pub(crate) fn new() -> Self {
        Self { left: AtomicU64::new(0), next: Mutex::new(Instant::now()) }
    }

    /// Whether it is time after one more statement.
    fn is_due_after_another(&self) -> bool {
        (self.left.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(STATEMENTS)
    }

    /// Whether it is time if somebody asks for numbers.
    fn is_due(&self, now: Instant) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = *next <= now;
        if is_due {
            *next = now + EVERY;
        }
        is_due
    }
}

impl Shared {
    /// A statement has left rows behind.
    pub(crate) fn has_counted(self: &Arc<Self>) {
        if self.upkeep.is_due_after_another() {
            self.offer_to_fold();
        }
    }

    /// Somebody asks for numbers.
    pub(crate) fn is_asked_for_numbers(self: &Arc<Self>) {
        if self.upkeep.is_due(Instant::now()) {
            self.offer_to_fold();
        }
    }

    fn offer_to_fold(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            // The numbers are right all the same, and another will do it.
            if let Err(error) = shared.fold().await {
                tracing::warn!(%error, "the numbers of jobs were not summed up: `stats` is slower until they are");
            }
        });
    }

    /// Sums up what was counted, if it is time.
    async fn fold(&self) -> Result<()> {
        let conn = self.connection("fold").await?;
        let folded: Result<Vec<bool>, Failure> =
            Statement::<Bool>::new(&self.sql.fold, Vec::new()).rows(&conn).await;
        conn.judge(folded.map(drop), Effect::Write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_offered_after_a_thousand_statements() {
        let upkeep = Upkeep::new();
        let offers: Vec<u64> = (1..=2500).filter(|_| upkeep.is_due_after_another()).collect();
        assert_eq!(offers, [1000, 2000]);
    }

    #[test]
    fn who_asks_for_numbers_offers_at_once_and_then_every_ten_seconds() {
        let upkeep = Upkeep::new();
        let now = Instant::now();
        assert!(upkeep.is_due(now));
        assert!(!upkeep.is_due(now + EVERY - Duration::from_millis(1)));
        assert!(upkeep.is_due(now + EVERY));
        assert!(!upkeep.is_due(now + EVERY));
    }
}
