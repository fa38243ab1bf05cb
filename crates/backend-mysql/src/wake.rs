//! Looking for what others have enqueued.
//!
//! MySQL tells nobody anything. So while somebody listens, one task asks for all of them which queues have jobs that it has not
//! seen: one step in the primary key if there are none. It asks often while there is something to do, and seldom while there is
//! not. What this misses, such as a retry by another process, is found by sleeping no longer than `next_available_at` says.

use std::sync::{Arc, Weak};
use std::time::Duration;

use diesel::sql_types::{BigInt, Text};
use leasehold_sql::Stored;

use crate::Shared;
use crate::error::Failure;
use crate::session::Session;

/// How often is asked: from this while there is something to do, doubled up to the second while there is not.
const PERIOD: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// So many new jobs are looked at in one go.
const PAGE: i64 = 1000;

/// Begins to look, unless that was done before.
pub(crate) fn start(shared: &Arc<Shared>) {
    if shared.polling {
        shared.poller.call_once(|| drop(tokio::spawn(poll(Arc::downgrade(shared)))));
    }
}

/// Looks until the store is gone.
async fn poll(store: Weak<Shared>) {
    let (mut seen, mut period) = (None, PERIOD.0);
    loop {
        tokio::time::sleep(period).await;
        let Some(shared) = store.upgrade() else {
            return;
        };
        if shared.hub.is_empty() {
            seen = None;
            continue;
        }
        match shared.run("wakeups", seen, |session, _, seen| Box::pin(look(session, *seen))).await {
            Ok((newest, queues)) => {
                period = if queues.is_empty() { (period * 2).min(PERIOD.1) } else { PERIOD.0 };
                seen = Some(newest);
                shared.hub.wake(queues.iter().map(|queue| &**queue));
            }
            Err(_) => period = PERIOD.1,
        }
    }
}

/// The newest id, and the queues of the jobs that are newer than the one that was the newest before.
async fn look(session: &mut Session<'_>, seen: Option<i64>) -> Result<(i64, Vec<Stored>), Failure> {
    let sql = session.sql;
    let Some(seen) = seen else {
        let newest = session.row::<BigInt, i64>(&sql.newest, Vec::new()).await?;
        return Ok((newest.unwrap_or_default(), Vec::new()));
    };
    let rows: Vec<(i64, Stored)> =
        session.rows::<(BigInt, Text), _>(&sql.newer, vec![seen.into(), PAGE.into()]).await?;
    let newest = rows.iter().map(|(id, _)| *id).max().unwrap_or(seen);
    Ok((newest, rows.into_iter().map(|(_, queue)| queue).collect()))
}
