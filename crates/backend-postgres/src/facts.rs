//! What decides when a queue is worth a look and why a job is not running: a few index probes, however long the queue.

use chrono::{DateTime, Utc};
use diesel::prelude::Queryable;
use diesel::sql_types::{BigInt, Bool, Double, Integer, Nullable, Text, Timestamptz};
use diesel_async::AsyncPgConnection;
use leasehold_core::{
    EffectivePolicy, Explanation, Job, JobId, NextAvailable, Outcome, Policies, QueueName, QueueOrder,
    QueueUsage, Queues, RateLimit, Record, StoreError, backend,
};

use crate::error::Failure;
use crate::inspect;
use crate::policy::policies;
use crate::row::Time;
use crate::selection::Selection;
use crate::sql::Statements;
use crate::statement::Statement;

/// A row of `facts.sql`.
#[derive(Queryable)]
struct Facts {
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
}

/// The soonest time at which it is worth to look again (N1, N2).
pub(crate) async fn next_available_at(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    queues: &Queues,
) -> Result<Option<NextAvailable>, Failure> {
    let mut facts = facts(conn, sql, queues).await?;
    // A policy can delay what there is, no more. An idle worker asks this all the time: it costs one statement.
    facts.retain(|facts| facts.first.is_some());
    let Some(now) = facts.first().map(Facts::now) else {
        return Ok(None);
    };
    let policies = policies(conn, sql).await?;
    let soonest = facts.iter().filter_map(|facts| facts.next_look(&facts.policy(&policies))).min();
    Ok(soonest.map(|at| NextAvailable::new(at, now)))
}

/// What the limits of one queue see.
pub(crate) async fn usage(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    queue: &QueueName,
) -> Result<QueueUsage, Failure> {
    let policies = policies(conn, sql).await?;
    let facts = facts(conn, sql, &queue.into()).await?;
    Ok(facts.first().map_or_else(QueueUsage::default, |facts| QueueUsage {
        leased: facts.leased.unsigned_abs(),
        next_token_at: facts.next_token_at(&facts.policy(&policies)),
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
        Some(Ok(Record::Finished(job))) => {
            return Ok(Ok(match job.outcome {
                Outcome::DeadLetter { error } => Explanation::DeadLetter { at: job.finished_at, error },
                outcome => Explanation::Finished { status: outcome.status(), at: job.finished_at },
            }));
        }
        Some(Ok(Record::Live(job))) => job,
    };
    let policy = policies(conn, sql).await?.effective(&job.queue);
    let facts = facts(conn, sql, &(&job.queue).into()).await?;
    let explanation = facts.first().map(|facts| {
        backend::explain_alone(&job, &policy, facts.now()).unwrap_or_else(|| facts.explain(&job, &policy))
    });
    Ok(Ok(explanation.unwrap_or(Explanation::Unknown)))
}

impl Facts {
    fn now(&self) -> DateTime<Utc> {
        self.now.or_epoch()
    }

    fn policy(&self, policies: &Policies) -> EffectivePolicy {
        QueueName::new(&self.queue).map(|queue| policies.effective(&queue)).unwrap_or_default()
    }

    /// The reasons that the other jobs of the queue give.
    fn explain(&self, job: &Job, policy: &EffectivePolicy) -> Explanation {
        let fifo = policy.order == QueueOrder::Fifo;
        let before = self.first_leased.or(self.first).filter(|first| fifo && *first != job.id.get());
        if let Some(first) = before {
            return Explanation::WaitsBehind { job: JobId::new(first) };
        }
        if let Some(limit) = policy.concurrency_limit.filter(|limit| self.leased >= i64::from(limit.get())) {
            return Explanation::ConcurrencyLimit { limit };
        }
        if let Some(until) = self.next_token_at(policy) {
            return Explanation::RateLimit { until };
        }
        match self.first_ready.filter(|first| !fifo && *first != job.id.get()) {
            Some(first) => Explanation::WaitsBehind { job: JobId::new(first) },
            None => Explanation::Next,
        }
    }

    /// This queue's part in `next_available_at`.
    fn next_look(&self, policy: &EffectivePolicy) -> Option<DateTime<Utc>> {
        if policy.paused {
            return None;
        }
        let lease = self.first_lease_until.map(Time::or_epoch);
        let soonest = lease.into_iter().chain(self.has_exhausted.then(|| self.now())).min();
        let places = match policy.order {
            QueueOrder::Fifo => 1,
            QueueOrder::Priority => policy.concurrency_limit.map_or(u32::MAX, |limit| limit.get()),
        };
        if self.leased >= i64::from(places) {
            return soonest;
        }
        let next = match policy.order {
            QueueOrder::Fifo => self.first_available_at.filter(|_| self.first_waits == Some(true)),
            QueueOrder::Priority => self.next_available_at,
        };
        let token = self.next_token_at(policy);
        let next = next.map(Time::or_epoch).map(|next| token.map_or(next, |token| next.max(token)));
        soonest.into_iter().chain(next).min()
    }

    /// When the rate limit allows the next lease; `None` if one is allowed now. A changed rate starts with a full bucket.
    fn next_token_at(&self, policy: &EffectivePolicy) -> Option<DateTime<Utc>> {
        let rate: RateLimit = policy.rate?;
        let same =
            self.rate_per_sec == Some(rate.per_sec()) && self.rate_burst == i32::try_from(rate.burst()).ok();
        let full_at = self.full_at.filter(|_| same).map(Time::or_epoch);
        (rate.tokens(full_at, self.now()) == 0).then(|| rate.next_token_at(full_at, self.now()))
    }
}

async fn facts(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    queues: &Queues,
) -> Result<Vec<Facts>, Failure> {
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
    );
    let selection = Selection::of(queues);
    let params = vec![selection.names(), selection.from(), selection.to()];
    Statement::<Row>::new(&sql.facts, params).rows(conn).await
}
