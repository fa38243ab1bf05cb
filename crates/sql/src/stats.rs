//! Queues in numbers, and what receipts are worth.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use leasehold_core::{JobState, QueueName, QueueStats, Queues, Receipt, ReceiptStatus};

/// Adds rows of live jobs by queue, state and attempts, and of dead letters by queue.
#[derive(Debug)]
pub struct Tally {
    now: DateTime<Utc>,
    stats: BTreeMap<QueueName, QueueStats>,
}

impl Tally {
    /// Nothing yet; of queues that were named, zeros (Q3).
    pub fn new(queues: &Queues, now: DateTime<Utc>) -> Self {
        let mut stats = BTreeMap::new();
        if let Queues::Named(names) = queues {
            stats.extend(names.iter().map(|name| (name.clone(), QueueStats::empty(name.clone(), now))));
        }
        Self { now, stats }
    }

    /// One row. What is no state is the number of dead letters.
    pub fn add(&mut self, queue: &str, state: &str, attempts: i64, count: i64, first: Option<DateTime<Utc>>) {
        let Ok(queue) = QueueName::new(queue) else {
            return;
        };
        let row = self.stats.entry(queue.clone()).or_insert_with(|| QueueStats::empty(queue, self.now));
        let (count, attempts) = (count.unsigned_abs(), u32::try_from(attempts).unwrap_or_default());
        let Ok(state) = state.parse::<JobState>() else {
            row.dead_letters += count;
            return;
        };
        *row.states.entry(state).or_default() += count; // Q1
        *row.attempts.entry(attempts).or_default() += count; // Q2
        if state == JobState::Ready {
            row.oldest_ready_at = row.oldest_ready_at.into_iter().chain(first).min();
        }
    }

    /// The sums, by name.
    pub fn finish(self) -> Vec<QueueStats> {
        self.stats.into_values().collect()
    }
}

/// What a receipt is worth (G5): by the epoch and the lease of its live job, and the epoch and status of its history.
pub fn receipt_status(
    receipt: &Receipt,
    live: Option<i64>,
    until: Option<DateTime<Utc>>,
    finished: Option<i64>,
    status: Option<&str>,
) -> ReceiptStatus {
    let epoch = receipt.epoch.get();
    match (until, status.and_then(|status| status.parse().ok())) {
        (Some(until), _) if live == Some(epoch) => ReceiptStatus::Held { until },
        (None, _) if live == Some(epoch) && epoch > 0 => ReceiptStatus::Requeued,
        (_, Some(status)) if finished == Some(epoch) => ReceiptStatus::Finished { status },
        _ => ReceiptStatus::Gone,
    }
}
