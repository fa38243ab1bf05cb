//! The connections to the masters of a cluster.
//!
//! As with a single server, one that was not used for a while is tried out before a write is sent on it, by a question that changes nothing. It names a key
//! of the slot, since the driver asks any other node while it makes a connection again: only the right one has an answer.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, SlotAddr};
use redis::{Arg, Cmd, ErrorKind, RedisError};

use crate::single::not_sent;

/// How often a connection is tried out, and how long to wait in between: doubled each time.
const TRIALS: u32 = 8;
const WAIT: Duration = Duration::from_millis(5);

pub(crate) struct Cluster {
    connection: ClusterConnection,
    rest: Duration,
    /// When the master of a slot has answered last.
    used: Mutex<HashMap<Route, Instant>>,
}

impl Cluster {
    pub(crate) fn new(connection: ClusterConnection, rest: Duration) -> Self {
        Self { connection, rest, used: Mutex::default() }
    }

    pub(crate) fn connection(&self) -> ClusterConnection {
        self.connection.clone()
    }

    fn used(&self) -> MutexGuard<'_, HashMap<Route, Instant>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees that the master of this key answers.
    ///
    /// # Errors
    /// It does not. Nothing was sent.
    pub(crate) async fn try_out(&self, key: &[u8]) -> Result<(), RedisError> {
        let used = self.used().get(&route(key)).copied();
        if used.is_some_and(|used| used.elapsed() < self.rest) {
            return Ok(());
        }
        let (mut trial, mut wait) = (1, WAIT);
        loop {
            let answer = redis::cmd("EXISTS").arg(key).query_async::<i64>(&mut self.connection()).await;
            match answer {
                Err(error) if is_elsewhere(&error) && trial < TRIALS => tokio::time::sleep(wait).await,
                Err(error) if error.is_io_error() => return Err(not_sent(&error)),
                Err(error) if is_elsewhere(&error) => return Err(error),
                // Whatever it says to that, it is there.
                _ => return Ok(()),
            }
            (trial, wait) = (trial + 1, wait * 2);
        }
    }

    /// Learns from an answer whether the connection is fit for the next command.
    pub(crate) fn judge<T>(&self, key: &[u8], answer: &Result<T, RedisError>) {
        match answer {
            Err(error) if is_elsewhere(error) => drop(self.used().remove(&route(key))),
            _ => drop(self.used().insert(route(key), Instant::now())),
        }
    }
}

fn route(key: &[u8]) -> Route {
    Route::with_key(key, SlotAddr::Master)
}

/// Whether the right node has not answered.
fn is_elsewhere(error: &RedisError) -> bool {
    error.is_io_error()
        || error.kind() == ErrorKind::ClusterConnectionNotFound
        || matches!(error.code(), Some("MOVED"))
}

/// The first key of a command: all of ours begin with a tag, and no other word does.
pub(crate) fn key(command: &Cmd) -> Option<&[u8]> {
    command.args_iter().find_map(|arg| match arg {
        Arg::Simple(word) if word.starts_with(b"{") => Some(word),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_command_is_found() {
        let mut command = redis::cmd("EVALSHA");
        command.arg("0123").arg(1).arg("{p:3}").arg("{not a key}");
        assert_eq!(key(&command), Some(&b"{p:3}"[..]));
        assert_eq!(key(&redis::cmd("TIME")), None);
    }
}
