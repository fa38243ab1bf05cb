//! Taking back what dead workers have left.

use diesel::prelude::Queryable;
use diesel::sql_types::{BigInt, Nullable, Text};
use leasehold_core::backend::{attempts_exhausted, lease_expired};
use leasehold_core::{BatchSize, OnExpiry, ReclaimFate, Reclaimed, Result, time};
use leasehold_sql::{Rules, Stored, readable_one, reclaimed};

use crate::error::Failure;
use crate::policy::rules;
use crate::session::Session;
use crate::settle::{End, Requeue, finish, lease_ended, requeue};

/// A row of `due.sql`.
#[derive(Queryable)]
struct Due {
    id: i64,
    queue: Stored,
    kind: Stored,
    attempts: i64,
    max_attempts: i64,
    /// Who let the lease pass; nobody if there was none.
    worker: Option<Stored>,
    has_error: i64,
}

/// Reclaims Expired and Exhausted jobs.
pub(crate) fn reclaim(session: &mut Session<'_>, limit: BatchSize) -> Result<Vec<Reclaimed>, Failure> {
    type Row = (BigInt, Text, Text, BigInt, BigInt, Nullable<Text>, BigInt);
    let sql = session.sql;
    let due: Vec<Due> = session.rows::<Row, _>(&sql.due, vec![session.now.into(), limit.get().into()])?;
    let mut rules = rules(session)?;
    let mut answer = Vec::with_capacity(due.len());
    for job in due {
        let fate = reclaim_one(session, &mut rules, &job)?;
        answer.extend(readable_one(job.told(fate))); // R9
    }
    Ok(answer)
}

fn reclaim_one(session: &mut Session<'_>, rules: &mut Rules, job: &Due) -> Result<ReclaimFate, Failure> {
    lease_ended(session, rules, &job.queue);
    let expired = job.worker.is_some();
    let (expiry, spent) = (lease_expired(), attempts_exhausted());
    if job.attempts >= job.max_attempts {
        let error = match (expired, job.has_error) {
            (true, _) => Some(expiry.as_str()), // R3
            (false, 0) => Some(spent.as_str()), // R4
            (false, _) => None,
        };
        finish(session, rules, job.id, &job.queue, &End { raise: true, ..End::dead(error) })?; // R8
        return Ok(ReclaimFate::DeadLettered);
    }
    let policy = rules.of_stored(&job.queue);
    let available_at = match policy.on_expiry {
        OnExpiry::RetryNow => session.now, // R2
        OnExpiry::Backoff => {
            let spent = u32::try_from(job.attempts).unwrap_or_default();
            time::later(session.now, policy.backoff.delay(spent, fastrand::f64()).get()) // P12
        }
    };
    let back = Requeue { attempts: job.attempts, error: Some(expiry.as_str()), available_at, raise: true };
    requeue(session, job.id, &job.queue, &back)?; // R7, R8
    Ok(ReclaimFate::Requeued { available_at })
}

impl Due {
    fn told(self, fate: ReclaimFate) -> Result<Reclaimed> {
        reclaimed(self.id, &self.queue, &self.kind, self.attempts, self.worker.as_deref(), fate)
    }
}
