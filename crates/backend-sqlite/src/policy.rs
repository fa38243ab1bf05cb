//! What operators have said about queues.

use std::collections::HashMap;
use std::time::Duration;

use diesel::prelude::Queryable;
use diesel::sql_types::{BigInt, Double, Nullable, Text};
use leasehold_core::{
    Backoff, ConcurrencyLimit, Delay, EffectivePolicy, Invalid, LeaseFor, MaxAttempts, Policies, QueueName,
    QueuePattern, QueuePolicy, RateLimit, Result, StoreError,
};

use crate::error::Failure;
use crate::row::{Stored, readable_one};
use crate::session::Session;
use crate::statement::Param;

/// What holds for each queue, read once for an operation. While nobody has set a policy it costs next to nothing.
pub(crate) struct Rules {
    policies: Policies,
    known: HashMap<QueueName, EffectivePolicy>,
    default: EffectivePolicy,
}

impl Rules {
    pub(crate) fn read(session: &mut Session<'_>) -> Result<Self, Failure> {
        let policies = policies(session)?;
        Ok(Self { policies, known: HashMap::new(), default: EffectivePolicy::default() })
    }

    /// Whether nobody has said anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    pub(crate) fn of(&mut self, queue: &QueueName) -> &EffectivePolicy {
        if self.policies.is_empty() {
            return &self.default;
        }
        self.known.entry(queue.clone()).or_insert_with(|| self.policies.effective(queue))
    }

    /// The same for a name as it is stored; what cannot be a name has no policy.
    pub(crate) fn of_stored(&mut self, queue: &str) -> &EffectivePolicy {
        match QueueName::new(queue) {
            Ok(queue) if !self.policies.is_empty() => self.of(&queue),
            _ => &self.default,
        }
    }
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
    type Row = (Text, Double, BigInt);
    let sql = session.sql;
    let buckets: Vec<(Stored, f64, i64)> = session.rows::<Row, _>(&sql.buckets, Vec::new())?;
    let mut rules = Rules::read(session)?;
    for (queue, per_sec, burst) in buckets {
        let rate = rules.of_stored(&queue).rate;
        let same = |rate: RateLimit| rate.per_sec() == per_sec && i64::from(rate.burst()) == burst;
        if !rate.is_some_and(same) {
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
    let rows: Vec<PolicyRow> = session.rows::<Row, _>(&sql.policies, Vec::new())?;
    Ok(Policies::new(rows.into_iter().filter_map(|row| readable_one(row.decode()))))
}

#[derive(Queryable)]
struct PolicyRow {
    pattern: Stored,
    paused: Option<i64>,
    concurrency_limit: Option<i64>,
    rate_per_sec: Option<f64>,
    rate_burst: Option<i64>,
    max_lease_us: Option<i64>,
    backoff_base_us: Option<i64>,
    backoff_jitter: Option<f64>,
    backoff_min_us: Option<i64>,
    backoff_max_us: Option<i64>,
    max_attempts: Option<i64>,
    queue_order: Option<Stored>,
    retention_us: Option<i64>,
    archive: Option<Stored>,
    on_expiry: Option<Stored>,
}

impl PolicyRow {
    fn decode(self) -> Result<(QueuePattern, QueuePolicy)> {
        let name = self.pattern.to_string();
        self.checked().map_err(|invalid| StoreError::corrupt(format!("policy of {name:?}: {invalid}")))
    }

    fn checked(self) -> Result<(QueuePattern, QueuePolicy), Invalid> {
        let policy = QueuePolicy {
            paused: self.paused.map(|paused| paused != 0),
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
fn unsigned(number: i64) -> u32 {
    u32::try_from(number).unwrap_or_default()
}

fn length(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

/// A length of time as the tables keep it. The limits of leasehold-core keep it within an i64.
fn micros(length: impl Into<Duration>) -> i64 {
    i64::try_from(length.into().as_micros()).unwrap_or(i64::MAX)
}
