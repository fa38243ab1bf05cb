//! What a store tells about its jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::job::{FinalStatus, JobId};
use crate::json::Json;
use crate::name::{QueueName, WorkerId};
use crate::policy::ConcurrencyLimit;
use crate::state::JobState;

/// Why a job is not running. If several reasons hold, [`Store::explain`](crate::Store::explain) says which is told.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Explanation {
    /// There is no such job: never accepted, or no longer kept.
    Unknown,
    /// It was completed or discarded.
    Finished {
        /// How it ended.
        status: FinalStatus,
        /// When.
        at: DateTime<Utc>,
    },
    /// It is a dead letter; redrive it to run it again.
    DeadLetter {
        /// Since when.
        at: DateTime<Utc>,
        /// The last error.
        error: Json,
    },
    /// It *is* running.
    Leased {
        /// Who has it.
        by: WorkerId,
        /// Until when.
        until: DateTime<Utc>,
    },
    /// Its holder is presumed dead; the next reclaim decides.
    LeaseExpired {
        /// Who had it.
        by: WorkerId,
        /// Since when the lease has passed.
        since: DateTime<Utc>,
    },
    /// Its attempts are spent; the next reclaim makes it a dead letter.
    Exhausted,
    /// Its queue is paused.
    Paused,
    /// Its time has not come.
    Scheduled {
        /// When it comes.
        until: DateTime<Utc>,
    },
    /// It failed, and its time has not come again.
    Retrying {
        /// When it comes.
        until: DateTime<Utc>,
        /// The last error.
        error: Option<Json>,
    },
    /// The queue is Fifo and another job is before it or running; or it is Ready, and this is the job that its
    /// queue will give out first.
    WaitsBehind {
        /// That job.
        job: JobId,
    },
    /// As many jobs of its queue are leased as may be.
    ConcurrencyLimit {
        /// The limit.
        limit: ConcurrencyLimit,
    },
    /// Its queue has given out as many leases as its rate allows for now.
    RateLimit {
        /// When the next one is allowed.
        until: DateTime<Utc>,
    },
    /// Nothing is in its way: the next to ask will get it.
    Next,
}

/// When it is worth to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NextAvailable {
    /// By the store's clock.
    pub at: DateTime<Utc>,
    /// How long that is from the store's now, nothing if it is past: how long to sleep, whatever the caller's clock says.
    pub wait: Duration,
}

impl NextAvailable {
    /// At this time, seen from the store's `now`.
    pub fn new(at: DateTime<Utc>, now: DateTime<Utc>) -> Self {
        Self { at, wait: crate::time::between(now, at) }
    }
}

/// What a queue's limits see now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct QueueUsage {
    /// Jobs with a lease, passed ones included.
    pub leased: u64,
    /// When the rate limit allows the next lease; `None` if one is allowed now or there is no limit.
    pub next_token_at: Option<DateTime<Utc>>,
}

/// A queue in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueStats {
    /// Which queue.
    pub queue: QueueName,
    /// The store's time at which this was so.
    pub as_of: DateTime<Utc>,
    /// Its live jobs by state. A state without jobs may be missing.
    pub states: BTreeMap<JobState, u64>,
    /// Since when the oldest Ready job has been available.
    pub oldest_ready_at: Option<DateTime<Utc>>,
    /// Its dead letters.
    pub dead_letters: u64,
    /// Its live jobs by attempts spent. A number without jobs may be missing.
    pub attempts: BTreeMap<u32, u64>,
}

impl QueueStats {
    /// A queue with nothing in it, at the store's time `as_of`.
    pub fn empty(queue: QueueName, as_of: DateTime<Utc>) -> Self {
        Self {
            queue,
            as_of,
            states: BTreeMap::new(),
            oldest_ready_at: None,
            dead_letters: 0,
            attempts: BTreeMap::new(),
        }
    }

    /// How many live jobs are in this state.
    pub fn count(&self, state: JobState) -> u64 {
        self.states.get(&state).copied().unwrap_or_default()
    }

    /// How long the oldest Ready job has been waiting.
    pub fn oldest_ready_age(&self) -> Option<Duration> {
        self.oldest_ready_at.map(|since| crate::time::between(since, self.as_of))
    }

    /// How many live jobs there are.
    pub fn live(&self) -> u64 {
        self.states.values().sum()
    }
}
