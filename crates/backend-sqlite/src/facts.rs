//! What decides when a queue is worth a look and why a job is not running: a few index probes, however long the queue.

use chrono::{DateTime, Utc};
use diesel::prelude::Queryable;
use diesel::sql_types::{BigInt, Double, Nullable, Text};
use leasehold_core::{
    EffectivePolicy, Explanation, Job, JobId, NextAvailable, Outcome, QueueName, QueueOrder, QueueUsage,
    Queues, RateLimit, Record, backend,
};

use crate::error::Failure;
use crate::inspect;
use crate::policy::Rules;
use crate::row::{Stored, time_or_epoch};
use crate::selection::Selection;
use crate::session::Session;

/// A row of `facts.sql`.
#[derive(Queryable)]
struct Facts {
    leased: i64,
    first_lease_until: Option<i64>,
    first_leased: Option<i64>,
    has_exhausted: i64,
    first: Option<i64>,
    first_available_at: Option<i64>,
    first_waits: Option<i64>,
    next_available_at: Option<i64>,
    first_ready: Option<i64>,
    full_at: Option<i64>,
    rate_per_sec: Option<f64>,
    rate_burst: Option<i64>,
}

/// The soonest time at which it is worth to look again (N1, N2).
pub(crate) fn next_available_at(
    session: &mut Session<'_>,
    queues: &Queues,
) -> Result<Option<NextAvailable>, Failure> {
    let mut rules = Rules::read(session)?;
    let mut soonest = None;
    for queue in live(session, queues)? {
        let policy = rules.of(&queue);
        if !policy.paused {
            let next = facts(session, &queue)?.next_look(policy, session.now);
            soonest = soonest.into_iter().chain(next).min();
        }
    }
    Ok(soonest.map(|at| NextAvailable::new(at, session.now)))
}

/// The queues asked for that may have live jobs.
fn live(session: &mut Session<'_>, queues: &Queues) -> Result<Vec<QueueName>, Failure> {
    if let Queues::Named(names) = queues {
        return Ok(names.to_vec());
    }
    let selection = Selection::of(queues);
    let sql = session.sql;
    let names = session.rows::<Text, Stored>(&sql.queues, vec![selection.from(), selection.to()])?;
    Ok(names.iter().filter_map(|name| QueueName::new(&**name).ok()).collect())
}

/// What the limits of one queue see.
pub(crate) fn usage(session: &mut Session<'_>, queue: &QueueName) -> Result<QueueUsage, Failure> {
    let mut rules = Rules::read(session)?;
    let facts = facts(session, queue)?;
    Ok(QueueUsage {
        leased: facts.leased.unsigned_abs(),
        next_token_at: facts.next_token_at(rules.of(queue), session.now),
    })
}

/// Why a job is not running (Y1 to Y5).
pub(crate) fn explain(session: &mut Session<'_>, id: JobId) -> Result<Explanation, Failure> {
    let job = match inspect::get(session, id)? {
        None => return Ok(Explanation::Unknown),
        Some(Record::Finished(job)) => {
            return Ok(match job.outcome {
                Outcome::DeadLetter { error } => Explanation::DeadLetter { at: job.finished_at, error },
                outcome => Explanation::Finished { status: outcome.status(), at: job.finished_at },
            });
        }
        Some(Record::Live(job)) => job,
    };
    let mut rules = Rules::read(session)?;
    let policy = rules.of(&job.queue);
    if let Some(explanation) = backend::explain_alone(&job, policy, session.now) {
        return Ok(explanation);
    }
    Ok(facts(session, &job.queue)?.explain(&job, policy, session.now))
}

impl Facts {
    /// The reasons that the other jobs of the queue give.
    fn explain(&self, job: &Job, policy: &EffectivePolicy, now: DateTime<Utc>) -> Explanation {
        let fifo = policy.order == QueueOrder::Fifo;
        let before = self.first_leased.or(self.first).filter(|first| fifo && *first != job.id.get());
        if let Some(first) = before {
            return Explanation::WaitsBehind { job: JobId::new(first) };
        }
        if let Some(limit) = policy.concurrency_limit.filter(|limit| self.leased >= i64::from(limit.get())) {
            return Explanation::ConcurrencyLimit { limit };
        }
        if let Some(until) = self.next_token_at(policy, now) {
            return Explanation::RateLimit { until };
        }
        match self.first_ready.filter(|first| !fifo && *first != job.id.get()) {
            Some(first) => Explanation::WaitsBehind { job: JobId::new(first) },
            None => Explanation::Next,
        }
    }

    /// This queue's part in `next_available_at`.
    fn next_look(&self, policy: &EffectivePolicy, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let lease = self.first_lease_until.map(time_or_epoch);
        let soonest = lease.into_iter().chain((self.has_exhausted != 0).then_some(now)).min();
        let places = match policy.order {
            QueueOrder::Fifo => 1,
            QueueOrder::Priority => policy.concurrency_limit.map_or(u32::MAX, |limit| limit.get()),
        };
        if self.leased >= i64::from(places) {
            return soonest;
        }
        let next = match policy.order {
            QueueOrder::Fifo => self.first_available_at.filter(|_| self.first_waits == Some(1)),
            QueueOrder::Priority => self.next_available_at,
        };
        let token = self.next_token_at(policy, now);
        let next = next.map(time_or_epoch).map(|next| token.map_or(next, |token| next.max(token)));
        soonest.into_iter().chain(next).min()
    }

    /// When the rate limit allows the next lease; `None` if one is allowed now. A changed rate starts with a full bucket.
    fn next_token_at(&self, policy: &EffectivePolicy, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let rate: RateLimit = policy.rate?;
        let same =
            self.rate_per_sec == Some(rate.per_sec()) && self.rate_burst == Some(i64::from(rate.burst()));
        let full_at = self.full_at.filter(|_| same).map(time_or_epoch);
        (rate.tokens(full_at, now) == 0).then(|| rate.next_token_at(full_at, now))
    }
}

fn facts(session: &mut Session<'_>, queue: &QueueName) -> Result<Facts, Failure> {
    type Row = (
        BigInt,
        Nullable<BigInt>,
        Nullable<BigInt>,
        BigInt,
        Nullable<BigInt>,
        Nullable<BigInt>,
        Nullable<BigInt>,
        Nullable<BigInt>,
        Nullable<BigInt>,
        Nullable<BigInt>,
        Nullable<Double>,
        Nullable<BigInt>,
    );
    let sql = session.sql;
    let facts = session.row::<Row, Facts>(&sql.facts, vec![queue.as_str().into(), session.now.into()])?;
    facts.ok_or_else(|| Failure::Other("a statement that has one row had none".into()))
}
