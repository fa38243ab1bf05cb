//! What can go wrong, by what the caller can do about it.

use std::error::Error as StdError;

use thiserror::Error;

use crate::invalid::Invalid;
use crate::job::{JobId, Receipt};

/// Why a store did not do what it was asked. Expected outcomes are values, not errors.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The input was refused before anything was done. Mend it.
    #[error(transparent)]
    Invalid(#[from] Invalid),

    /// There is no such job.
    #[error("job {0} does not exist")]
    NotFound(JobId),

    /// The state of things does not allow it; nothing was done. Look again.
    #[error("conflict: {reason}")]
    Conflict {
        /// What is in the way.
        reason: String,
    },

    /// The receipt is stale: somebody else decides about the job. Undo what was done for it.
    #[error("{operation}: the lease {receipt} is lost")]
    LeaseLost {
        /// What was asked.
        operation: &'static str,
        /// With which receipt.
        receipt: Receipt,
    },

    /// A transactional operation was called on a connection with no open transaction; nothing was done. Open one. If one was opened, the
    /// database has ended it: by a `COMMIT` or `ROLLBACK`, a statement that commits by itself, or a deadlock. Then do the work again.
    #[error("{operation} needs an open transaction: none was opened, or the database has ended it")]
    NoTransaction {
        /// What was asked.
        operation: &'static str,
    },

    /// This backend cannot do that. Ask its capabilities.
    #[error("this backend does not support {feature}")]
    Unsupported {
        /// What it cannot do.
        feature: &'static str,
    },

    /// The store cannot be reached or is overloaded; nothing was done. Try again.
    #[error("{operation}: the store is unavailable")]
    Unavailable {
        /// What was asked.
        operation: &'static str,
        /// What happened.
        #[source]
        source: BoxError,
    },

    /// The answer was lost: it was done or it was not. Neither repeat it nor give up blindly: of a verdict ask
    /// [`Store::receipts`](crate::Store::receipts); an enqueue can be repeated if its jobs have unique keys; leases
    /// that were granted to nobody come back when they have passed.
    #[error("{operation}: the answer was lost")]
    Unknown {
        /// What was asked.
        operation: &'static str,
        /// What happened.
        #[source]
        source: BoxError,
    },

    /// Something is stored that this version did not write.
    #[error("corrupt data: {what}")]
    Corrupt {
        /// What, and where.
        what: String,
    },

    /// Anything else that the database said.
    #[error("{operation} failed")]
    Backend {
        /// What was asked.
        operation: &'static str,
        /// What happened.
        #[source]
        source: BoxError,
    },
}

/// The source of [`StoreError::old_snapshot`].
#[derive(Debug, Error)]
#[error(
    "the transaction's snapshot is too old: roll back and run the transaction again; at REPEATABLE READ and above call lock_in as the first statement"
)]
struct OldSnapshot {
    source: BoxError,
}

/// The cause of an error, whatever the backend's driver calls it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// What an operation of a store answers.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

impl StoreError {
    /// See [`StoreError::LeaseLost`].
    pub fn lease_lost(operation: &'static str, receipt: Receipt) -> Self {
        Self::LeaseLost { operation, receipt }
    }

    /// See [`StoreError::Conflict`].
    pub fn conflict(reason: impl Into<String>) -> Self {
        Self::Conflict { reason: reason.into() }
    }

    /// See [`StoreError::Unavailable`].
    pub fn unavailable(operation: &'static str, source: impl Into<BoxError>) -> Self {
        Self::Unavailable { operation, source: source.into() }
    }

    /// [`StoreError::Unavailable`] because another transaction has the job's row locked: nothing was done; call again.
    pub fn row_locked(operation: &'static str) -> Self {
        Self::unavailable(operation, "another transaction has the job's row locked")
    }

    /// [`StoreError::Unavailable`] because the database refuses to write a row that was changed after the transaction took its
    /// snapshot: nothing was done. The source says what to do at REPEATABLE READ and SERIALIZABLE.
    pub fn old_snapshot(operation: &'static str, source: impl Into<BoxError>) -> Self {
        Self::unavailable(operation, OldSnapshot { source: source.into() })
    }

    /// See [`StoreError::Unknown`].
    pub fn unknown(operation: &'static str, source: impl Into<BoxError>) -> Self {
        Self::Unknown { operation, source: source.into() }
    }

    /// See [`StoreError::Backend`].
    pub fn backend(operation: &'static str, source: impl Into<BoxError>) -> Self {
        Self::Backend { operation, source: source.into() }
    }

    /// See [`StoreError::Corrupt`].
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }

    /// See [`StoreError::NoTransaction`].
    pub fn no_transaction(operation: &'static str) -> Self {
        Self::NoTransaction { operation }
    }

    /// See [`StoreError::Unsupported`].
    pub fn unsupported(feature: &'static str) -> Self {
        Self::Unsupported { feature }
    }

    /// Whether the answer was lost, so that it is not known what was done.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }

    /// Whether nothing was done and the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Whether a stale receipt was shown.
    pub fn is_lease_lost(&self) -> bool {
        matches!(self, Self::LeaseLost { .. })
    }
}
