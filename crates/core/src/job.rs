//! A job, its lease and its end.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::bounded::MaxAttempts;
use crate::headers::Headers;
use crate::invalid::{Invalid, Problem};
use crate::json::Json;
use crate::name::{Kind, QueueName, UniqueKey, WorkerId};
use crate::state::{Facts, JobState};

/// The number of a job: positive, given by the store, never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(i64);

impl JobId {
    /// The job with this number.
    pub fn new(id: i64) -> Self {
        Self(id)
    }

    /// The number.
    pub fn get(self) -> i64 {
        self.0
    }
}

impl From<i64> for JobId {
    fn from(id: i64) -> Self {
        Self(id)
    }
}

impl FromStr for JobId {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        text.parse()
            .map(Self)
            .map_err(|_| Invalid::new("job", Problem::Malformed { expected: "a whole number" }))
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Tells the leases of one job apart: 0 before the first, one more with each lease and whenever an administrator takes
/// the job from its holder, never less in the job's whole life, redrives included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(i64);

impl Epoch {
    /// The epoch of a job that was never leased.
    pub const ZERO: Self = Self(0);

    /// The epoch with this number.
    pub fn new(epoch: i64) -> Self {
        Self(epoch)
    }

    /// The number.
    pub fn get(self) -> i64 {
        self.0
    }

    /// The epoch of the next lease.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What the holder of a lease shows for every later call: which job, and which of its leases.
///
/// A receipt is *good* while its job is in the queue, leased, and in this epoch; it stays good when the lease has
/// run out, until somebody reclaims the job or takes it away. Then it is *stale* for ever. It can be written down
/// as text, such as `17@3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Receipt {
    /// The job.
    pub job: JobId,
    /// The lease.
    pub epoch: Epoch,
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.job, self.epoch)
    }
}

impl FromStr for Receipt {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let malformed = || Invalid::new("receipt", Problem::Malformed { expected: "job@epoch" });
        let (job, epoch) = text.split_once('@').ok_or_else(malformed)?;
        let number = |text: &str| text.parse::<i64>().map_err(|_| malformed());
        Ok(Self { job: JobId(number(job)?), epoch: Epoch(number(epoch)?) })
    }
}

/// The right to run one job until a time by the store's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// `lease_until`: when the right ends.
    pub until: DateTime<Utc>,
    /// `locked_by`: who has it. Information, never authority.
    pub worker: WorkerId,
}

/// A job in the queue. It has no status: see [`Job::state`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// `queue_name`.
    pub queue: QueueName,
    /// What sort of work it is.
    pub kind: Kind,
    /// Larger first.
    pub priority: i32,
    /// The queue has at most one live job with this key.
    pub unique_key: Option<UniqueKey>,
    /// What the handler is told.
    pub payload: Json,
    /// What travels along.
    pub headers: Headers,
    /// Attempts spent, the running one included.
    pub attempts: u32,
    /// Attempts allowed.
    pub max_attempts: MaxAttempts,
    /// Not to be leased before this time.
    pub available_at: DateTime<Utc>,
    /// `lease_until` and `locked_by`, both or neither.
    pub lease: Option<Lease>,
    /// `lease_epoch`.
    pub epoch: Epoch,
    /// When it was leased for the first time.
    pub first_leased_at: Option<DateTime<Utc>>,
    /// What went wrong the last time.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::json::present")]
    pub last_error: Option<Json>,
    /// How often it was a dead letter and put back.
    pub redrives: u32,
    /// When it was enqueued.
    pub created_at: DateTime<Utc>,
    /// When anything above last changed.
    pub updated_at: DateTime<Utc>,
}

impl Job {
    /// The receipt for the current lease. Good only while there is one: of a job that is not leased, it is stale.
    pub fn receipt(&self) -> Receipt {
        Receipt { job: self.id, epoch: self.epoch }
    }

    /// How long the lease was granted for, of a job as [`dequeue`](crate::Store::dequeue) gave it: what a holder counts
    /// down by its own monotonic clock, from the moment it sent the request.
    pub fn leased_for(&self) -> Option<Duration> {
        self.lease.as_ref().map(|lease| crate::time::between(self.updated_at, lease.until))
    }

    /// The state at the store's time `now`.
    pub fn state(&self, now: DateTime<Utc>) -> JobState {
        self.facts().state(now)
    }

