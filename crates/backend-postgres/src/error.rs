//! What the database's errors mean to the caller.

use diesel::result::{DatabaseErrorKind, Error as DieselError};
use leasehold_core::{BoxError, StoreError};

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
    /// The server has given up on the statement, which left nothing: a deadlock, a lost race, a timeout.
    Again(BoxError),
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
            Self::Lost(source) | Self::Again(source) => StoreError::unavailable(operation, source),
            Self::Taken(source) | Self::Other(source) => StoreError::backend(operation, source),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }

    /// Whether the same statement may succeed at once.
    pub(crate) fn is_race(&self) -> bool {
        matches!(self, Self::Again(_) | Self::Taken(_))
    }
}

impl From<DieselError> for Failure {
    fn from(error: DieselError) -> Self {
        use DatabaseErrorKind::{
            ClosedConnection, ReadOnlyTransaction, SerializationFailure, UnableToSendCommand, UniqueViolation,
        };
        match &error {
            DieselError::DatabaseError(ClosedConnection | UnableToSendCommand, _) => Self::Lost(error.into()),
            DieselError::DatabaseError(SerializationFailure | ReadOnlyTransaction, _) => {
                Self::Again(error.into())
            }
            DieselError::DatabaseError(UniqueViolation, _) => Self::Taken(error.into()),
            // diesel-async keeps no SQLSTATE of these: only the words are left.
            DieselError::DatabaseError(_, information) => match information.message() {
                message if is_end_of_session(message) => Self::Lost(error.into()),
                message if is_given_up(message) => Self::Again(error.into()),
                message if message.contains("job_") && message.ends_with("does not exist") => {
                    let message = format!("{message}: was PgStore::migrate run?");
                    Self::Other(message.into())
                }
                _ => Self::Other(error.into()),
            },
            DieselError::BrokenTransactionManager => Self::Lost(error.into()),
            _ => Self::Other(error.into()),
        }
    }
}

/// SQLSTATE class 57P0: the server, or somebody on it, has ended the session.
fn is_end_of_session(message: &str) -> bool {
    ["terminating connection", "terminating background worker", "the database system is"]
        .iter()
        .any(|words| message.starts_with(words))
}

/// SQLSTATE 40P01, 55P03, 57014: the server has given up on this statement alone.
fn is_given_up(message: &str) -> bool {
    ["deadlock detected", "canceling statement due to", "could not obtain lock"]
        .iter()
        .any(|words| message.starts_with(words))
}
