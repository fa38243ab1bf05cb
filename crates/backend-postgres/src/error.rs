//! What the database's errors mean to the caller.
//!
//! tokio-postgres and sqlx tell the SQLSTATE. diesel-async keeps it to itself and tells a kind, which is `Unknown` for most states: of those only the
//! words are left. On the store's own sessions they are English if the role may set that ([`language`](crate::language)).

use std::time::Duration;

use diesel::result::{DatabaseErrorKind, Error as DieselError};
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use leasehold_core::{BoxError, StoreError};

/// How long a session that has just answered with an error may take to answer again.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether an operation may have changed something when its answer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Read,
    Write,
}

/// Why a statement failed, whatever driver it was sent by.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection is gone, and with it the answer.
    Lost(BoxError),
    /// The connection is gone, and with it a transaction of the store's that was not committed yet: nothing was done.
    Undone(BoxError),
    /// The server has given up on the statement, which left nothing: a deadlock, a lost race.
    Again(BoxError),
    /// The same, because a row was changed after the transaction took its snapshot: only above READ COMMITTED.
    OldSnapshot(BoxError),
    /// The same, but it would take as long again: a lock that did not come in time, a timeout, a cancelled statement.
    Late(BoxError),
    /// The server takes no writes, at least not from this session: it is a standby, or has become one. Nothing was done.
    ReadOnly(BoxError),
    /// No transaction is open on the user's connection, whatever its driver counts. Nothing was done.
    NoTransaction,
    /// A row with this key was there already.
    Taken(BoxError),
    /// Anything else.
    Other(BoxError),
}

impl Failure {
    /// What the caller is told of it.
    pub(crate) fn told(self, operation: &'static str, effect: Effect) -> StoreError {
        match self {
            Self::Lost(source) if effect == Effect::Write => StoreError::unknown(operation, source),
            Self::Lost(source)
            | Self::Undone(source)
            | Self::Again(source)
            | Self::Late(source)
            | Self::ReadOnly(source) => StoreError::unavailable(operation, source),
            // Only a transaction of the caller's has a snapshot that it can do something about.
            Self::OldSnapshot(source) if operation.ends_with("_in") => {
                StoreError::old_snapshot(operation, source)
            }
            Self::OldSnapshot(source) => StoreError::unavailable(operation, source),
            Self::NoTransaction => StoreError::no_transaction(operation),
            Self::Taken(source) | Self::Other(source) => StoreError::backend(operation, source),
        }
    }

    /// The same of a statement before the COMMIT of a transaction of the store's.
    pub(crate) fn before_commit(self) -> Self {
        match self {
            Self::Lost(source) => Self::Undone(source),
            other => other,
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }

    pub(crate) fn has_no_transaction(&self) -> bool {
        matches!(self, Self::NoTransaction)
    }

    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::ReadOnly(_))
    }

    /// Whether the same statement may succeed at once.
    pub(crate) fn is_race(&self) -> bool {
        matches!(self, Self::Again(_) | Self::OldSnapshot(_) | Self::Taken(_))
    }
}

/// Why a statement on `conn` failed. If neither its kind nor its words are known, they may be in another language, and the server may have ended the session.
/// Then the session is asked whether it still answers: an empty statement is answered in a failed transaction, too.
pub(crate) async fn of_statement(mut conn: &AsyncPgConnection, error: DieselError) -> Failure {
    let is_unclear = matches!(&error, DieselError::DatabaseError(DatabaseErrorKind::Unknown, _));
    match Failure::from(error) {
        Failure::Other(source) if is_unclear => {
            match tokio::time::timeout(PATIENCE, conn.batch_execute("")).await {
                Ok(Ok(())) => Failure::Other(source),
                Ok(Err(_)) | Err(_) => Failure::Lost(source),
            }
        }
        failure => failure,
    }
}

impl From<DieselError> for Failure {
    fn from(error: DieselError) -> Self {
        use DatabaseErrorKind::{
            ClosedConnection, ReadOnlyTransaction, SerializationFailure, UnableToSendCommand, UniqueViolation,
        };
        match &error {
            DieselError::DatabaseError(ClosedConnection | UnableToSendCommand, _) => Self::Lost(error.into()),
            DieselError::DatabaseError(SerializationFailure, _) => Self::OldSnapshot(error.into()),
            DieselError::DatabaseError(ReadOnlyTransaction, _) => Self::ReadOnly(error.into()),
            DieselError::DatabaseError(UniqueViolation, _) => Self::Taken(error.into()),
            // diesel-async keeps no SQLSTATE of these: only the words are left.
            DieselError::DatabaseError(_, information) => match information.message() {
                message if is_end_of_session(message) => Self::Lost(error.into()),
                "deadlock detected" => Self::Again(error.into()),
                message if is_late(message) => Self::Late(error.into()),
                message if is_missing(message) => Self::missing(message),
                _ => Self::Other(error.into()),
            },
            DieselError::BrokenTransactionManager => Self::Lost(error.into()),
            _ => Self::Other(error.into()),
        }
    }
}

