//! One queue: its live jobs in the orders in which they are asked for.
//!
//! Every live job is in exactly one of `ready`, `waiting`, `running`, `expired` and `exhausted`, by its state at the
//! time of the last operation. So each count is the length of a set, and no question
//! on the hot path looks at more than the first of one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use leasehold_core::{EffectivePolicy, Job, JobId, JobState, QueueName, QueueStats, UniqueKey};

/// The order in which jobs are leased (D6): by priority from high to low, then by `available_at`, then by id.
pub(crate) type Rank = (Reverse<i32>, DateTime<Utc>, JobId);

/// The place of `job` in that order.
pub(crate) fn rank(job: &Job) -> Rank {
    (Reverse(job.priority), job.available_at, job.id)
}

/// Jobs by a time of theirs.
pub(crate) type ByTime = BTreeSet<(DateTime<Utc>, JobId)>;

/// The index of one queue. It has ids and keys; the jobs themselves are in [`State`](crate::state::State).
pub(crate) struct Queue {
    pub(crate) name: QueueName,
    pub(crate) policy: Arc<EffectivePolicy>,
    pub(crate) live: BTreeSet<JobId>,
    pub(crate) keys: HashMap<UniqueKey, JobId>,
    pub(crate) dead_letters: u64,
    /// When the rate limit's bucket is full again; `None` if it is.
    pub(crate) full_at: Option<DateTime<Utc>>,
    /// Leases of the operation under way, not yet in `full_at`: tokens are taken together, and rounded once.
    pub(crate) granted: u32,
    ready: BTreeSet<Rank>,
    pub(crate) ready_since: ByTime,
    pub(crate) waiting: ByTime,
    pub(crate) running: ByTime,
    pub(crate) expired: ByTime,
    pub(crate) exhausted: u64,
    /// How many of `waiting` were never tried.
    scheduled: u64,
    attempts: BTreeMap<u32, u64>,
}

impl Queue {
    pub(crate) fn new(name: QueueName, policy: Arc<EffectivePolicy>) -> Self {
        Self {
            name,
            policy,
            live: BTreeSet::new(),
            keys: HashMap::new(),
            dead_letters: 0,
            full_at: None,
            granted: 0,
            ready: BTreeSet::new(),
            ready_since: BTreeSet::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            expired: BTreeSet::new(),
            exhausted: 0,
            scheduled: 0,
            attempts: BTreeMap::new(),
        }
    }

    /// Takes in a job that was not live.
    pub(crate) fn enter(&mut self, job: &Job, now: DateTime<Utc>) {
        self.live.insert(job.id);
        if let Some(key) = &job.unique_key {
            self.keys.insert(key.clone(), job.id); // E6
        }
        self.index(job, now);
    }

    /// Lets go of a live job, and of its unique key.
    pub(crate) fn leave(&mut self, job: &Job, now: DateTime<Utc>) {
        self.live.remove(&job.id);
        if let Some(key) = &job.unique_key {
            self.keys.remove(key); // E6
        }
        self.unindex(job, now);
    }

    /// Puts a live job where its state says. The other half of [`unindex`](Self::unindex).
    pub(crate) fn index(&mut self, job: &Job, now: DateTime<Utc>) {
        *self.attempts.entry(job.attempts).or_default() += 1;
        match (job.state(now), &job.lease) {
            (JobState::Expired, Some(lease)) => drop(self.expired.insert((lease.until, job.id))),
            (_, Some(lease)) => drop(self.running.insert((lease.until, job.id))),
            (JobState::Exhausted, None) => self.exhausted += 1,
            (JobState::Ready, None) => self.make_ready(job),
            (_, None) => {
                self.waiting.insert((job.available_at, job.id));
                self.scheduled += u64::from(job.attempts == 0);
            }
        }
    }

    /// Takes a live job, as it was indexed, out of its place before it is changed.
    pub(crate) fn unindex(&mut self, job: &Job, now: DateTime<Utc>) {
        self.forget_attempts(job.attempts);
        match (job.state(now), &job.lease) {
            (JobState::Expired, Some(lease)) => drop(self.expired.remove(&(lease.until, job.id))),
            (_, Some(lease)) => drop(self.running.remove(&(lease.until, job.id))),
            (JobState::Exhausted, None) => self.exhausted -= 1,
            (JobState::Ready, None) => {
                self.ready.remove(&rank(job));
                self.ready_since.remove(&(job.available_at, job.id));
            }
            (_, None) => {
                self.waiting.remove(&(job.available_at, job.id));
                self.scheduled -= u64::from(job.attempts == 0);
            }
        }
    }

    /// The next waiting job whose time has come, taken out: to be given to [`make_due`](Self::make_due).
    pub(crate) fn next_due(&mut self, now: DateTime<Utc>) -> Option<JobId> {
        let first = self.waiting.first().copied().filter(|(at, _)| *at <= now)?;
        self.waiting.remove(&first);
        Some(first.1)
    }

    /// Indexes a job whose time has come.
    pub(crate) fn make_due(&mut self, job: &Job) {
        self.scheduled -= u64::from(job.attempts == 0);
        self.make_ready(job);
    }

    /// The next lease that has passed, now counted as expired.
    pub(crate) fn next_passed(&mut self, now: DateTime<Utc>) -> Option<(DateTime<Utc>, JobId)> {
        let first = self.running.first().copied().filter(|(until, _)| *until <= now)?;
        self.running.remove(&first);
        self.expired.insert(first);
        Some(first)
    }

    /// The first Ready job, whatever the limits say.
    pub(crate) fn first_ready(&self) -> Option<&Rank> {
        self.ready.first()
    }

    /// How many leases there are, passed ones included.
    pub(crate) fn leases(&self) -> usize {
        self.running.len() + self.expired.len()
    }

    /// The leased job with the smallest id. Of interest in Fifo queues, where there is hardly ever more than one.
    pub(crate) fn first_leased(&self) -> Option<JobId> {
        self.running.iter().chain(&self.expired).map(|(_, id)| *id).min()
    }

    /// Whether nothing is in the queue that anybody could ask for.
    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty() && self.dead_letters == 0
    }

    /// The queue in numbers.
    pub(crate) fn stats(&self, now: DateTime<Utc>) -> QueueStats {
        let counts = [
            (JobState::Running, self.running.len() as u64),
            (JobState::Expired, self.expired.len() as u64),
            (JobState::Exhausted, self.exhausted),
            (JobState::Scheduled, self.scheduled),
            (JobState::Retrying, self.waiting.len() as u64 - self.scheduled),
            (JobState::Ready, self.ready.len() as u64),
        ];
        QueueStats {
            queue: self.name.clone(),
            as_of: now,
            states: counts.into_iter().filter(|(_, count)| *count > 0).collect(), // Q1
            oldest_ready_at: first_time(&self.ready_since),                       // Q2
            dead_letters: self.dead_letters,
            attempts: self.attempts.clone(),
        }
    }

    fn make_ready(&mut self, job: &Job) {
        self.ready.insert(rank(job));
        self.ready_since.insert((job.available_at, job.id));
    }

    fn forget_attempts(&mut self, attempts: u32) {
        if let Some(count) = self.attempts.get_mut(&attempts) {
            *count -= 1;
            if *count == 0 {
                self.attempts.remove(&attempts);
            }
        }
    }
}

/// The earliest of them.
pub(crate) fn first_time(jobs: &ByTime) -> Option<DateTime<Utc>> {
    jobs.first().map(|(time, _)| *time)
}
