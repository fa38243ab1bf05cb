//! Keeping the numbers of jobs few.
//!
//! Every statement that makes a job wait, or ends that, leaves a row in `job_queue_count`; `stats` adds them up. Somebody has to make
//! one row of many: whoever reclaims or asks for numbers offers to, and the server says whether it is time.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use diesel::sql_types::Bool;
use diesel_async::AsyncPgConnection;

use crate::error::{Effect, Failure};
use crate::sql::Statements;
use crate::statement::Statement;

/// How often a process offers it. The server agrees every ten seconds, and sooner if there is much.
const EVERY: Duration = Duration::from_secs(2);

/// When this process offers it next.
#[derive(Debug)]
pub(crate) struct Upkeep {
    next: Mutex<Instant>,
}

impl Upkeep {
    pub(crate) fn new() -> Self {
        Self { next: Mutex::new(Instant::now()) }
    }

    /// Sums up what was counted, if it is time. That it failed stops nobody: the numbers are right all the same, and another
    /// will do it.
    pub(crate) async fn offer(&self, conn: &mut AsyncPgConnection, sql: &Statements) {
        if !self.is_due(Instant::now()) {
            return;
        }
        let folded: Result<Vec<bool>, Failure> =
            Statement::<Bool>::new(&sql.fold, Vec::new()).rows(conn).await;
        if let Err(failure) = folded {
            let error = failure.told("fold", Effect::Write);
            tracing::warn!(%error, "the numbers of jobs were not summed up: `stats` is slower until they are");
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = *next <= now;
        if is_due {
            *next = now + EVERY;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_offered_at_once_and_then_every_two_seconds() {
        let upkeep = Upkeep::new();
        let now = Instant::now();
        assert!(upkeep.is_due(now));
        assert!(!upkeep.is_due(now));
        assert!(!upkeep.is_due(now + EVERY - Duration::from_millis(1)));
        assert!(upkeep.is_due(now + EVERY));
        assert!(!upkeep.is_due(now + EVERY));
    }
}
