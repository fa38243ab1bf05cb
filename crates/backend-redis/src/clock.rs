//! Until when a write may be carried out, by the clock of its server.
//!
//! A server that was stopped or paused carries out what it was sent before, although the caller has given up: a claim would lease jobs that no worker has.
//! So every script that changes something is told a time by the server's clock after which it must do nothing. Nobody compares clocks for that: a script
//! that comes too late answers with its own time, and what is learned from that is used for a minute. Each shard may have another server.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::RedisError;

use crate::keys::Shard;

/// How long what was learned is used: clocks differ in speed, and may be set.
const KEPT: Duration = Duration::from_secs(60);

/// The clocks of the shards, as far as they are known.
#[derive(Debug)]
pub(crate) struct Clocks {
    /// How long a caller waits for an answer.
    patience: Duration,
    /// The microseconds that a shard's clock showed, and when.
    shown: Mutex<HashMap<Shard, (i64, Instant)>>,
}

impl Clocks {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { patience, shown: Mutex::default() }
    }

    /// How long a caller waits for an answer.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Until when a script of this shard may change something, in microseconds: a quarter of the time is left for the answer to arrive. A time that has
    /// passed long ago, if the clock is not known: the script then answers what it shows.
    pub(crate) fn deadline(&self, shard: Shard) -> i64 {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner).get(&shard).copied();
        let Some((micros, at)) = shown.filter(|(_, at)| at.elapsed() < KEPT) else { return 0 };
        let ahead = at.elapsed() + self.patience / 4 * 3;
        micros.saturating_add(i64::try_from(ahead.as_micros()).unwrap_or(i64::MAX))
    }

    /// The clock of this shard has just shown so many microseconds.
    pub(crate) fn learn(&self, shard: Shard, micros: i64) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.insert(shard, (micros, Instant::now()));
    }
}

/// The time that a script has answered which came too late and did nothing.
pub(crate) fn late(error: &RedisError) -> Option<i64> {
    error.detail().filter(|_| error.code() == Some("LATE"))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_may_be_done_for_as_long_as_its_caller_waits() {
        let clocks = Clocks::new(Duration::from_secs(8));
        assert_eq!(clocks.deadline(Shard::FIRST), 0);
        clocks.learn(Shard::FIRST, 1_000_000);
        let deadline = clocks.deadline(Shard::FIRST);
        assert!((7_000_000..8_000_000).contains(&deadline), "{deadline}");
    }
}
