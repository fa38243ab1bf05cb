//! What the database's errors mean to the caller.

use diesel::result::{DatabaseErrorKind, Error as DieselError};
use leasehold_core::{BoxError, StoreError};

/// Why an operation failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection is gone, and with it the answer.
    Lost(BoxError),
    /// The server has given up on the transaction, or on a statement of it: a deadlock, or it takes no writes at the moment.
    Again(BoxError),
    /// The same, because a row was changed after the transaction took its snapshot: MariaDB above READ COMMITTED, with
    /// `innodb_snapshot_isolation`.
    OldSnapshot(BoxError),
    /// The same, but it would take as long again: a lock that did not come in time, a statement that took too long or was ended.
    Late(BoxError),
    /// A row with this key was there already.
    Taken(BoxError),
    /// An answer that is an error to the caller.
    Told(StoreError),
    /// Anything else.
    Other(BoxError),
}

impl Failure {
    /// What the caller is told of it, if nothing can have been done.
    pub(crate) fn told(self, operation: &'static str) -> StoreError {
        match self {
            Self::Lost(source) | Self::Again(source) | Self::Late(source) => {
                StoreError::unavailable(operation, source)
            }
            Self::OldSnapshot(source) => StoreError::old_snapshot(operation, source),
            Self::Taken(source) | Self::Other(source) => StoreError::backend(operation, source),
            Self::Told(error) => error,
        }
    }

    /// What the caller is told of it, if it was on its way to be done.
    pub(crate) fn told_in_doubt(self, operation: &'static str) -> StoreError {
        match self {
            Self::Lost(source) => StoreError::unknown(operation, source),
            failure => failure.told(operation),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }

    /// Whether the same may succeed if it is done again from the start, at once.
    pub(crate) fn is_again(&self) -> bool {
        matches!(self, Self::Again(_) | Self::OldSnapshot(_))
    }

    /// Whether the server has given up, and may have undone the whole transaction.
    pub(crate) fn is_given_up(&self) -> bool {
        matches!(self, Self::Again(_) | Self::OldSnapshot(_) | Self::Late(_))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Told(error)
    }
}

impl From<DieselError> for Failure {
    fn from(error: DieselError) -> Self {
        match &error {
            DieselError::DatabaseError(DatabaseErrorKind::UniqueViolation, _) => Self::Taken(error.into()),
            DieselError::DatabaseError(DatabaseErrorKind::ReadOnlyTransaction, _) => {
                Self::Again(error.into())
            }
            // diesel-async keeps no code of these: only the words are left. The store asks for English ones.
            DieselError::DatabaseError(_, information) => match information.message() {
                message if is_end_of_session(message) => Self::Lost(error.into()),
                message if is_late(message) => Self::Late(error.into()),
                message if message.starts_with("Record has changed since last read") => {
                    Self::OldSnapshot(error.into()) // 1020
                }
                message if is_given_up(message) => Self::Again(error.into()),
                message if is_missing(message) => {
                    let message = format!("{message}: was MysqlStore::migrate run?");
                    Self::Other(message.into())
                }
                _ => Self::Other(error.into()),
            },
            DieselError::BrokenTransactionManager => Self::Lost(error.into()),
            _ => Self::Other(error.into()),
        }
    }
}

/// Errors of the driver, which leave the connection in nobody knows what state, and those by which the server, or somebody on it,
/// ends a session: 1053, 1927, 4031.
fn is_end_of_session(message: &str) -> bool {
    [
        "Input/output error",
        "Driver error",
        "Other error",
        "Server shutdown in progress",
        "Connection was killed",
        "The client was disconnected by the server",
    ]
    .iter()
    .any(|words| message.starts_with(words))
}

/// 1205, 1317, 3024 and MariaDB's 1969: a lock did not come in time, or the statement was ended.
fn is_late(message: &str) -> bool {
    ["Lock wait timeout exceeded", "Query execution was interrupted"]
        .iter()
        .any(|words| message.starts_with(words))
}

/// 1213: the server has given up on this transaction alone. 1290 and 1836: it takes no writes at the
/// moment.
fn is_given_up(message: &str) -> bool {
    [
        "Deadlock found",
        "The MySQL server is running with the --read-only option",
        "The MySQL server is running with the --super-read-only option",
        "The MariaDB server is running with the --read-only option",
        "Running in read-only mode",
    ]
    .iter()
    .any(|words| message.starts_with(words))
}

/// 1146: the tables are not there.
fn is_missing(message: &str) -> bool {
    message.starts_with("Table '") && message.ends_with("doesn't exist")
}

/// Whether the server has broken a deadlock: 1213.
pub(crate) fn is_deadlock(failure: &Failure) -> bool {
    matches!(failure, Failure::Again(source) if source.to_string().contains("Deadlock found"))
}
