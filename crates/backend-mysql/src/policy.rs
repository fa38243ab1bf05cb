//! What operators have said about queues.

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Bool, Datetime, Double, Integer, Nullable, Text};
use leasehold_core::{Policies, QueuePattern, QueuePolicy};
use leasehold_sql::{Bucket, PolicyRow, Rules, Stored, StoredTime, micros, readable_one};

use crate::error::Failure;
use crate::row::Time;
use crate::session::Session;
use crate::statement::Param;

/// The store's time, and what holds for each queue: read once for an operation (C4).
pub(crate) async fn rules(session: &mut Session<'_>) -> Result<(DateTime<Utc>, Rules), Failure> {
    let (now, policies) = read(session).await?;
    Ok((now, Rules::new(policies)))
}

/// All policies.
pub(crate) async fn policies(session: &mut Session<'_>) -> Result<Policies, Failure> {
    Ok(read(session).await?.1)
}

async fn read(session: &mut Session<'_>) -> Result<(DateTime<Utc>, Policies), Failure> {
    type Policy = (
        Text,
        Nullable<Bool>,
        Nullable<Integer>,
        Nullable<Double>,
        Nullable<Integer>,
        Nullable<BigInt>,
        Nullable<BigInt>,
        Nullable<Double>,
        Nullable<BigInt>,
        Nullable<BigInt>,
        Nullable<Integer>,
        Nullable<Text>,
        Nullable<BigInt>,
        Nullable<Text>,
        Nullable<Text>,
    );
    let sql = session.sql;
    let mut rows: Vec<(Time, PolicyRow<Stored, i32, bool>)> =
        session.rows::<(Datetime, Policy), _>(&sql.rules, Vec::new()).await?;
    let last = rows.pop().and_then(|(now, _)| now.get());
    let now = last.ok_or_else(|| Failure::Other("the server has no time".into()))?;
    Ok((now, Policies::new(rows.into_iter().filter_map(|(_, row)| readable_one(row.decode())))))
}

/// Replaces the policy of a pattern; an empty one removes it (P9).
pub(crate) async fn set_policy(
    session: &mut Session<'_>,
    pattern: &QueuePattern,
    policy: &QueuePolicy,
) -> Result<(), Failure> {
    let (sql, name) = (session.sql, pattern.to_string());
    session.begin().await?;
    if policy.is_empty() {
        session.count(&sql.remove_policy, vec![name.as_str().into()]).await?;
    } else {
        session.count(&sql.set_policy, columns(&name, policy)).await?;
    }
    reset_rates(session).await?;
    session.commit().await?;
    session.wake(&name);
    Ok(())
}

/// A rate that is not what it was starts with a full bucket.
async fn reset_rates(session: &mut Session<'_>) -> Result<(), Failure> {
    let sql = session.sql;
    let buckets: Vec<BucketRow> = session.rows::<BucketSql, _>(&sql.buckets, Vec::new()).await?;
    let (_, mut rules) = rules(session).await?;
    for row in buckets {
        let Some(bucket) = bucket(&row) else {
            continue;
        };
        if !rules.of_stored(&row.0).rate.is_some_and(|rate| bucket.is_of(rate)) {
            session.count(&sql.empty_bucket, vec![(*row.0).into()]).await?;
        }
    }
    Ok(())
}

pub(crate) type BucketSql = (Text, Nullable<Datetime>, Nullable<Double>, Nullable<Integer>);
pub(crate) type BucketRow = (Stored, Option<Time>, Option<f64>, Option<i32>);

/// The bucket of a row of `job_queue_limit`, if it has one.
pub(crate) fn bucket(row: &BucketRow) -> Option<Bucket> {
    let (_, full_at, rate_per_sec, rate_burst) = row;
    let (full_at, rate_burst) = ((*full_at)?.or_epoch(), (*rate_burst)?.into());
    Some(Bucket { full_at, rate_per_sec: (*rate_per_sec)?, rate_burst })
}

fn columns<'a>(pattern: &'a str, policy: &QueuePolicy) -> Vec<Param<'a>> {
    vec![
        pattern.into(),
        policy.paused.map(i64::from).into(),
        policy.concurrency_limit.map(|limit| i64::from(limit.get())).into(),
        policy.rate.map(|rate| rate.per_sec()).into(),
        policy.rate.map(|rate| i64::from(rate.burst())).into(),
        policy.max_lease.map(micros).into(),
        policy.backoff.map(|backoff| micros(backoff.base())).into(),
        policy.backoff.map(|backoff| backoff.jitter()).into(),
        policy.backoff.map(|backoff| micros(backoff.min())).into(),
        policy.backoff.map(|backoff| micros(backoff.max())).into(),
        policy.max_attempts.map(|attempts| i64::from(attempts.get())).into(),
        policy.order.map(|order| order.as_str()).into(),
        policy.retention.map(micros).into(),
        policy.archive.map(|archive| archive.as_str()).into(),
        policy.on_expiry.map(|on_expiry| on_expiry.as_str()).into(),
    ]
}

/// Pauses or resumes a pattern, and leaves the rest of its policy alone (P10).
pub(crate) async fn set_paused(
    session: &mut Session<'_>,
    pattern: &QueuePattern,
    paused: bool,
) -> Result<(), Failure> {
    let (sql, name) = (session.sql, pattern.to_string());
    if paused {
        return session.count(&sql.pause, vec![name.as_str().into()]).await.map(drop);
    }
    session.begin().await?;
    let params = std::iter::repeat_n(name.as_str().into(), 3).collect();
    session.count(&sql.resume, params).await?;
    session.count(&sql.remove_empty, vec![name.as_str().into()]).await?;
    session.commit().await?;
    session.wake(&name);
    Ok(())
}