#[cfg(feature = "tokio-postgres")]
impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.code().map(|state| state.code().to_owned()) {
            Some(state) => Self::of_state(&state, error.into()),
            None if error.is_closed() || is_broken(&error) => Self::Lost(error.into()),
            None => Self::Other(error.into()),
        }
    }
}

/// Whether reading or writing has failed. What cannot be put into a message was never sent.
#[cfg(feature = "tokio-postgres")]
fn is_broken(error: &tokio_postgres::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| cause.kind() != std::io::ErrorKind::InvalidInput)
}

#[cfg(feature = "sqlx")]
impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error::{Database, Io, PoolClosed, Protocol, Tls, WorkerCrashed};
        match &error {
            Database(answer) => {
                let state = answer.code().unwrap_or_default().into_owned();
                Self::of_state(&state, error.into())
            }
            Io(_) | Tls(_) | Protocol(_) | PoolClosed | WorkerCrashed => Self::Lost(error.into()),
            _ => Self::Other(error.into()),
        }
    }
}

impl Failure {
    /// What the server means by a SQLSTATE.
    #[cfg(any(feature = "tokio-postgres", feature = "sqlx"))]
    fn of_state(state: &str, error: BoxError) -> Self {
        match state {
            // Of a session that idled in its transaction for too long, too.
            "57P01" | "57P02" | "57P03" | "57P04" | "57P05" | "25P03" | "25P04" => Self::Lost(error),
            _ if state.starts_with("08") => Self::Lost(error),
            "40001" => Self::OldSnapshot(error),
            "40P01" => Self::Again(error),
            "25006" => Self::ReadOnly(error),
            "25P01" => Self::NoTransaction,
            "55P03" | "57014" => Self::Late(error),
            "23505" => Self::Taken(error),
            "3F000" | "42883" | "42P01" => Self::missing(with_causes(&*error)),
            _ => Self::Other(error),
        }
    }
}

impl Failure {
    /// The tables and functions are not there, or not all of them.
    fn missing(message: impl std::fmt::Display) -> Self {
        Self::Other(format!("{message}: was PgStore::migrate run?").into())
    }
}

/// The error and its causes: tokio-postgres says no more than `db error` itself.
#[cfg(any(feature = "tokio-postgres", feature = "sqlx"))]
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// SQLSTATE class 57P0: the server, or somebody on it, has ended the session.
fn is_end_of_session(message: &str) -> bool {
    ["terminating connection", "terminating background worker", "the database system is"]
        .iter()
        .any(|words| message.starts_with(words))
}

/// SQLSTATE 3F000, 42883, 42P01: the tables and functions are not there, or not all of them.
fn is_missing(message: &str) -> bool {
    let things = ["schema ", "function ", "relation ", "column "];
    message.ends_with("does not exist") && things.iter().any(|thing| message.starts_with(thing))
}

/// SQLSTATE 55P03, 57014: a lock or the end did not come in time, or somebody has cancelled the statement.
fn is_late(message: &str) -> bool {
    ["canceling statement due to", "could not obtain lock"].iter().any(|words| message.starts_with(words))
}

#[cfg(all(test, any(feature = "tokio-postgres", feature = "sqlx")))]
mod tests {
    use super::Failure;

    #[test]
    fn a_sqlstate_says_what_the_caller_can_do() {
        let of = |state| Failure::of_state(state, state.into());
        for state in ["08006", "08P01", "57P01", "57P02", "57P03", "25P03"] {
            assert!(matches!(of(state), Failure::Lost(_)), "{state}");
        }
        assert!(matches!(of("40001"), Failure::OldSnapshot(_)));
        assert!(matches!(of("40P01"), Failure::Again(_)));
        assert!(matches!(of("25006"), Failure::ReadOnly(_)));
        assert!(matches!(of("25P01"), Failure::NoTransaction));
        for state in ["55P03", "57014"] {
            assert!(matches!(of(state), Failure::Late(_)), "{state}");
        }
        assert!(matches!(of("23505"), Failure::Taken(_)));
        for state in ["", "23503", "25P02", "42P01", "XX000"] {
            assert!(matches!(of(state), Failure::Other(_)), "{state}");
        }
    }
}
