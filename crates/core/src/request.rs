//! One struct per operation that has something to say.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::bounded::{BatchSize, Delay, LeaseFor};
use crate::invalid::Invalid;
use crate::job::{FinalStatus, FinishedJob, Job, JobId};
use crate::name::{Kind, QueueName, UniqueKey, WorkerId};
use crate::queues::Queues;
use crate::state::JobState;

/// A request for leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dequeue {
    /// From which queues.
    pub queues: Queues,
    /// At most how many.
    pub limit: BatchSize,
    /// For how long. A queue's policy may make it shorter.
    pub lease_for: LeaseFor,
    /// Who asks. Information, never authority.
    pub worker: WorkerId,
}

impl Dequeue {
    /// A request for one job on a lease of a minute, to be changed with the other methods.
    ///
    /// ```
    /// use leasehold_core::Dequeue;
    /// use std::time::Duration;
    ///
    /// let request = Dequeue::new("mail", "worker-1")?.limit(100)?.lease_for(Duration::from_secs(30))?;
    /// # Ok::<(), leasehold_core::Invalid>(())
    /// ```
    ///
    /// # Errors
    /// [`Invalid`] with the field `queue` or `worker`.
    pub fn new<Q, W>(queues: Q, worker: W) -> Result<Self, Invalid>
    where
        Q: TryInto<Queues>,
        W: TryInto<WorkerId>,
        Invalid: From<Q::Error> + From<W::Error>,
    {
        let lease_for = LeaseFor::new(Duration::from_secs(60))?;
        Ok(Self { queues: queues.try_into()?, limit: BatchSize::ONE, lease_for, worker: worker.try_into()? })
    }

    /// At most so many jobs.
    ///
    /// # Errors
    /// [`Invalid`] with the field `limit`.
    pub fn limit(self, limit: u32) -> Result<Self, Invalid> {
        Ok(Self { limit: BatchSize::new(limit)?, ..self })
    }

    /// On a lease of this length.
    ///
    /// # Errors
    /// [`Invalid`] with the field `lease_for`.
    pub fn lease_for(self, length: Duration) -> Result<Self, Invalid> {
        Ok(Self { lease_for: LeaseFor::new(length)?, ..self })
    }
}

/// One job that was reclaimed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reclaimed {
    /// Which job.
    pub id: JobId,
    /// In which queue.
    pub queue: QueueName,
    /// What sort of work.
    pub kind: Kind,
    /// Attempts spent.
    pub attempts: u32,
    /// Who let the lease pass; `None` if it was Exhausted.
    pub worker: Option<WorkerId>,
    /// What became of it.
    pub fate: ReclaimFate,
}

impl Reclaimed {
    /// What is told of `job`, as it was before it was reclaimed.
    pub fn new(job: &Job, fate: ReclaimFate) -> Self {
        Self {
            id: job.id,
            queue: job.queue.clone(),
            kind: job.kind.clone(),
            attempts: job.attempts,
            worker: job.lease.as_ref().map(|lease| lease.worker.clone()),
            fate,
        }
    }
}

/// What became of a reclaimed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReclaimFate {
    /// Back in the queue.
    Requeued {
        /// When it is available.
        available_at: DateTime<Utc>,
    },
    /// In the history.
    DeadLettered,
}

/// An administrator's word on a job, whoever holds it.
#[derive(Debug, Clone, PartialEq)]
pub enum Intervention {
    /// See [`Store::retry_later`](crate::Store::retry_later).
    RetryLater(crate::Schedule),
    /// See [`Store::discard`](crate::Store::discard).
    Discard {
        /// Why.
        reason: crate::Json,
    },
    /// See [`Store::promote`](crate::Store::promote).
    Promote,
}

