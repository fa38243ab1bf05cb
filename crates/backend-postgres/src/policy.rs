//! What operators have said about queues.

use diesel::sql_types::{BigInt, Bool, Double, Integer, Nullable, Text};
use diesel_async::AsyncPgConnection;
use leasehold_core::{Policies, QueuePattern, QueuePolicy};
use leasehold_sql::{PolicyRow, micros, readable_one};

use crate::error::Failure;
use crate::session::Session;
use crate::sql::Statements;
use crate::statement::{Param, Statement};

/// Replaces the policy of a pattern; an empty one removes it (P9).
pub(crate) async fn set_policy(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    pattern: &QueuePattern,
    policy: &QueuePolicy,
) -> Result<(), Failure> {
    let pattern = pattern.to_string();
    if policy.is_empty() {
        conn.count(&sql.remove_policy, vec![pattern.as_str().into()]).await?;
    } else {
        conn.count(&sql.set_policy, columns(&pattern, policy)).await?;
    }
    conn.count(&sql.reset_rates, vec![pattern.as_str().into()]).await?;
    Ok(())
}

fn columns<'a>(pattern: &'a str, policy: &QueuePolicy) -> Vec<Param<'a>> {
    vec![
        pattern.into(),
        Param::Bool(policy.paused),
        policy.concurrency_limit.map(|limit| limit.get() as i32).into(),
        policy.rate.map(|rate| rate.per_sec()).into(),
        policy.rate.map(|rate| rate.burst() as i32).into(),
        policy.max_lease.map(micros).into(),
        policy.backoff.map(|backoff| micros(backoff.base())).into(),
        policy.backoff.map(|backoff| backoff.jitter()).into(),
        policy.backoff.map(|backoff| micros(backoff.min())).into(),
        policy.backoff.map(|backoff| micros(backoff.max())).into(),
        policy.max_attempts.map(|attempts| attempts.get() as i32).into(),
        policy.order.map(|order| order.as_str()).into(),
        policy.retention.map(micros).into(),
        policy.archive.map(|archive| archive.as_str()).into(),
        policy.on_expiry.map(|on_expiry| on_expiry.as_str()).into(),
    ]
}

/// Pauses or resumes a pattern, and leaves the rest of its policy alone (P10).
pub(crate) async fn set_paused(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    pattern: &QueuePattern,
    paused: bool,
) -> Result<(), Failure> {
    let pattern = pattern.to_string();
    let text = if paused { &sql.pause } else { &sql.resume };
    conn.count(text, vec![pattern.as_str().into()]).await?;
    Ok(())
}

/// All policies.
pub(crate) async fn policies(conn: &mut AsyncPgConnection, sql: &Statements) -> Result<Policies, Failure> {
    type Row = (
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
    let rows: Vec<PolicyRow<String, i32, bool>> =
        Statement::<Row>::new(&sql.policies, Vec::new()).rows(conn).await?;
    Ok(Policies::new(rows.into_iter().filter_map(|row| readable_one(row.decode()))))
}
