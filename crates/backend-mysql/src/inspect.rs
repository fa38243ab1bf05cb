//! Answers about jobs and queues. Nothing here changes anything.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Datetime, Nullable, Text};
use leasehold_core::{
    BatchSize, FinishedJob, HistoryFilter, Job, JobFilter, JobId, Page, QueueStats, Queues, Receipt,
    ReceiptStatus, Record, time,
};
use leasehold_sql::{Stored, StoredTime, Tally, page, readable, receipt_status};

use crate::error::Failure;
use crate::row::{FinishedRow, FinishedSql, JobRow, JobSql, Time};
use crate::selection::{one_more, queues, start, statuses, twice, words};
use crate::session::Session;

/// How often a job that is nowhere is looked for again: it may be on its way back from the history.
const LOOKS: u32 = 3;

/// The store's time (C4).
pub(crate) async fn now(session: &mut Session<'_>) -> Result<DateTime<Utc>, Failure> {
    let sql = session.sql;
    let now = session.row::<Datetime, Time>(&sql.now, Vec::new()).await?;
    now.and_then(Time::get).ok_or_else(|| Failure::Other("the server has no time".into()))
}

/// The job with this id, wherever it is (G1).
pub(crate) async fn get(session: &mut Session<'_>, id: JobId) -> Result<Option<Record>, Failure> {
    let sql = session.sql;
    for _ in 0..LOOKS {
        let live = session.row::<JobSql, JobRow>(&sql.job, vec![id.get().into()]).await?;
        if let Some(live) = live {
            return Ok(Some(Record::Live(live.try_into()?)));
        }
        let finished = session.row::<FinishedSql, FinishedRow>(&sql.finished, vec![id.get().into()]).await?;
        if let Some(finished) = finished {
            return Ok(Some(Record::Finished(finished.try_into()?)));
        }
    }
    Ok(None)
}

/// One page of live jobs (G2).
pub(crate) async fn jobs(session: &mut Session<'_>, filter: &JobFilter) -> Result<Page<Job>, Failure> {
    let states = filter.states.as_ref().map(|states| states.iter().map(|state| state.as_str()));
    let mut params = queues(&filter.queues);
    params.extend(twice(filter.kind.as_ref().map(|kind| kind.as_str()).into()));
    params.extend(twice(words(states)));
    params.extend(twice(filter.unique_key.as_ref().map(|key| key.as_str()).into()));
    params.extend(twice(filter.worker.as_ref().map(|worker| worker.as_str()).into()));
    params.extend([start(filter.after, filter.direction), one_more(filter.limit)]);
    let text = session.sql.jobs(&filter.queues, filter.direction);
    let rows: Vec<JobRow> = session.rows::<JobSql, _>(text, params).await?;
    Ok(page(rows, filter.limit, |row| row.id, readable))
}

/// One page of finished jobs (G3).
pub(crate) async fn history(
    session: &mut Session<'_>,
    filter: &HistoryFilter,
) -> Result<Page<FinishedJob>, Failure> {
    let mut params = queues(&filter.queues);
    params.extend(twice(filter.kind.as_ref().map(|kind| kind.as_str()).into()));
    params.extend(twice(statuses(filter.statuses.as_deref())));
    params.extend(twice(filter.unique_key.as_ref().map(|key| key.as_str()).into()));
    params.extend(twice(filter.finished_from.into()));
    params.extend(twice(filter.finished_before.into()));
    params.extend([start(filter.after, filter.direction), one_more(filter.limit)]);
    let text = session.sql.history(&filter.queues, filter.direction);
    let rows: Vec<FinishedRow> = session.rows::<FinishedSql, _>(text, params).await?;
    Ok(page(rows, filter.limit, |row| row.id, readable))
}

/// Jobs whose leases passed at least so long ago, by id (G4).
pub(crate) async fn stuck(
    session: &mut Session<'_>,
    older_than: Duration,
    limit: BatchSize,
) -> Result<Vec<Job>, Failure> {
    let by = time::earlier(now(session).await?, older_than);
    let sql = session.sql;
    let rows: Vec<JobRow> =
        session.rows::<JobSql, _>(&sql.stuck, vec![by.into(), limit.get().into()]).await?;
    Ok(readable(rows))
}

/// What each receipt is worth (G5).
pub(crate) async fn receipts(
    session: &mut Session<'_>,
    receipts: &[Receipt],
) -> Result<Vec<ReceiptStatus>, Failure> {
    type Row = (BigInt, Nullable<BigInt>, Nullable<Datetime>, Nullable<BigInt>, Nullable<Text>);
    type Found = (i64, Option<i64>, Option<Time>, Option<i64>, Option<Stored>);
    let params = vec![receipts.iter().map(|receipt| receipt.job.get()).collect()];
    let sql = session.sql;
    let rows: Vec<Found> = session.rows::<Row, _>(&sql.receipts, params).await?;
    let mut worth = vec![ReceiptStatus::Gone; receipts.len()];
    for (place, live, until, finished, status) in rows {
        let Some(place) = usize::try_from(place - 1).ok().filter(|place| *place < worth.len()) else {
            continue;
        };
        let until = until.map(Time::or_epoch);
        worth[place] = receipt_status(&receipts[place], live, until, finished, status.as_deref());
    }
    Ok(worth)
}

/// Queues in numbers: one pass over the live jobs asked for, one over the index of dead letters.
pub(crate) async fn stats(session: &mut Session<'_>, of: &Queues) -> Result<Vec<QueueStats>, Failure> {
    type Row = (Text, Text, BigInt, BigInt, Nullable<Datetime>, Datetime);
    let params = [queues(of), queues(of)].concat();
    let text = session.sql.stats.of(of);
    let rows: Vec<(Stored, Stored, i64, i64, Option<Time>, Time)> =
        session.rows::<Row, _>(text, params).await?;
    let now = rows.first().map(|row| row.5.or_epoch()).unwrap_or_default();
    let mut tally = Tally::new(of, now);
    for (queue, state, attempts, count, first, _) in rows {
        tally.add(&queue, &state, attempts, count, first.and_then(Time::get));
    }
    Ok(tally.finish())
}
