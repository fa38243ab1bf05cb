//! Hints and events: what a store says without being asked.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use chrono::{DateTime, Utc};
use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::job::JobId;
use crate::name::QueueName;

/// Hints to look now. Any number of causes may come as one hint, and a hint may be lost. The stream ends only with its
/// store; one that had to reconnect gives a hint, since it may have missed some.
pub type Wakeups = Pin<Box<dyn Stream<Item = ()> + Send>>;

/// Events as they happen, or how many were missed.
pub type Events = Pin<Box<dyn Stream<Item = Result<Event, Lagged>> + Send>>;

/// Something that happened to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// In which queue.
    pub queue: QueueName,
    /// To which job.
    pub job: JobId,
    /// When, by the store's clock.
    pub at: DateTime<Utc>,
}

/// What happened to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// It was accepted into its queue.
    Enqueued,
    /// Somebody got a lease on it.
    Leased,
    /// It was completed or discarded.
    Settled,
    /// It went back to its queue, or was given another time: retry, snooze, release or an administrator's word.
    Retried,
    /// It became a dead letter.
    DeadLettered,
    /// Its lease passed and it went back to its queue.
    Reclaimed,
    /// It was a dead letter and went back to its queue.
    Redriven,
    /// Somebody showed a stale receipt for it. A heartbeat for a lease that has passed but was not reclaimed is none;
    /// whether one for a finished job, or one shown in a transaction, is told is left open.
    LeaseLost,
}

impl EventKind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Enqueued,
        Self::Leased,
        Self::Settled,
        Self::Retried,
        Self::DeadLettered,
        Self::Reclaimed,
        Self::Redriven,
        Self::LeaseLost,
    ];

    /// The kind with this [name](Self::as_str), if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// The name, as in metrics and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enqueued => "enqueued",
            Self::Leased => "leased",
            Self::Settled => "settled",
            Self::Retried => "retried",
            Self::DeadLettered => "dead_lettered",
            Self::Reclaimed => "reclaimed",
            Self::Redriven => "redriven",
            Self::LeaseLost => "lease_lost",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A subscriber was too slow and missed this many events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("missed {0} events")]
pub struct Lagged(pub u64);

/// A stream that never yields: what a store has that gives no hints.
pub(crate) struct Silence<T>(pub(crate) std::marker::PhantomData<fn() -> T>);

impl<T> Stream for Silence<T> {
    type Item = T;
    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<T>> {
        Poll::Pending
    }
}
