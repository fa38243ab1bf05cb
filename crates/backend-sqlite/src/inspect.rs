//! Answers about jobs and queues. Nothing here changes anything.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Nullable, Text};
use leasehold_core::{
    BatchSize, FinishedJob, HistoryFilter, Job, JobFilter, JobId, JobState, Page, QueueName, QueueStats,
    Queues, Receipt, ReceiptStatus, Record, time,
};

use crate::error::Failure;
use crate::history::statuses;
use crate::row::{FinishedRow, FinishedSql, JobRow, JobSql, Stored, readable, time_or_epoch};
use crate::selection::{Selection, one_more, page, start};
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
        let epoch = receipts[place].epoch.get();
        worth[place] = match (until, status.and_then(|status| status.parse().ok())) {
            (Some(until), _) if live == Some(epoch) => ReceiptStatus::Held { until: time_or_epoch(until) },
            (None, _) if live == Some(epoch) && epoch > 0 => ReceiptStatus::Requeued,
            (_, Some(status)) if finished == Some(epoch) => ReceiptStatus::Finished { status },
            _ => ReceiptStatus::Gone,
        };
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
    let mut stats: BTreeMap<QueueName, QueueStats> = BTreeMap::new();
    if let Queues::Named(names) = queues {
        stats.extend(names.iter().map(|name| (name.clone(), QueueStats::empty(name.clone(), now)))); // Q3
    }
    rows.into_iter().for_each(|row| count(&mut stats, row, now));
    Ok(stats.into_values().collect())
}

type StatsRow = (Stored, Stored, i64, i64, Option<i64>);

fn count(stats: &mut BTreeMap<QueueName, QueueStats>, row: StatsRow, now: DateTime<Utc>) {
    let (queue, state, attempts, count, first) = row;
    let Ok(queue) = QueueName::new(&*queue) else {
        return;
    };
    let row = stats.entry(queue.clone()).or_insert_with(|| QueueStats::empty(queue, now));
    let (count, attempts) = (count.unsigned_abs(), u32::try_from(attempts).unwrap_or_default());
    let Ok(state) = state.parse::<JobState>() else {
        row.dead_letters += count;
        return;
    };
    *row.states.entry(state).or_default() += count; // Q1
    *row.attempts.entry(attempts).or_default() += count; // Q2
    if state == JobState::Ready {
        row.oldest_ready_at =
            row.oldest_ready_at.into_iter().chain(first.and_then(DateTime::from_timestamp_micros)).min();
    }
}
