//! What decides when a queue is worth a look and why a job is not running: a few index probes, however long the queue.

use chrono::{DateTime, Utc};
use diesel::prelude::Queryable;
use diesel::sql_types::{BigInt, Double, Nullable, Text};
use leasehold_core::{Explanation, JobId, NextAvailable, QueueName, QueueUsage, Queues, Record, backend};
use leasehold_sql::{Bucket, Facts, Stored, StoredTime, explain_finished};

use crate::error::Failure;
use crate::inspect;
use crate::policy::rules;
use crate::selection::Selection;
use crate::session::Session;

/// A row of `facts.sql`.
#[derive(Queryable)]
struct FactsRow {
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
    let mut rules = rules(session)?;
    let mut soonest = None;
    for queue in live(session, queues)? {
        let policy = rules.of(&queue);
        if !policy.paused {
            let next = facts(session, &queue)?.next_look(policy);
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
    let mut rules = rules(session)?;
    let facts = facts(session, queue)?;
    Ok(QueueUsage {
        leased: facts.leased.unsigned_abs(),
        next_token_at: facts.next_token_at(rules.of(queue)),
    })
}

/// Why a job is not running (Y1 to Y5).
pub(crate) fn explain(session: &mut Session<'_>, id: JobId) -> Result<Explanation, Failure> {
    let job = match inspect::get(session, id)? {
        None => return Ok(Explanation::Unknown),
        Some(Record::Finished(job)) => return Ok(explain_finished(job)),
        Some(Record::Live(job)) => job,
    };
    let mut rules = rules(session)?;
    let policy = rules.of(&job.queue);
    if let Some(explanation) = backend::explain_alone(&job, policy, session.now) {
        return Ok(explanation);
    }
    Ok(facts(session, &job.queue)?.explain(&job, policy))
}

impl FactsRow {
    fn at(self, now: DateTime<Utc>) -> Facts {
        let rate = self.rate_per_sec.zip(self.rate_burst);
        let bucket = self.full_at.zip(rate).map(|(full_at, (rate_per_sec, rate_burst))| Bucket {
            full_at: full_at.or_epoch(),
            rate_per_sec,
            rate_burst,
        });
        Facts {
            now,
            leased: self.leased,
            first_lease_until: self.first_lease_until.map(i64::or_epoch),
            first_leased: self.first_leased,
            has_exhausted: self.has_exhausted != 0,
            first: self.first,
            first_available_at: self.first_available_at.map(i64::or_epoch),
            first_waits: self.first_waits == Some(1),
            next_available_at: self.next_available_at.map(i64::or_epoch),
            first_ready: self.first_ready,
            bucket,
        }
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
    let row = session.row::<Row, FactsRow>(&sql.facts, vec![queue.as_str().into(), session.now.into()])?;
    row.map(|row| row.at(session.now))
        .ok_or_else(|| Failure::Other("a statement that has one row had none".into()))
}
