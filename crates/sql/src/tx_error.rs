//! One error for a transaction in which both the store and the user's own statements can fail.

use leasehold_core::StoreError;

/// An error of the store or of the database, for code that runs both in one transaction.
///
/// diesel's `transaction` wants an error that can be made from its own, which a [`StoreError`] cannot. With this one `?`
/// works on either, and rolls back. An application with an error of its own needs no more than these two conversions.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum TxError {
    /// The store's.
    Store(#[from] StoreError),
    /// diesel's: of a statement, or of the commit.
    Database(#[from] diesel::result::Error),
}

impl TxError {
    /// Whether the job was no longer leased with the receipt: the transaction was undone because another has the job.
    pub fn is_lease_lost(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_lease_lost())
    }
}
