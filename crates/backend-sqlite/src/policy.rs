//! What operators have said about queues.

use diesel::sql_types::{BigInt, Double, Nullable, Text};
use leasehold_core::{Policies, QueuePattern, QueuePolicy};
use leasehold_sql::{Bucket, PolicyRow, Rules, Stored, StoredTime, micros, readable_one};

use crate::error::Failure;
use crate::session::Session;
use crate::statement::Param;

/// What holds for each queue, read once for an operation.
pub(crate) fn rules(session: &mut Session<'_>) -> Result<Rules, Failure> {
    Ok(Rules::new(policies(session)?))
}

/// Replaces the policy of a pattern; an empty one removes it (P9).
pub(crate) fn set_policy(
    session: &mut Session<'_>,
    pattern: &QueuePattern,
    policy: &QueuePolicy,
) -> Result<(), Failure> {
    let (sql, name) = (session.sql, pattern.to_string());
    if policy.is_empty() {
        session.count(&sql.remove_policy, vec![name.as_str().into()])?;
    } else {
        let mut params = columns(&name, policy);
        params.push(session.now.into());
        session.count(&sql.set_policy, params)?;
    }
    session.wake(&name);
    reset_rates(session)
}

/// A rate that is not what it was starts with a full bucket.
fn reset_rates(session: &mut Session<'_>) -> Result<(), Failure> {
    type Row = (Text, BigInt, Double, BigInt);
    let sql = session.sql;
    let buckets: Vec<(Stored, i64, f64, i64)> = session.rows::<Row, _>(&sql.buckets, Vec::new())?;
    let mut rules = rules(session)?;
    for (queue, full_at, rate_per_sec, rate_burst) in buckets {
        let bucket = Bucket { full_at: full_at.or_epoch(), rate_per_sec, rate_burst };
        if !rules.of_stored(&queue).rate.is_some_and(|rate| bucket.is_of(rate)) {
            session.count(&sql.remove_bucket, vec![(*queue).into()])?;
        }
    }
    Ok(())
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
pub(crate) fn set_paused(
    session: &mut Session<'_>,
    pattern: &QueuePattern,
    paused: bool,
) -> Result<(), Failure> {
    let (sql, name) = (session.sql, pattern.to_string());
    let text = if paused { &sql.pause } else { &sql.resume };
    session.count(text, vec![name.as_str().into(), session.now.into()])?;
    if !paused {
        session.wake(&name);
    }
    Ok(())
}

/// All policies.
pub(crate) fn policies(session: &mut Session<'_>) -> Result<Policies, Failure> {
    type Row = (
        Text,
        Nullable<BigInt>,
        Nullable<BigInt>,
        Nullable<Double>,
        Nullable<BigInt>,
        Nullable<BigInt>,
        Nullable<BigInt>,
        Nullable<Double>,
        Nullable<BigInt>,
        Nullable<BigInt>,
        Nullable<BigInt>,
        Nullable<Text>,
        Nullable<BigInt>,
        Nullable<Text>,
        Nullable<Text>,
    );
    let sql = session.sql;
    let rows: Vec<PolicyRow<Stored, i64, i64>> = session.rows::<Row, _>(&sql.policies, Vec::new())?;
    Ok(Policies::new(rows.into_iter().filter_map(|row| readable_one(row.decode()))))
}
