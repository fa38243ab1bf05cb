//! What becomes of a leased job.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::bounded::Delay;
use crate::invalid::Invalid;
use crate::job::Receipt;
use crate::json::Json;

/// What is to become of a leased job.
///
/// ```
/// use leasehold_core::Verdict;
/// use std::time::Duration;
///
/// let verdicts = [
///     Verdict::done(),
///     Verdict::done_with(&"3 mails sent")?,
///     Verdict::retry("the mail server is down"),
///     Verdict::retry_after("try when the limit is over", Duration::from_secs(60))?,
///     Verdict::snooze(Duration::from_secs(5))?,
///     Verdict::dead("there is no such user"),
///     Verdict::discard("the order was cancelled"),
/// ];
/// # Ok::<(), leasehold_core::Invalid>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The work was done, with this result.
    Done(Json),
    /// It failed; try again, or make it a dead letter if the attempts are spent.
    Retry {
        /// What went wrong.
        error: Json,
        /// When to try again.
        after: RetryAfter,
    },
    /// Not now: put it back, and the attempt was none.
    Snooze {
        /// How long to wait.
        after: Delay,
    },
    /// It will never work: make it a dead letter at once.
    Dead {
        /// What went wrong.
        error: Json,
    },
    /// The work is no longer wanted.
    Discard {
        /// Why.
        reason: Json,
    },
}

impl Verdict {
    /// Done, with nothing to tell (the result is `null`).
    pub fn done() -> Self {
        Self::Done(Json::null())
    }

    /// Done, with a result.
    ///
    /// # Errors
    /// [`Invalid`] with the field `result`.
    pub fn done_with<T: Serialize + ?Sized>(result: &T) -> Result<Self, Invalid> {
        Json::new(result).map(Self::Done).map_err(|invalid| invalid.of("result"))
    }

    /// Failed; try again as the queue's backoff says.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::Retry { error: Json::error(error), after: RetryAfter::Backoff }
    }

    /// Failed; try again after `delay`.
    ///
    /// # Errors
    /// [`Invalid`] with the field `delay`.
    pub fn retry_after(error: impl fmt::Display, delay: Duration) -> Result<Self, Invalid> {
        Ok(Self::Retry { error: Json::error(error), after: RetryAfter::Delay(Delay::new(delay)?) })
    }

    /// Put it back for `delay` without spending the attempt.
    ///
    /// # Errors
    /// [`Invalid`] with the field `delay`.
    pub fn snooze(delay: Duration) -> Result<Self, Invalid> {
        Ok(Self::Snooze { after: Delay::new(delay)? })
    }

    /// Failed for good.
    pub fn dead(error: impl fmt::Display) -> Self {
        Self::Dead { error: Json::error(error) }
    }

    /// Not wanted any more.
    pub fn discard(reason: impl fmt::Display) -> Self {
        Self::Discard {
            reason: Json::new(&reason.to_string().replace('\0', "\u{fffd}")).unwrap_or(Json::null()),
        }
    }

    /// Put it back, available now, attempt refunded: what [`Store::release`](crate::Store::release) does.
    pub fn release() -> Self {
        Self::Snooze { after: Delay::ZERO }
    }
}

/// When a failed job is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryAfter {
    /// As the queue's backoff says.
    Backoff,
    /// After this long.
    Delay(Delay),
}

/// Proof that a store has applied a verdict.
///
/// Only a store can make one (through [`backend`](crate::backend)), so that a handler which must *return* it cannot
/// forget to settle. In a transaction it is a proof for after the commit.
///
/// ```compile_fail
/// # use leasehold_core::{Fate, Receipt, Settled};
/// fn pretend(receipt: Receipt) -> Settled {
///     Settled { receipt, fate: Fate::Completed } // the fields are private, and there is no constructor
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[must_use = "return it from the handler: it is the proof that the job was settled"]
pub struct Settled {
    receipt: Receipt,
    fate: Fate,
}

impl Settled {
    pub(crate) fn new(receipt: Receipt, fate: Fate) -> Self {
        Self { receipt, fate }
    }

    /// The receipt, now stale.
    pub fn receipt(&self) -> Receipt {
        self.receipt
    }

    /// What became of the job.
    pub fn fate(&self) -> Fate {
        self.fate
    }
}

/// What became of a settled job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// In the history, done.
    Completed,
    /// Back in the queue after a failure.
    Retrying {
        /// When it is available.
        available_at: DateTime<Utc>,
    },
    /// Back in the queue without harm.
    Snoozed {
        /// When it is available.
        available_at: DateTime<Utc>,
    },
    /// In the history, failed for good.
    DeadLettered,
    /// In the history, not wanted.
    Discarded,
}

/// The answer to one verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SettleOutcome {
    /// It was applied.
    Settled(Settled),
    /// The receipt is stale: nothing was changed.
    LeaseLost,
    /// Another transaction has the job's row locked. Nothing was changed; ask again later.
    Pending,
}

impl SettleOutcome {
    /// The proof, if the verdict was applied.
    pub fn settled(self) -> Option<Settled> {
        match self {
            Self::Settled(settled) => Some(settled),
            Self::LeaseLost | Self::Pending => None,
        }
    }

    /// Whether the receipt was stale.
    pub fn is_lost(&self) -> bool {
        *self == Self::LeaseLost
    }

    /// Whether another transaction has the job's row locked, so that the verdict must be sent again.
    pub fn is_pending(&self) -> bool {
        *self == Self::Pending
    }
}

/// The answer to one heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HeartbeatOutcome {
    /// The lease now ends at this time.
    Extended {
        /// By the store's clock.
        until: DateTime<Utc>,
        /// How long that is from the store's now: what the holder counts down by its own monotonic clock, from the
        /// moment it sent the heartbeat.
        left: Duration,
    },
    /// An open transaction has the job locked, perhaps the holder's own: nothing was changed, and the lease ends when it
    /// did. While the lock lasts, no reclaim takes the job, also if the lease has passed.
    Pending,
    /// The lease has passed or the receipt is stale: nothing was changed. Stop the work.
    Lost,
}

/// What a receipt is worth now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReceiptStatus {
    /// Good: nobody has settled, reclaimed or taken the job.
    Held {
        /// When the lease ends, or ended.
        until: DateTime<Utc>,
    },
    /// Stale: a verdict with this receipt counted, and the job is in its queue again, leased by nobody since.
    Requeued,
    /// Stale: a verdict with this receipt ended the job.
    Finished {
        /// How it ended.
        status: crate::FinalStatus,
    },
    /// Stale: the job was reclaimed, taken away or leased again since, or it left no trace (pruned, or ended in a
    /// queue that archives [`DeadOnly`](crate::Archive::DeadOnly)).
    Gone,
}

impl ReceiptStatus {
    /// What `record`, the job wherever it is, makes of `receipt`. For backends.
    ///
    /// Whoever takes a job away from its holder raises the epoch, so that a job which is still in the receipt's epoch
    /// was settled with that very receipt if it has no lease.
    pub fn of(receipt: Receipt, record: Option<&crate::Record>) -> Self {
        match record {
            Some(crate::Record::Live(job)) if job.epoch == receipt.epoch => match &job.lease {
                Some(lease) => Self::Held { until: lease.until },
                None if job.epoch > crate::Epoch::ZERO => Self::Requeued,
                None => Self::Gone,
            },
            Some(crate::Record::Finished(job)) if job.epoch == receipt.epoch => {
                Self::Finished { status: job.outcome.status() }
            }
            _ => Self::Gone,
        }
    }
}