/// Which live jobs to list. The default is all of them, from the smallest id on, a hundred a page.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFilter {
    /// Only of these queues.
    pub queues: Queues,
    /// Only of this kind.
    pub kind: Option<Kind>,
    /// Only in these states at the store's now; `None` for any.
    pub states: Option<Vec<JobState>>,
    /// Only with this unique key.
    pub unique_key: Option<UniqueKey>,
    /// Only leased to this worker, whether or not the lease has passed.
    pub worker: Option<WorkerId>,
    /// In which order of ids.
    pub direction: Direction,
    /// Only what comes after this id in that order: [`Page::next`] of the page before.
    pub after: Option<JobId>,
    /// At most so many a page.
    pub limit: BatchSize,
}

impl Default for JobFilter {
    fn default() -> Self {
        Self {
            queues: Queues::all(),
            kind: None,
            states: None,
            unique_key: None,
            worker: None,
            direction: Direction::default(),
            after: None,
            limit: page_size(),
        }
    }
}

impl JobFilter {
    /// Whether `job` is asked for, at the store's time `now`: every field but `limit`, `after` included.
    pub fn matches(&self, job: &Job, now: DateTime<Utc>) -> bool {
        self.queues.contains(&job.queue)
            && self.kind.as_ref().is_none_or(|kind| *kind == job.kind)
            && allows(self.states.as_deref(), &job.state(now))
            && self.unique_key.as_ref().is_none_or(|key| Some(key) == job.unique_key.as_ref())
            && self
                .worker
                .as_ref()
                .is_none_or(|worker| job.lease.as_ref().is_some_and(|l| l.worker == *worker))
            && self.after.is_none_or(|after| self.direction.is_after(after, job.id))
    }
}

/// Which finished jobs to list. The default is all of them, from the smallest id on, a hundred a page.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryFilter {
    /// Only of these queues.
    pub queues: Queues,
    /// Only of this kind.
    pub kind: Option<Kind>,
    /// Only those that ended so; `None` for any.
    pub statuses: Option<Vec<FinalStatus>>,
    /// Only with this unique key.
    pub unique_key: Option<UniqueKey>,
    /// Only those that ended at this time or later.
    pub finished_from: Option<DateTime<Utc>>,
    /// Only those that ended before this time.
    pub finished_before: Option<DateTime<Utc>>,
    /// In which order of ids.
    pub direction: Direction,
    /// Only what comes after this id in that order: [`Page::next`] of the page before.
    pub after: Option<JobId>,
    /// At most so many a page.
    pub limit: BatchSize,
}

impl Default for HistoryFilter {
    fn default() -> Self {
        Self {
            queues: Queues::all(),
            kind: None,
            statuses: None,
            unique_key: None,
            finished_from: None,
            finished_before: None,
            direction: Direction::default(),
            after: None,
            limit: page_size(),
        }
    }
}

impl HistoryFilter {
    /// Whether `job` is asked for: every field but `limit`, `after` included.
    pub fn matches(&self, job: &FinishedJob) -> bool {
        self.queues.contains(&job.queue)
            && self.kind.as_ref().is_none_or(|kind| *kind == job.kind)
            && allows(self.statuses.as_deref(), &job.outcome.status())
            && self.unique_key.as_ref().is_none_or(|key| Some(key) == job.unique_key.as_ref())
            && self.finished_from.is_none_or(|from| job.finished_at >= from)
            && self.finished_before.is_none_or(|before| job.finished_at < before)
            && self.after.is_none_or(|after| self.direction.is_after(after, job.id))
    }
}

/// In which order of ids a list is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// From the smallest id.
    #[default]
    OldestFirst,
    /// From the largest id.
    NewestFirst,
}

impl Direction {
    /// Whether `id` comes after `mark` in this order.
    pub fn is_after(self, mark: JobId, id: JobId) -> bool {
        match self {
            Self::OldestFirst => id > mark,
            Self::NewestFirst => id < mark,
        }
    }
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// The filter's `after` for the next page; `None` if this is the last.
    pub next: Option<JobId>,
}

