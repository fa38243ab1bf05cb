//! What operators have said about queues.

use diesel::prelude::Queryable;
use diesel::sql_types::{BigInt, Bool, Double, Integer, Nullable, Text};
use diesel_async::AsyncPgConnection;
use leasehold_core::{
    Backoff, ConcurrencyLimit, Delay, Invalid, LeaseFor, MaxAttempts, Policies, QueuePattern, QueuePolicy,
    RateLimit, Result, StoreError,
};
use std::time::Duration;

use crate::enqueue::micros;
use crate::error::Failure;
use crate::row::readable_one;
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
    let rows: Vec<PolicyRow> = Statement::<Row>::new(&sql.policies, Vec::new()).rows(conn).await?;
    Ok(Policies::new(rows.into_iter().filter_map(|row| readable_one(row.decode()))))
}

#[derive(Queryable)]
struct PolicyRow {
    pattern: String,
    paused: Option<bool>,
    concurrency_limit: Option<i32>,
    rate_per_sec: Option<f64>,
    rate_burst: Option<i32>,
    max_lease_us: Option<i64>,
    backoff_base_us: Option<i64>,
    backoff_jitter: Option<f64>,
    backoff_min_us: Option<i64>,
    backoff_max_us: Option<i64>,
    max_attempts: Option<i32>,
    queue_order: Option<String>,
    retention_us: Option<i64>,
    archive: Option<String>,
    on_expiry: Option<String>,
}

impl PolicyRow {
    fn decode(self) -> Result<(QueuePattern, QueuePolicy)> {
        let name = self.pattern.clone();
        self.checked().map_err(|invalid| StoreError::corrupt(format!("policy of {name:?}: {invalid}")))
    }

    fn checked(self) -> Result<(QueuePattern, QueuePolicy), Invalid> {
        let policy = QueuePolicy {
            paused: self.paused,
            concurrency_limit: self.concurrency_limit.map(unsigned).map(ConcurrencyLimit::new).transpose()?,
            rate: self.rate()?,
            max_lease: self.max_lease_us.map(length).map(LeaseFor::new).transpose()?,
            backoff: self.backoff()?,
            max_attempts: self.max_attempts.map(unsigned).map(MaxAttempts::new).transpose()?,
            order: self.queue_order.as_deref().map(str::parse).transpose()?,
            retention: self.retention_us.map(length).map(Delay::new).transpose()?,
            archive: self.archive.as_deref().map(str::parse).transpose()?,
            on_expiry: self.on_expiry.as_deref().map(str::parse).transpose()?,
        };
        Ok((self.pattern.parse()?, policy))
    }

    fn rate(&self) -> Result<Option<RateLimit>, Invalid> {
        let parts = self.rate_per_sec.zip(self.rate_burst);
        parts.map(|(per_sec, burst)| RateLimit::new(per_sec, unsigned(burst))).transpose()
    }

    fn backoff(&self) -> Result<Option<Backoff>, Invalid> {
        let parts = self.backoff_base_us.zip(self.backoff_jitter);
        let parts = parts.zip(self.backoff_min_us.zip(self.backoff_max_us));
        let backoff =
            |((base, jitter), (min, max))| Backoff::new(length(base), jitter, length(min), length(max));
        parts.map(backoff).transpose()
    }
}

/// What is negative is made zero, which every limit refuses.
fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or_default()
}

fn length(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}
