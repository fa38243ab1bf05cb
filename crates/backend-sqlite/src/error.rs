//! What the database's errors mean to the caller.

use diesel::result::{DatabaseErrorKind, Error as DieselError};
use leasehold_core::{BoxError, StoreError};

/// Why an operation failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Somebody else was writing for longer than we were to wait.
    Busy(BoxError),
    /// The whole transaction is gone, with whatever else was in it: a full disk, an error of the file system.
    TransactionLost(BoxError),
    /// A row with this key was there already.
    Taken(BoxError),
    /// An answer that is an error to the caller.
    Told(StoreError),
    /// Anything else.
    Other(BoxError),
}

impl Failure {
    /// What the caller is told of it.
    pub(crate) fn told(self, operation: &'static str) -> StoreError {
        match self {
            Self::Busy(source) => StoreError::unavailable(operation, source),
            Self::Told(error) => error,
            Self::TransactionLost(source) | Self::Taken(source) | Self::Other(source) => {
                StoreError::backend(operation, source)
            }
        }
    }

    /// The failure of a savepoint: there is no transaction any more.
    pub(crate) fn transaction_lost(self) -> Self {
        match self {
            Self::Busy(source)
            | Self::Taken(source)
            | Self::Other(source)
            | Self::TransactionLost(source) => Self::TransactionLost(source),
            Self::Told(error) => Self::TransactionLost(error.into()),
        }
    }

    /// What happened, in words.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Busy(source)
            | Self::TransactionLost(source)
            | Self::Taken(source)
            | Self::Other(source) => source.to_string(),
            Self::Told(error) => error.to_string(),
        }
    }

    /// Whether a message is of SQLITE_BUSY or SQLITE_LOCKED, with all that they are extended to.
    pub(crate) fn is_locked(message: &str) -> bool {
        ["database is locked", "database table is locked", "database schema is locked"]
            .iter()
            .any(|words| message.starts_with(words))
    }

    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(_))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Told(error)
    }
}

impl From<DieselError> for Failure {
    fn from(error: DieselError) -> Self {
        // diesel keeps no code of these: only the words are left.
        match &error {
            DieselError::DatabaseError(DatabaseErrorKind::UniqueViolation, _) => Self::Taken(error.into()),
            DieselError::DatabaseError(_, information) => match information.message() {
                message if Self::is_locked(message) => Self::Busy(error.into()),
                message if is_missing(message) => {
                    let message = format!("{message}: was SqliteStore::migrate run?");
                    Self::Other(message.into())
                }
                _ => Self::Other(error.into()),
            },
            _ => Self::Other(error.into()),
        }
    }
}

/// Whether a table or a column is not there.
fn is_missing(message: &str) -> bool {
    message.starts_with("no such table")
        || message.starts_with("no such column")
        || message.contains(" has no column named ")
}
