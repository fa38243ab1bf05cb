//! Taking back what dead workers have left.

use diesel::prelude::Queryable;
use diesel::sql_types::{BigInt, Integer, Nullable, Text};
use leasehold_core::backend::{attempts_exhausted, lease_expired};
use leasehold_core::{BatchSize, Json, OnExpiry, ReclaimFate, Reclaimed, time};
use leasehold_sql::{Rules, Stored, readable_one, reclaimed};

use crate::endings::{End, Endings, Locked, Requeue, lease_ended};
use crate::error::Failure;
use crate::policy::rules;
use crate::session::Session;

/// How often skipped jobs are tried again. Without any, no statement is sent.
const AGAIN: u32 = 3;

/// A row of `lock_due.sql`.
#[derive(Queryable)]
struct Due {
    id: i64,
    queue: Stored,
    kind: Stored,
    attempts: i32,
    max_attempts: i32,
    /// Who let the lease pass; nobody if there was none.
    worker: Option<Stored>,
    has_error: i64,
    epoch: i64,
}

impl Due {
    fn locked(&self) -> Locked {
        Locked { id: self.id, epoch: self.epoch, is_leased: self.worker.is_some() }
    }
}

/// Reclaims Expired and Exhausted jobs.
pub(crate) async fn reclaim(session: &mut Session<'_>, limit: BatchSize) -> Result<Vec<Reclaimed>, Failure> {
    let (now, mut rules) = rules(session).await?;
    let due = lock_due(session, limit.as_usize(), now).await?;
    let (expired, exhausted) = (lease_expired(), attempts_exhausted());
    let mut endings = Endings::default();
    let mut answer = Vec::with_capacity(due.len());
    for job in &due {
        lease_ended(session, &mut rules, &job.queue);
        let fate = judge(&mut endings, &mut rules, job, [&expired, &exhausted], now);
        if matches!(fate, ReclaimFate::Requeued { available_at } if available_at <= now) {
            session.wake(&job.queue);
        }
        let worker = job.worker.as_deref();
        let told = reclaimed(job.id, &job.queue, &job.kind, job.attempts.into(), worker, fate);
        answer.extend(readable_one(told)); // R9
    }
    endings.write(session, now).await?;
    session.commit().await?;
    Ok(answer)
}

/// Locks up to `limit` jobs that are due. Those that others have locked hide no others (R5).
async fn lock_due(
    session: &mut Session<'_>,
    limit: usize,
    now: chrono::DateTime<chrono::Utc>,
) -> Result<Vec<Due>, Failure> {
    type Row = (BigInt, Text, Text, Integer, Integer, Nullable<Text>, BigInt, BigInt);
    let sql = session.sql;
    let (mut due, mut skipped): (Vec<Due>, Vec<i64>) = (Vec::new(), Vec::new());
    while due.len() < limit {
        let page = limit - due.len();
        let params = vec![now.into(), page.into(), (skipped.len() + due.len()).into()];
        let mut ids: Vec<i64> = session.rows::<BigInt, _>(&sql.due, params).await?;
        ids.sort_unstable();
        session.begin().await?;
        let locked: Vec<Due> =
            session.listed::<Row, _>(&sql.lock_due, Vec::new(), &ids, vec![now.into()]).await?;
        let is_skipped = |id: &i64| locked.binary_search_by_key(id, |job| job.id).is_err();
        skipped.extend(ids.iter().copied().filter(is_skipped));
        let known: std::collections::HashSet<i64> = due.iter().map(|job| job.id).collect();
        due.extend(locked.into_iter().filter(|job| !known.contains(&job.id)));
        if ids.len() < page {
            break;
        }
    }
    due.truncate(limit);
    let known: std::collections::HashSet<i64> = due.iter().map(|job| job.id).collect();
    skipped.retain(|id| !known.contains(id));
    skipped.sort_unstable();
    skipped.dedup();
    skipped.truncate(limit - due.len());
    // A heartbeat locks a passed lease for one statement, to find out whether a transaction has it locked: that is over soon.
    for _ in 0..AGAIN {
        let locked: Vec<Due> =
            session.listed::<Row, _>(&sql.lock_due, Vec::new(), &skipped, vec![now.into()]).await?;
        skipped.retain(|id| locked.binary_search_by_key(id, |job| job.id).is_err());
        due.extend(locked);
    }
    Ok(due)
}

fn judge<'a>(
    endings: &mut Endings<'a>,
    rules: &mut Rules,
    job: &Due,
    [expired, exhausted]: [&'a Json; 2],
    now: chrono::DateTime<chrono::Utc>,
) -> ReclaimFate {
    if job.attempts >= job.max_attempts {
        let error = match (&job.worker, job.has_error) {
            (Some(_), _) => Some(expired.as_str()), // R3
            (None, 0) => Some(exhausted.as_str()),  // R4
            (None, _) => None,
        };
        endings.finish(rules, job.locked(), &job.queue, End { raise: true, ..End::dead(error) }); // R8
        return ReclaimFate::DeadLettered;
    }
    let policy = rules.of_stored(&job.queue);
    let available_at = match policy.on_expiry {
        OnExpiry::RetryNow => now, // R2
        OnExpiry::Backoff => {
            let spent = u32::try_from(job.attempts).unwrap_or_default();
            time::later(now, policy.backoff.delay(spent, fastrand::f64()).get()) // P12
        }
    };
    let attempts = i64::from(job.attempts);
    let back = Requeue { attempts, error: Some(expired.as_str()), available_at, raise: true };
    endings.requeue(job.locked(), back); // R7, R8
    ReclaimFate::Requeued { available_at }
}
