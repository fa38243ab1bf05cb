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
const REFUSALS: [&str; 12] = [
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
];

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
    match (error.kind(), effect) {
        (ErrorKind::Io, Effect::Read) => StoreError::unavailable(operation, error),
        // The command was sent, or is as good as sent.
        (ErrorKind::Io | ErrorKind::Parse, Effect::Write) => StoreError::unknown(operation, error),
        _ => StoreError::backend(operation, error),
    }
}

/// Whether nothing was done: the server said no, or nobody could be asked.
pub(crate) fn is_refusal(error: &RedisError) -> bool {
    error.is_connection_refusal()
        || error.kind() == ErrorKind::ClusterConnectionNotFound
        || error.code().is_some_and(|code| REFUSALS.contains(&code))
}
