//! What decides when a queue is worth a look and why a job is not running.

use chrono::{DateTime, Utc};
use leasehold_core::{EffectivePolicy, Explanation, FinishedJob, Job, JobId, Outcome, QueueOrder};

use crate::bucket::Bucket;

/// What a few steps in the indexes tell of a queue, however long it is.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The store's time.
    pub now: DateTime<Utc>,
    /// How many leases it has, passed ones included.
    pub leased: i64,
    /// The first end of a lease.
    pub first_lease_until: Option<DateTime<Utc>>,
    /// The leased job with the smallest id.
    pub first_leased: Option<i64>,
    /// Whether a job is Exhausted.
    pub has_exhausted: bool,
    /// The live job with the smallest id.
    pub first: Option<i64>,
    /// When that one is available.
    pub first_available_at: Option<DateTime<Utc>>,
    /// Whether that one has no lease and attempts left.
    pub first_waits: bool,
    /// The first `available_at` of the jobs without a lease and with attempts left.
    pub next_available_at: Option<DateTime<Utc>>,
    /// The Ready job that is leased first.
    pub first_ready: Option<i64>,
    /// Its token bucket, if it has one.
    pub bucket: Option<Bucket>,
}

impl Facts {
    /// The reasons that the other jobs of the queue give for `job` not to run (Y4, Y5).
    pub fn explain(&self, job: &Job, policy: &EffectivePolicy) -> Explanation {
        let fifo = policy.order == QueueOrder::Fifo;
        let before = self.first_leased.or(self.first).filter(|first| fifo && *first != job.id.get());
        if let Some(first) = before {
            return Explanation::WaitsBehind { job: JobId::new(first) };
        }
        if let Some(limit) = policy.concurrency_limit.filter(|limit| self.leased >= i64::from(limit.get())) {
            return Explanation::ConcurrencyLimit { limit };
        }
        if let Some(until) = self.next_token_at(policy) {
            return Explanation::RateLimit { until };
        }
        match self.first_ready.filter(|first| !fifo && *first != job.id.get()) {
            Some(first) => Explanation::WaitsBehind { job: JobId::new(first) },
            None => Explanation::Next,
        }
    }

    /// This queue's part in `next_available_at` (N1, N2).
    pub fn next_look(&self, policy: &EffectivePolicy) -> Option<DateTime<Utc>> {
        if policy.paused {
            return None;
        }
        let soonest = self.first_lease_until.into_iter().chain(self.has_exhausted.then_some(self.now)).min();
        let places = match policy.order {
            QueueOrder::Fifo => 1,
            QueueOrder::Priority => policy.concurrency_limit.map_or(u32::MAX, |limit| limit.get()),
        };
        if self.leased >= i64::from(places) {
            return soonest;
        }
        let next = match policy.order {
            QueueOrder::Fifo => self.first_available_at.filter(|_| self.first_waits),
            QueueOrder::Priority => self.next_available_at,
        };
        let token = self.next_token_at(policy);
        let next = next.map(|next| token.map_or(next, |token| next.max(token)));
        soonest.into_iter().chain(next).min()
    }

    /// When the rate limit allows the next lease; `None` if one is allowed now.
    pub fn next_token_at(&self, policy: &EffectivePolicy) -> Option<DateTime<Utc>> {
        let rate = policy.rate?;
        let full_at = self.bucket.and_then(|bucket| bucket.full_at(rate));
        (rate.tokens(full_at, self.now) == 0).then(|| rate.next_token_at(full_at, self.now))
    }
}

/// Why a finished job is not running (Y1).
pub fn explain_finished(job: FinishedJob) -> Explanation {
    match job.outcome {
        Outcome::DeadLetter { error } => Explanation::DeadLetter { at: job.finished_at, error },
        outcome => Explanation::Finished { status: outcome.status(), at: job.finished_at },
    }
}