    /// What the state is derived from.
    pub fn facts(&self) -> Facts {
        Facts {
            lease_until: self.lease.as_ref().map(|lease| lease.until),
            attempts: self.attempts,
            max_attempts: self.max_attempts,
            available_at: self.available_at,
        }
    }
}

/// A job that has ended: a row of the history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FinishedJob {
    /// Its number, the same as in the queue.
    pub id: JobId,
    /// `queue_name`.
    pub queue: QueueName,
    /// What sort of work it was.
    pub kind: Kind,
    /// As in the queue.
    pub priority: i32,
    /// As in the queue. It no longer keeps others out.
    pub unique_key: Option<UniqueKey>,
    /// As in the queue.
    pub payload: Json,
    /// As in the queue.
    pub headers: Headers,
    /// Attempts spent.
    pub attempts: u32,
    /// Attempts allowed.
    pub max_attempts: MaxAttempts,
    /// The epoch in which it ended: that of the receipt which settled it, or of its last lease; one more if an
    /// administrator took it from its holder to end it.
    pub epoch: Epoch,
    /// How it ended: `status_final` and `result`.
    pub outcome: Outcome,
    /// The error of its last failed attempt, if any failed. For a dead letter the same as the outcome's.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::json::present")]
    pub last_error: Option<Json>,
    /// How often it was a dead letter and put back.
    pub redrives: u32,
    /// Who held it when it ended, if anybody did.
    pub processed_by: Option<WorkerId>,
    /// When it was enqueued.
    pub created_at: DateTime<Utc>,
    /// When it was leased for the first time.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: DateTime<Utc>,
}

/// How a job ended, with the document that tells more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The work was done.
    Completed {
        /// What the handler returned.
        result: Json,
    },
    /// The attempts are spent, or the handler gave up. Can be redriven.
    DeadLetter {
        /// The last error.
        error: Json,
    },
    /// Somebody decided that the work is not wanted.
    Discarded {
        /// Why.
        reason: Json,
    },
}

impl Outcome {
    /// The outcome with this status and document, as the history keeps them.
    pub fn new(status: FinalStatus, document: Json) -> Self {
        match status {
            FinalStatus::Completed => Self::Completed { result: document },
            FinalStatus::DeadLetter => Self::DeadLetter { error: document },
            FinalStatus::Discarded => Self::Discarded { reason: document },
        }
    }

    /// `status_final`.
    pub fn status(&self) -> FinalStatus {
        match self {
            Self::Completed { .. } => FinalStatus::Completed,
            Self::DeadLetter { .. } => FinalStatus::DeadLetter,
            Self::Discarded { .. } => FinalStatus::Discarded,
        }
    }

    /// The column `result`: the result, the last error or the reason.
    pub fn document(&self) -> &Json {
        match self {
            Self::Completed { result } => result,
            Self::DeadLetter { error } => error,
            Self::Discarded { reason } => reason,
        }
    }
}

/// `status_final` of a finished job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinalStatus {
    /// `completed`
    Completed,
    /// `dead_letter`
    DeadLetter,
    /// `discarded`
    Discarded,
}

impl FinalStatus {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Completed, Self::DeadLetter, Self::Discarded];

    /// The name in the history table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::DeadLetter => "dead_letter",
            Self::Discarded => "discarded",
        }
    }
}

impl fmt::Display for FinalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FinalStatus {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let expected = "completed, dead_letter or discarded";
        let status = Self::ALL.into_iter().find(|status| status.as_str() == text);
        status.ok_or(Invalid::new("status_final", Problem::Malformed { expected }))
    }
}

/// A job wherever it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// In the queue.
    Live(Job),
    /// In the history.
    Finished(FinishedJob),
}

impl Record {
    /// Its number.
    pub fn id(&self) -> JobId {
        match self {
            Self::Live(job) => job.id,
            Self::Finished(job) => job.id,
        }
    }

    /// The job, if it is in the queue.
    pub fn live(self) -> Option<Job> {
        match self {
            Self::Live(job) => Some(job),
            Self::Finished(_) => None,
        }
    }

    /// The job, if it is in the history.
    pub fn finished(self) -> Option<FinishedJob> {
        match self {
            Self::Live(_) => None,
            Self::Finished(job) => Some(job),
        }
    }
}
