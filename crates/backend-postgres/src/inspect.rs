//! Answers about jobs and queues. Nothing here changes anything.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Integer, Nullable, Text, Timestamptz};
use diesel_async::AsyncPgConnection;
use leasehold_core::{
    BatchSize, FinishedJob, HistoryFilter, Job, JobFilter, JobId, Page, QueueStats, Queues, Receipt,
    ReceiptStatus, Record, StoreError,
};
use leasehold_sql::{StoredTime, Tally, micros, page, readable, receipt_status};

use crate::error::Failure;
use crate::history::statuses;
use crate::row::{FinishedRow, FinishedSql, JobRow, JobSql, Time};
use crate::selection::{Selection, one_more};
use crate::sql::Statements;
use crate::statement::{Param, Statement};

/// The server's time.
pub(crate) async fn now(conn: &mut AsyncPgConnection, sql: &Statements) -> Result<DateTime<Utc>, Failure> {
    let times: Vec<Time> = Statement::<Timestamptz>::new(&sql.now, Vec::new()).rows(conn).await?;
    times.first().map(|time| time.or_epoch()).ok_or(Failure::Other("the server has no time".into()))
}

/// The job with this id, wherever it is (G1).
pub(crate) async fn get(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    id: JobId,
) -> Result<Option<Result<Record, StoreError>>, Failure> {
    let params = vec![id.get().into()];
    let rows: Vec<(Option<JobRow>, Option<FinishedRow>)> =
        Statement::<(Nullable<JobSql>, Nullable<FinishedSql>)>::new(&sql.record, params).rows(conn).await?;
    Ok(match rows.into_iter().next() {
        Some((Some(live), _)) => Some(Job::try_from(live).map(Record::Live)),
        Some((None, Some(finished))) => Some(FinishedJob::try_from(finished).map(Record::Finished)),
        _ => None,
    })
}

/// One page of live jobs (G2).
pub(crate) async fn jobs(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    filter: &JobFilter,
) -> Result<Page<Job>, Failure> {
    let selection = Selection::of(&filter.queues);
    let states = match &filter.states {
        Some(states) => states.iter().map(|state| state.as_str()).collect(),
        None => Param::Texts(None),
    };
    let params = vec![
        selection.names(),
        selection.from(),
        selection.to(),
        filter.kind.as_ref().map(|kind| kind.as_str()).into(),
        states,
        filter.unique_key.as_ref().map(|key| key.as_str()).into(),
        filter.worker.as_ref().map(|worker| worker.as_str()).into(),
        filter.after.map(JobId::get).into(),
        one_more(filter.limit),
    ];
    let rows: Vec<JobRow> =
        Statement::<JobSql>::planned_anew(sql.jobs(&filter.queues, filter.direction), params)
            .rows(conn)
            .await?;
    Ok(page(rows, filter.limit, |row| row.id, readable))
}

/// One page of finished jobs (G3).
pub(crate) async fn history(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
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
        filter.after.map(JobId::get).into(),
        one_more(filter.limit),
    ];
    let rows: Vec<FinishedRow> =
        Statement::<FinishedSql>::planned_anew(sql.history(filter.direction), params).rows(conn).await?;
    Ok(page(rows, filter.limit, |row| row.id, readable))
}

/// Jobs whose leases passed at least so long ago, by id (G4).
pub(crate) async fn stuck(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    older_than: Duration,
    limit: BatchSize,
) -> Result<Vec<Job>, Failure> {
    // Longer than a hundred years ago is no time at which a lease could have passed.
    let age = micros(older_than.min(leasehold_core::limits::DELAY_MAX));
    let params = vec![age.into(), (limit.get() as i32).into()];
    let rows: Vec<JobRow> = Statement::<JobSql>::planned_anew(&sql.stuck, params).rows(conn).await?;
    Ok(readable(rows))
}

/// What each receipt is worth (G5).
pub(crate) async fn receipts(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    receipts: &[Receipt],
) -> Result<Vec<ReceiptStatus>, Failure> {
    type Row = (BigInt, Nullable<BigInt>, Nullable<Timestamptz>, Nullable<BigInt>, Nullable<Text>);
    let params = vec![receipts.iter().map(|receipt| receipt.job.get()).collect()];
    type Found = (i64, Option<i64>, Option<Time>, Option<i64>, Option<String>);
    let rows: Vec<Found> = Statement::<Row>::planned_anew(&sql.receipts, params).rows(conn).await?;
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

/// Queues in numbers (Q1 to Q3), without counting what waits: [`upkeep`](crate::upkeep) keeps the numbers few.
pub(crate) async fn stats(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    queues: &Queues,
) -> Result<Vec<QueueStats>, Failure> {
    type Row = (
        Nullable<Text>,
        Nullable<Text>,
        Nullable<Integer>,
        Nullable<BigInt>,
        Nullable<Timestamptz>,
        Timestamptz,
    );
    let selection = Selection::of(queues);
    let params = vec![selection.names(), selection.from(), selection.to()];
    let rows: Vec<StatsRow> = Statement::<Row>::new(&sql.stats, params).rows(conn).await?;
    let now = rows.first().map(|row| row.5.or_epoch()).unwrap_or_default();
    let mut tally = Tally::new(queues, now);
    for row in rows {
        if let (Some(queue), Some(state), Some(attempts), Some(count), first, _) = row {
            tally.add(&queue, &state, attempts.into(), count, first.and_then(Time::get));
        }
    }
    Ok(tally.finish())
}

type StatsRow = (Option<String>, Option<String>, Option<i32>, Option<i64>, Option<Time>, Time);
