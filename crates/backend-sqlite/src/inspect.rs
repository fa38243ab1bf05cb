//! Answers about jobs and queues. Nothing here changes anything.

use std::time::Duration;

use diesel::sql_types::{BigInt, Nullable, Text};
use leasehold_core::{
    BatchSize, FinishedJob, HistoryFilter, Job, JobFilter, JobId, Page, QueueStats, Queues, Receipt,
    ReceiptStatus, Record, time,
};
use leasehold_sql::{Stored, StoredTime, Tally, page, readable, receipt_status};

use crate::error::Failure;
use crate::history::statuses;
use crate::row::{FinishedRow, FinishedSql, JobRow, JobSql};
use crate::selection::{Selection, one_more, start};
use crate::session::Session;
use crate::statement::Param;

/// The job with this id, wherever it is (G1).
pub(crate) fn get(session: &mut Session<'_>, id: JobId) -> Result<Option<Record>, Failure> {
    let sql = session.sql;
    if let Some(live) = session.row::<JobSql, JobRow>(&sql.job, vec![id.get().into()])? {
        return Ok(Some(Record::Live(live.try_into()?)));
    }
    let finished = session.row::<FinishedSql, FinishedRow>(&sql.finished, vec![id.get().into()])?;
    Ok(finished.map(FinishedJob::try_from).transpose()?.map(Record::Finished))
}

/// One page of live jobs (G2).
pub(crate) fn jobs(session: &mut Session<'_>, filter: &JobFilter) -> Result<Page<Job>, Failure> {
    let selection = Selection::of(&filter.queues);
    let states = match &filter.states {
        Some(states) => states.iter().map(|state| state.as_str()).collect(),
        None => Param::Text(None),
    };
    let params = vec![
        selection.names(),
        selection.from(),
        selection.to(),
        filter.kind.as_ref().map(|kind| kind.as_str()).into(),
        states,
        filter.unique_key.as_ref().map(|key| key.as_str()).into(),
        filter.worker.as_ref().map(|worker| worker.as_str()).into(),
        start(filter.after, filter.direction),
        one_more(filter.limit),
        session.now.into(),
    ];
    let text = session.sql.jobs(&filter.queues, filter.direction);
    let rows: Vec<JobRow> = session.rows::<JobSql, _>(text, params)?;
    Ok(page(rows, filter.limit, |row| row.id, readable))
}

/// One page of finished jobs (G3).
pub(crate) fn history(
    session: &mut Session<'_>,
    filter: &HistoryFilter,
) -> Result<Page<FinishedJob>, Failure> {
    let selection = Selection::of(&filter.queues);
    let params = vec![
        selection.names(),
        selection.from(),
        selection.to(),
        filter.kind.as_ref().map(|kind| kind.as_str()).into(),
        statuses(filter.statuses.as_deref()),
        filter.unique_key.as_ref().map(|key| key.as_str()).into(),
        filter.finished_from.into(),
        filter.finished_before.into(),
        start(filter.after, filter.direction),
        one_more(filter.limit),
    ];
    let text = session.sql.history(filter.direction);
    let rows: Vec<FinishedRow> = session.rows::<FinishedSql, _>(text, params)?;
    Ok(page(rows, filter.limit, |row| row.id, readable))
}

/// Jobs whose leases passed at least so long ago, by id (G4).
pub(crate) fn stuck(
    session: &mut Session<'_>,
    older_than: Duration,
    limit: BatchSize,
) -> Result<Vec<Job>, Failure> {
    let by = time::earlier(session.now, older_than);
    let sql = session.sql;
    let rows: Vec<JobRow> = session.rows::<JobSql, _>(&sql.stuck, vec![by.into(), limit.get().into()])?;
    Ok(readable(rows))
}

/// What each receipt is worth (G5).
pub(crate) fn receipts(
    session: &mut Session<'_>,
    receipts: &[Receipt],
) -> Result<Vec<ReceiptStatus>, Failure> {
    type Row = (BigInt, Nullable<BigInt>, Nullable<BigInt>, Nullable<BigInt>, Nullable<Text>);
    let params = vec![receipts.iter().map(|receipt| receipt.job.get()).collect()];
    type Found = (i64, Option<i64>, Option<i64>, Option<i64>, Option<Stored>);
    let sql = session.sql;
    let rows: Vec<Found> = session.rows::<Row, _>(&sql.receipts, params)?;
    let mut worth = vec![ReceiptStatus::Gone; receipts.len()];
    for (place, live, until, finished, status) in rows {
        let Some(place) = usize::try_from(place).ok().filter(|place| *place < worth.len()) else {
            continue;
        };
        let until = until.map(i64::or_epoch);
        worth[place] = receipt_status(&receipts[place], live, until, finished, status.as_deref());
    }
    Ok(worth)
}

/// Queues in numbers: one pass over the live jobs asked for, one over the index of dead letters.
pub(crate) fn stats(session: &mut Session<'_>, queues: &Queues) -> Result<Vec<QueueStats>, Failure> {
    type Row = (Text, Text, BigInt, BigInt, Nullable<BigInt>);
    let (sql, now) = (session.sql, session.now);
    let selection = Selection::of(queues);
    let params = vec![selection.names(), selection.from(), selection.to(), now.into()];
    let rows: Vec<StatsRow> = session.rows::<Row, _>(&sql.stats, params)?;
    let mut tally = Tally::new(queues, now);
    for (queue, state, attempts, count, first) in rows {
        tally.add(&queue, &state, attempts, count, first.and_then(i64::get));
    }
    Ok(tally.finish())
}

type StatsRow = (Stored, Stored, i64, i64, Option<i64>);
