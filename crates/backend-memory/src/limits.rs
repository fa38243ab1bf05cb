//! What a queue's policy lets happen now, and when time changes that.

use chrono::{DateTime, Utc};
use leasehold_core::{Job, JobState, QueueOrder};

use crate::queue::{Queue, first_time};

impl Queue {
    /// Whether every place that the policy allows is taken.
    pub(crate) fn is_full(&self) -> bool {
        let places = match self.policy.order {
            QueueOrder::Fifo => 1, // P4
            QueueOrder::Priority => self.policy.concurrency_limit.map_or(u32::MAX, |limit| limit.get()), // P2
        };
        self.leases() >= places as usize
    }

    /// Whether the policy lets anything be leased now.
    pub(crate) fn is_open(&self, now: DateTime<Utc>) -> bool {
        !self.policy.paused && !self.is_full() && self.next_token_at(now).is_none() // P1, P2, P3
    }

    /// Whether the end of one job can make another leasable.
    pub(crate) fn has_limits(&self) -> bool {
        self.policy.concurrency_limit.is_some() || self.policy.order == QueueOrder::Fifo
    }

    /// When the rate limit allows the next lease; `None` if one is allowed now.
    pub(crate) fn next_token_at(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let rate = self.policy.rate?;
        if rate.tokens(self.full_at, now) > self.granted {
            return None;
        }
        Some(rate.next_token_at(Some(rate.take(self.full_at, now, self.granted)), now))
    }

    /// Takes the tokens of the leases that were granted, and forgets a bucket that is full again.
    pub(crate) fn take_tokens(&mut self, now: DateTime<Utc>) {
        let granted = std::mem::take(&mut self.granted);
        match self.policy.rate {
            Some(rate) if granted > 0 => self.full_at = Some(rate.take(self.full_at, now, granted)),
            Some(_) => self.full_at = self.full_at.filter(|full_at| *full_at > now),
            None => self.full_at = None,
        }
    }

    /// When time alone next changes anything here.
    pub(crate) fn next_change(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let times = [&self.waiting, &self.running].into_iter().filter_map(first_time);
        // An empty queue is remembered until its bucket is full, or else it could be emptied by being left idle.
        let bucket = if self.is_empty() { self.full_at } else { self.next_token_at(now) };
        times.chain(bucket).min()
    }

    /// This queue's part in [`Store::next_available_at`](leasehold_core::Store::next_available_at). `first` is the
    /// live job with the smallest id.
    pub(crate) fn next_available_at(&self, first: Option<&Job>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        if self.policy.paused {
            return None;
        }
        let leases = [&self.running, &self.expired].into_iter().filter_map(first_time);
        let soonest = leases.chain((self.exhausted > 0).then_some(now)).min();
        if self.is_full() {
            return soonest;
        }
        let next = match self.policy.order {
            QueueOrder::Fifo => {
                first.filter(|job| job.state(now) != JobState::Exhausted).map(|job| job.available_at)
            }
            QueueOrder::Priority => {
                [&self.ready_since, &self.waiting].into_iter().filter_map(first_time).min()
            }
        };
        let next = next.map(|next| self.next_token_at(now).map_or(next, |token| next.max(token)));
        soonest.into_iter().chain(next).min()
    }
}
