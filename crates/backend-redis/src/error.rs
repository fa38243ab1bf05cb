//! What the server or the connection said, by what the caller can do about it.

use leasehold_core::StoreError;
use redis::{ErrorKind, RedisError};

/// Whether something may have been done when no answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It only looks.
    Read,
    /// It changes something.
    Write,
}

/// The first words of refusals: nothing was done, and the same may succeed later.
const REFUSALS: [&str; 13] = [
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MOVED",
    "ASK",
    "READONLY",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "NOSCRIPT",
    "GONE",
];

/// What can be done about a server that does not know the store's user.
const STRANGER: &str = "the server does not accept the user and password of the store's address: let it accept them again, and the store goes on \
     by itself, or connect a new store with those that hold now";

/// What can be done about a user who may not do what the store must do.
const RIGHTS: &str = "the store's user lacks a right: grant what docs/redis.md lists";

/// An error with what can be done about it.
#[derive(Debug, thiserror::Error)]
#[error("{advice}")]
struct Advised {
    advice: &'static str,
    source: RedisError,
}

/// The error of `operation`.
pub(crate) fn failed(operation: &'static str, effect: Effect, error: RedisError) -> StoreError {
    if error.code() == Some("FULL") {
        return StoreError::conflict(
            "the prefix has as many queues as can be at once: 999999, spread over its shards",
        );
    }
    if is_refusal(&error) {
        return StoreError::unavailable(operation, error);
    }
    if is_stranger(&error) {
        return StoreError::unavailable(operation, Advised { advice: STRANGER, source: error });
    }
    if error.code() == Some("NOPERM") {
        return StoreError::backend(operation, Advised { advice: RIGHTS, source: error });
    }
    match (error.kind(), effect) {
        (ErrorKind::Io, Effect::Read) => StoreError::unavailable(operation, error),
        // The command was sent, or is as good as sent.
        (ErrorKind::Io | ErrorKind::Parse, Effect::Write) => StoreError::unknown(operation, error),
        _ => StoreError::backend(operation, error),
    }
}

/// Whether the server does not know the user: nothing was done, and it may be told of the user again.
pub(crate) fn is_stranger(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

/// Whether nothing was done: the server said no, or nobody could be asked.
pub(crate) fn is_refusal(error: &RedisError) -> bool {
    error.is_connection_refusal()
        || error.kind() == ErrorKind::ClusterConnectionNotFound
        || error.code().is_some_and(|code| REFUSALS.contains(&code))
}