/// Which dead letters to put back into their queues, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Redrive {
    /// Only of these queues.
    pub queues: Queues,
    /// Only of this kind.
    pub kind: Option<Kind>,
    /// Only these; `None` for any. No ids at all select nothing.
    pub ids: Option<Vec<JobId>>,
    /// At most so many.
    pub limit: BatchSize,
}

impl Redrive {
    /// All dead letters, at most `limit`.
    pub fn all(limit: BatchSize) -> Self {
        Self { queues: Queues::all(), kind: None, ids: None, limit }
    }

    /// Whether `job` is a dead letter and asked for. Leaves out `limit`.
    pub fn matches(&self, job: &FinishedJob) -> bool {
        job.outcome.status() == FinalStatus::DeadLetter
            && self.queues.contains(&job.queue)
            && self.kind.as_ref().is_none_or(|kind| *kind == job.kind)
            && allows(self.ids.as_deref(), &job.id)
    }
}

/// The answer to a redrive.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Redriven {
    /// The jobs that are back in their queues, oldest first.
    pub jobs: Vec<JobId>,
    /// Dead letters that were passed over because a live job has their unique key, by id; at most `limit` are named, the
    /// first ones.
    pub conflicts: Vec<JobId>,
}

/// Which finished jobs to forget; and, if it names no statuses, queues or ids, passed idempotency keys with them.
#[derive(Debug, Clone, PartialEq)]
pub struct Prune {
    /// How old they must be.
    pub age: PruneAge,
    /// Only those that ended so; `None` for any.
    pub statuses: Option<Vec<FinalStatus>>,
    /// Only of these queues.
    pub queues: Queues,
    /// Only these; `None` for any. No ids at all select nothing.
    pub ids: Option<Vec<JobId>>,
    /// At most so many, jobs and keys together.
    pub limit: BatchSize,
}

impl Prune {
    /// Everything that ended at least `age` ago, at most `limit`.
    ///
    /// # Errors
    /// [`Invalid`] with the field `older_than`.
    pub fn older_than(age: Duration, limit: BatchSize) -> Result<Self, Invalid> {
        let age = Delay::new(age).map_err(|invalid| invalid.of("older_than"))?;
        Ok(Self::aged(PruneAge::OlderThan(age), limit))
    }

    /// Everything that its queue's retention no longer keeps, at most `limit`.
    pub fn by_retention(limit: BatchSize) -> Self {
        Self::aged(PruneAge::Retention, limit)
    }

    /// Whether `job` is to be forgotten, given its queue's `retention`. Leaves out `limit`.
    pub fn matches(&self, job: &FinishedJob, retention: Option<Delay>, now: DateTime<Utc>) -> bool {
        let age = match self.age {
            PruneAge::OlderThan(age) => Some(age),
            PruneAge::Retention => retention,
        };
        age.is_some_and(|age| job.finished_at <= crate::time::earlier(now, age.get()))
            && allows(self.statuses.as_deref(), &job.outcome.status())
            && self.queues.contains(&job.queue)
            && allows(self.ids.as_deref(), &job.id)
    }

    /// Whether idempotency keys whose retention has passed are to be forgotten, too (**[U4](crate::contract::U4)**): if the
    /// request is restricted to no statuses, queues or ids.
    pub fn forgets_keys(&self) -> bool {
        self.statuses.is_none() && self.ids.is_none() && self.queues == Queues::all()
    }

    fn aged(age: PruneAge, limit: BatchSize) -> Self {
        Self { age, statuses: None, queues: Queues::all(), ids: None, limit }
    }
}

/// How old a finished job must be to be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PruneAge {
    /// Ended at least so long ago.
    OlderThan(Delay),
    /// Ended at least as long ago as its queue's policy keeps it. Queues without a retention keep everything.
    Retention,
}

/// Whether a selection, where there is one, has `value`.
fn allows<T: PartialEq>(selection: Option<&[T]>, value: &T) -> bool {
    selection.is_none_or(|selection| selection.contains(value))
}

fn page_size() -> BatchSize {
    BatchSize::new(100).unwrap_or(BatchSize::ONE)
}
