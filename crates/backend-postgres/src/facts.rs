//! What decides when a queue is worth a look and why a job is not running: a few index probes, however long the queue.

use chrono::{DateTime, Utc};
use diesel::prelude::Queryable;
use diesel::sql_types::{BigInt, Bool, Double, Integer, Nullable, Text, Timestamptz};
use diesel_async::AsyncPgConnection;
use leasehold_core::{
    EffectivePolicy, Explanation, JobId, NextAvailable, Policies, QueueName, QueueUsage, Queues, Record,
    StoreError, backend,
};
use leasehold_sql::{Bucket, Facts, StoredTime, explain_finished};

use crate::error::Failure;
use crate::inspect;
use crate::policy::policies;
use crate::row::Time;
use crate::selection::Selection;
use crate::sql::Statements;
use crate::statement::Statement;

/// So many queues with nothing but jobs for later are looked at first.
const SOON: i32 = 100;

/// A row of `facts_v2.sql`.
#[derive(Queryable)]
struct FactsRow {
    queue: String,
    now: Time,
    leased: i64,
    first_lease_until: Option<Time>,
    first_leased: Option<i64>,
    has_exhausted: bool,
    first: Option<i64>,
    first_available_at: Option<Time>,
    first_waits: Option<bool>,
    next_available_at: Option<Time>,
    first_ready: Option<i64>,
    full_at: Option<Time>,
    rate_per_sec: Option<f64>,
    rate_burst: Option<i32>,
    seen_to: Option<Time>,
}

/// The soonest time at which it is worth to look again (N1, N2).
pub(crate) async fn next_available_at(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    queues: &Queues,
) -> Result<Option<NextAvailable>, Failure> {
    // Queues whose jobs are all for later are many sometimes. The first of them nearly always decide.
    let soon = match queues {
        Queues::Named(_) => None,
        Queues::Matching(_) => Some(SOON),
    };
    let looked_at = facts(conn, sql, queues, soon).await?;
    let seen_to = looked_at.iter().find_map(|known| known.seen_to);
    let next = soonest(conn, sql, looked_at).await?;
    match seen_to {
        Some(seen_to) if next.is_none_or(|next| next.at > seen_to) => {
            let all = facts(conn, sql, queues, None).await?;
            soonest(conn, sql, all).await
        }
        _ => Ok(next),
    }
}

async fn soonest(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    mut facts: Vec<Known>,
) -> Result<Option<NextAvailable>, Failure> {
    // A policy can delay what there is, no more. An idle worker asks this all the time: it costs one statement.
    facts.retain(|known| known.facts.first.is_some());
    let Some(now) = facts.first().map(|known| known.facts.now) else {
        return Ok(None);
    };
    let policies = policies(conn, sql).await?;
    let soonest = facts.iter().filter_map(|known| known.facts.next_look(&known.policy(&policies))).min();
    Ok(soonest.map(|at| NextAvailable::new(at, now)))
}

/// What the limits of one queue see.
pub(crate) async fn usage(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    queue: &QueueName,
) -> Result<QueueUsage, Failure> {
    let policies = policies(conn, sql).await?;
    let facts = facts(conn, sql, &queue.into(), None).await?;
    Ok(facts.first().map_or_else(QueueUsage::default, |known| QueueUsage {
        leased: known.facts.leased.unsigned_abs(),
        next_token_at: known.facts.next_token_at(&known.policy(&policies)),
    }))
}

/// Why a job is not running (Y1 to Y5).
pub(crate) async fn explain(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    id: JobId,
) -> Result<Result<Explanation, StoreError>, Failure> {
    let job = match inspect::get(conn, sql, id).await? {
        None => return Ok(Ok(Explanation::Unknown)),
        Some(Err(error)) => return Ok(Err(error)),
        Some(Ok(Record::Finished(job))) => return Ok(Ok(explain_finished(job))),
        Some(Ok(Record::Live(job))) => job,
    };
    let policy = policies(conn, sql).await?.effective(&job.queue);
    let facts = facts(conn, sql, &(&job.queue).into(), None).await?;
    let explanation = facts.first().map(|Known { facts, .. }| {
        backend::explain_alone(&job, &policy, facts.now).unwrap_or_else(|| facts.explain(&job, &policy))
    });
    Ok(Ok(explanation.unwrap_or(Explanation::Unknown)))
}

/// A queue, and what is known of it.
struct Known {
    queue: String,
    facts: Facts,
    /// Up to when no queue was left out, if some may have been.
    seen_to: Option<DateTime<Utc>>,
}

impl Known {
    fn policy(&self, policies: &Policies) -> EffectivePolicy {
        QueueName::new(&self.queue).map(|queue| policies.effective(&queue)).unwrap_or_default()
    }
}

impl From<FactsRow> for Known {
    fn from(row: FactsRow) -> Self {
        let rate = row.rate_per_sec.zip(row.rate_burst);
        let bucket = row.full_at.zip(rate).map(|(full_at, (rate_per_sec, burst))| Bucket {
            full_at: full_at.or_epoch(),
            rate_per_sec,
            rate_burst: burst.into(),
        });
        let facts = Facts {
            now: row.now.or_epoch(),
            leased: row.leased,
            first_lease_until: row.first_lease_until.map(Time::or_epoch),
            first_leased: row.first_leased,
            has_exhausted: row.has_exhausted,
            first: row.first,
            first_available_at: row.first_available_at.map(Time::or_epoch),
            first_waits: row.first_waits == Some(true),
            next_available_at: row.next_available_at.map(Time::or_epoch),
            first_ready: row.first_ready,
            bucket,
        };
        Self { queue: row.queue, facts, seen_to: row.seen_to.map(Time::or_epoch) }
    }
}

async fn facts(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    queues: &Queues,
    soon: Option<i32>,
) -> Result<Vec<Known>, Failure> {
    type Row = (
        Text,
        Timestamptz,
        BigInt,
        Nullable<Timestamptz>,
        Nullable<BigInt>,
        Bool,
        Nullable<BigInt>,
        Nullable<Timestamptz>,
        Nullable<Bool>,
        Nullable<Timestamptz>,
        Nullable<BigInt>,
        Nullable<Timestamptz>,
        Nullable<Double>,
        Nullable<Integer>,
        Nullable<Timestamptz>,
    );
    let selection = Selection::of(queues);
    let params = vec![selection.names(), selection.from(), selection.to(), soon.into()];
    let rows: Vec<FactsRow> = Statement::<Row>::new(&sql.facts_v2, params).rows(conn).await?;
    Ok(rows.into_iter().map(Known::from).collect())
}
