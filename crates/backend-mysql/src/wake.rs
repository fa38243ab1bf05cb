//! Looking for what others have enqueued (ADR 44).
//!
//! MySQL tells nobody anything. So while somebody listens, one task asks for all of them which queues have jobs that it has not
//! seen: one step in the primary key if there are none, for any number of queues. It asks often for some seconds after it has found a job
//! for somebody who listens, and seldom later. What this misses, such as a retry by another process, is found by sleeping no longer than
//! `next_available_at` says.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use diesel::sql_types::{BigInt, Text};
use leasehold_sql::{Stored, beyond};

use crate::Shared;
use crate::error::Failure;
use crate::prefixes;
use crate::session::Session;

/// How often is asked: for so long after a job, and then less and less often.
const AWAKE: Duration = Duration::from_secs(10);
const PERIOD: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(1100));
/// So many new jobs are looked at one by one.
const PAGE: usize = 200;

/// Begins to look, unless that was done before.
pub(crate) fn start(shared: &Arc<Shared>) {
    if shared.polling {
        shared.poller.call_once(|| drop(tokio::spawn(poll(Arc::downgrade(shared)))));
    }
}

/// Looks until the store is gone.
async fn poll(store: Weak<Shared>) {
    let (mut seen, mut pace) = (None, Pace::new(Instant::now()));
    loop {
        tokio::time::sleep(pace.period).await;
        let Some(shared) = store.upgrade() else {
            return;
        };
        if shared.hub.is_empty() {
            seen = None;
            continue;
        }
        match shared.run("wakeups", seen, |session, _, seen| Box::pin(look(session, *seen))).await {
            Ok((newest, queues)) => {
                let is_found = seen.is_none() || queues.iter().any(|queue| shared.hub.concerns(queue));
                pace.next(is_found, Instant::now());
                seen = Some(newest);
                shared.hub.wake(queues.iter().map(String::as_str));
            }
            Err(_) => pace.period = PERIOD.1,
        }
    }
}

/// How long to wait until the next look.
struct Pace {
    found: Instant,
    period: Duration,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { found: now, period: PERIOD.0 }
    }

    /// After a look that has found something, or nothing.
    fn next(&mut self, is_found: bool, now: Instant) {
        if is_found {
            self.found = now;
        }
        let is_awake = now.duration_since(self.found) < AWAKE;
        self.period = if is_awake { PERIOD.0 } else { (2 * self.period).min(PERIOD.1) };
    }
}

/// The newest id, and the queues of the jobs that are newer than the one that was the newest before. If these are many, all queues with
/// live jobs: a batch costs those who do not listen to its queue no more than a page.
async fn look(session: &mut Session<'_>, seen: Option<i64>) -> Result<(i64, Vec<String>), Failure> {
    let sql = session.sql;
    let Some(seen) = seen else {
        return Ok((newest(session).await?, Vec::new()));
    };
    let rows: Vec<(i64, Stored)> =
        session.rows::<(BigInt, Text), _>(&sql.newer, vec![seen.into(), PAGE.into()]).await?;
    if rows.len() == PAGE {
        let newest = newest(session).await?.max(seen);
        return Ok((newest, prefixes::names(session, "", &beyond(""), usize::MAX).await?));
    }
    let newest = rows.iter().map(|(id, _)| *id).max().unwrap_or(seen);
    let mut queues: Vec<String> = rows.iter().map(|(_, queue)| queue.to_string()).collect();
    queues.dedup();
    Ok((newest, queues))
}

async fn newest(session: &mut Session<'_>) -> Result<i64, Failure> {
    let sql = session.sql;
    Ok(session.row::<BigInt, i64>(&sql.newest, Vec::new()).await?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{AWAKE, PERIOD, Pace};

    /// How many looks there are between two moments after a job, if each of them takes no time.
    fn looks(from: Duration, to: Duration) -> usize {
        let start = Instant::now();
        let (mut pace, mut now, mut looks) = (Pace::new(start), start, 0);
        while now < start + to {
            now += pace.period;
            pace.next(false, now);
            looks += usize::from(now > start + from && now <= start + to);
        }
        looks
    }

    #[test]
    fn a_job_is_looked_for_often_for_some_seconds() {
        assert_eq!(looks(Duration::ZERO, AWAKE), AWAKE.as_millis() as usize / 4);
    }

    #[test]
    fn an_idle_store_looks_once_in_a_second() {
        let minute = Duration::from_secs(60);
        assert!(looks(minute, 2 * minute) <= 60);
    }

    #[test]
    fn a_job_wakes_it_up() {
        let now = Instant::now();
        let mut pace = Pace { found: now, period: PERIOD.1 };
        pace.next(false, now + 2 * AWAKE);
        assert_eq!(pace.period, PERIOD.1);
        pace.next(true, now + 3 * AWAKE);
        pace.next(false, now + 3 * AWAKE);
        assert_eq!(pace.period, PERIOD.0);
    }
}
