//! The connection to one server.
//!
//! A server, a proxy or a firewall may have closed it while nobody used it, and a command sent then is lost, or was never sent: nobody can say. So after a
//! rest, and after a loss, the server is asked for a sign of life first, by a command that does nothing. What cannot connect has sent nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ErrorKind, RedisError};

use crate::error::is_stranger;

/// After so long a rest the connection is tried out before it is used.
pub(crate) const REST: Duration = Duration::from_millis(500);

/// How often it is tried out: a connection that was lost is made again after the first time.
const TRIALS: usize = 2;

pub(crate) struct Single {
    client: Client,
    config: ConnectionManagerConfig,
    rest: Duration,
    state: Mutex<State>,
}

struct State {
    connection: ConnectionManager,
    /// How many connections were given up before this one.
    generation: u64,
    /// When it has answered last; `None` if it must be tried out.
    used: Option<Instant>,
}

impl Single {
    /// Connects.
    pub(crate) async fn new(
        client: Client,
        config: ConnectionManagerConfig,
        rest: Duration,
    ) -> Result<Self, RedisError> {
        let connection = ConnectionManager::new_with_config(client.clone(), config.clone()).await?;
        let state = Mutex::new(State { connection, generation: 0, used: Some(Instant::now()) });
        Ok(Self { client, config, rest, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, and which one it is.
    ///
    /// # Errors
    /// It does not answer. Nothing was sent.
    pub(crate) async fn connection(&self) -> Result<(ConnectionManager, u64), RedisError> {
        let (mut connection, mut generation, used) = {
            let state = self.state();
            (state.connection.clone(), state.generation, state.used)
        };
        if used.is_some_and(|used| used.elapsed() < self.rest) {
            return Ok((connection, generation));
        }
        let mut trial = 1;
        loop {
            match redis::cmd("PING").query_async::<()>(&mut connection).await {
                Err(error) if error.is_io_error() && trial < TRIALS => trial += 1,
                Err(error) if error.is_io_error() => return Err(not_sent(&error)),
                // The driver does not connect again by itself where a server did not let it in.
                Err(error) if is_shut_out(&error) && trial < TRIALS => {
                    trial += 1;
                    (connection, generation) = self.give_up(&mut self.state(), generation)?;
                }
                // Whatever it says to that, it is there.
                _ => return Ok((connection, generation)),
            }
        }
    }

    /// Learns from an answer whether the connection is fit for the next command.
    pub(crate) fn judge<T>(&self, generation: u64, answer: &Result<T, RedisError>) {
        let mut state = self.state();
        if state.generation != generation {
            return;
        }
        match answer {
            Err(error) if error.is_io_error() || is_shut_out(error) => state.used = None,
            // The server is a replica now. Where its address leads to the new master, another connection finds that.
            Err(error) if matches!(error.code(), Some("READONLY" | "MASTERDOWN")) => {
                match self.give_up(&mut state, generation) {
                    Ok(_) => {
                        tracing::warn!(%error, "the server takes no writes: its connection is given up");
                    }
                    Err(failed) => tracing::error!(error = %failed, "no other connection could be made"),
                }
            }
            _ => state.used = Some(Instant::now()),
        }
    }

    /// Puts another connection into the place of this one, if it is still there. It is made when it is used.
    fn give_up(&self, state: &mut State, generation: u64) -> Result<(ConnectionManager, u64), RedisError> {
        if state.generation == generation {
            let connection =
                ConnectionManager::new_lazy_with_config(self.client.clone(), self.config.clone())?;
            *state = State { connection, generation: generation + 1, used: None };
        }
        Ok((state.connection.clone(), state.generation))
    }
}

/// Whether the server did not let the driver in.
fn is_shut_out(error: &RedisError) -> bool {
    is_stranger(error) || error.code() == Some("LOADING")
}

/// The same error, as one that is sure to have done nothing.
pub(crate) fn not_sent(error: &RedisError) -> RedisError {
    RedisError::from((ErrorKind::ClusterConnectionNotFound, "the server does not answer", error.to_string()))
}
