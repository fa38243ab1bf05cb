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
    /// The server takes no writes, at least not from this session: it is read-only, or has lost its cluster. Nothing was done.
    ReadOnly(BoxError),
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
            Self::Lost(source) | Self::Again(source) | Self::Late(source) | Self::ReadOnly(source) => {
                StoreError::unavailable(operation, source)
            }
            // Only a transaction of the caller's has a snapshot that it can do something about.
            Self::OldSnapshot(source) if operation.ends_with("_in") => {
                StoreError::old_snapshot(operation, source)
            }
            Self::OldSnapshot(source) => StoreError::unavailable(operation, source),
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

    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::ReadOnly(_))
    }

    /// Whether the same may succeed if it is done again from the start, at once.
    pub(crate) fn is_again(&self) -> bool {
        matches!(self, Self::Again(_) | Self::OldSnapshot(_))
    }

    /// Whether the transaction cannot be committed any more: its connection is gone, its server takes no writes, or the server has given up
    /// and may have undone the whole of it.
    pub(crate) fn breaks_transaction(&self) -> bool {
        matches!(
            self,
            Self::Lost(_) | Self::Again(_) | Self::OldSnapshot(_) | Self::Late(_) | Self::ReadOnly(_)
        )
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
                Self::ReadOnly(error.into()) // 1792
            }
            // diesel-async keeps no code of these: only the words are left. The store asks for English ones.
            DieselError::DatabaseError(_, information) => match information.message() {
                message if is_end_of_session(message) => Self::Lost(error.into()),
                message if is_late(message) => Self::Late(error.into()),
                message if message.starts_with("Record has changed since last read") => {
                    Self::OldSnapshot(error.into()) // 1020
                }
                message if is_given_up(message) => Self::Again(error.into()),
                message if is_read_only(message) => Self::ReadOnly(error.into()),
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

/// 1213: the server has given up on this statement or transaction alone. 3101 and 1180: the other members of a cluster have
/// refused the transaction when it was to be committed, or the storage engine has.
fn is_given_up(message: &str) -> bool {
    let is_refused_commit = message.starts_with("Got error") && message.ends_with("during COMMIT");
    is_refused_commit
        || ["Deadlock found", "Plugin instructed the server to rollback the current transaction"]
            .iter()
            .any(|words| message.starts_with(words))
}

/// 1290, 1836 and 3032: the server is read-only or offline. 1047 and 3100: it has lost its cluster, or is not yet a part of it. Galera says so of
/// some statements under other codes, always with the same words.
fn is_read_only(message: &str) -> bool {
    let is_running_so = message.contains("server is running with the --")
        && ["read-only option", "read_only option"].iter().any(|words| message.contains(words));
    is_running_so
        || message.to_ascii_lowercase().contains("not connected to primary component")
        || [
            "Running in read-only mode",
            "The server is currently in offline mode",
            "WSREP has not yet prepared node for application use",
            "Error on observer while running replication hook",
        ]
        .iter()
        .any(|words| message.starts_with(words))
}

/// 1146 and 1054: the tables, or a column or an index of them (1176), are not there.
fn is_missing(message: &str) -> bool {
    message.starts_with("Table '") && message.ends_with("doesn't exist")
        || message.starts_with("Unknown column '")
        || message.starts_with("Key '") && message.contains("' doesn't exist in table '")
}

/// Whether the server has broken a deadlock: 1213.
pub(crate) fn is_deadlock(failure: &Failure) -> bool {
    matches!(failure, Failure::Again(source) if source.to_string().contains("Deadlock found"))
}

#[cfg(test)]
mod tests {
    use diesel::result::{DatabaseErrorKind, Error};

    use super::Failure;

    fn of(message: &str) -> Failure {
        Error::DatabaseError(DatabaseErrorKind::Unknown, Box::new(message.to_owned())).into()
    }

    #[test]
    fn a_server_that_takes_no_writes_is_unavailable() {
        for message in [
            "The MySQL server is running with the --read-only option so it cannot execute this statement",
            "The MySQL server is running with the --super-read-only option so it cannot execute this statement",
            "The MariaDB server is running with the --read-only option so it cannot execute this statement",
            "The MySQL server is running with the --read_only option so it cannot execute this statement",
            "Running in read-only mode",
            "The server is currently in offline mode",
            "WSREP has not yet prepared node for application use",
            "Error while appending streaming replication fragment(provider status: Not connected to Primary Component)",
            "Error on observer while running replication hook 'before_commit'.",
        ] {
            assert!(matches!(of(message), Failure::ReadOnly(_)), "{message}");
            let told = of(message).told_in_doubt("enqueue");
            assert!(told.is_retryable() && !told.is_unknown(), "{message}: {told:?}");
        }
        let kind = DatabaseErrorKind::ReadOnlyTransaction;
        let message = "Cannot execute statement in a READ ONLY transaction".to_owned();
        assert!(matches!(Error::DatabaseError(kind, Box::new(message)).into(), Failure::ReadOnly(_)));
    }

    #[test]
    fn a_transaction_that_a_cluster_has_refused_is_done_again() {
        for message in [
            "Deadlock found when trying to get lock; try restarting transaction",
            "Plugin instructed the server to rollback the current transaction.",
            "Got error 149 - 'Lock deadlock; Retry transaction' during COMMIT",
        ] {
            assert!(matches!(of(message), Failure::Again(_)), "{message}");
        }
    }

    #[test]
    fn what_only_looks_alike_is_an_error_to_the_caller() {
        for message in [
            "The MySQL server is running with the --secure-file-priv option so it cannot execute this statement",
            "The MySQL server is running with the --skip-grant-tables option so it cannot execute this statement",
            "Got error 28 from storage engine",
            "Unknown command",
        ] {
            assert!(matches!(of(message), Failure::Other(_)), "{message}");
        }
    }
}
