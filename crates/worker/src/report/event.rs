//! What a worker tells those who listen.

use std::time::Duration;

use leasehold_core::{Fate, JobId, Kind, QueueName, Receipt, Reclaimed};

/// Something that happened in a worker.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum WorkerEvent {
    /// A job was leased, and its handler starts.
    Leased {
        /// Which job.
        job: JobId,
        /// From which queue.
        queue: QueueName,
        /// Of which kind.
        kind: Kind,
        /// Which attempt this is, from 1 on.
        attempt: u32,
    },
    /// A job was settled, by the worker or by its handler.
    Settled {
        /// Which job.
        job: JobId,
        /// From which queue.
        queue: QueueName,
        /// Of which kind.
        kind: Kind,
        /// What became of it.
        fate: Fate,
        /// How long its handler took.
        took: Duration,
    },
    /// A handler failed otherwise than by returning an error.
    Failed {
        /// Which job.
        job: JobId,
        /// Of which kind.
        kind: Kind,
        /// How.
        how: FailureKind,
    },
    /// A lease was lost while its handler was running, or its verdict was refused.
    LeaseLost {
        /// Which lease.
        receipt: Receipt,
        /// How that was seen.
        how: &'static str,
    },
    /// A transactional handler returned its proof, but the transaction was not committed. The job is tried again.
    NotCommitted {
        /// Which job.
        job: JobId,
        /// Of which kind.
        kind: Kind,
    },
    /// Somebody's lease had passed, and this worker has taken it away.
    Reclaimed(Reclaimed),
    /// The store does not answer.
    StoreDown,
    /// The store answers again.
    StoreUp,
    /// No more jobs are claimed.
    Stopping,
}

/// How a handler failed otherwise than by returning an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// It panicked.
    Panic,
    /// It took longer than its timeout.
    Timeout,
    /// There is no handler for jobs of this kind.
    UnknownKind,
    /// The payload is not what the handler takes.
    Undecodable,
    /// A layer refused the job.
    Layer,
}

impl FailureKind {
    /// Whether the handler was ended in the middle of its work.
    pub(crate) fn is_given_up(self) -> bool {
        matches!(self, Self::Panic | Self::Timeout)
    }

    /// The name, as in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::Timeout => "timeout",
            Self::UnknownKind => "unknown_kind",
            Self::Undecodable => "undecodable",
            Self::Layer => "layer",
        }
    }
}
