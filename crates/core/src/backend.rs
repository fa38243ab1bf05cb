//! For those who write a backend, and for nobody else: what only a store may make, and the checks that come first.

use chrono::{DateTime, Utc};

use crate::bounded::{Delay, LeaseFor};
use crate::capabilities::Capabilities;
use crate::error::{Result, StoreError};
use crate::event::{Event, EventKind};
use crate::invalid::{Invalid, Problem};
use crate::job::{Epoch, FinishedJob, Job, JobId, Lease, Outcome, Receipt};
use crate::json::Json;
use crate::limits;
use crate::name::QueueName;
use crate::new_job::NewJob;
use crate::policy::{EffectivePolicy, OnExpiry, QueueOrder, QueuePolicy};
use crate::request::{Dequeue, Intervention, ReclaimFate, Reclaimed};
use crate::state::JobState;
use crate::verdict::{Fate, HeartbeatOutcome, RetryAfter, SettleOutcome, Settled, Verdict};

/// The proof that the verdict of `receipt` was applied. Make one only when it was.
pub fn settled(receipt: Receipt, fate: Fate) -> Settled {
    Settled::new(receipt, fate)
}

/// The same, as the outcome of one item of a batch.
pub fn settled_outcome(receipt: Receipt, fate: Fate) -> SettleOutcome {
    SettleOutcome::Settled(settled(receipt, fate))
}

/// The job that `new` becomes, enqueued now in a queue with this policy.
pub fn accepted(id: JobId, new: &NewJob, policy: &EffectivePolicy, now: DateTime<Utc>) -> Job {
    Job {
        id,
        queue: new.queue().clone(),
        kind: new.kind().clone(),
        priority: new.priority(),
        unique_key: new.unique_key().cloned(),
        payload: new.payload().clone(),
        headers: new.headers().clone(),
        attempts: 0,
        max_attempts: new.max_attempts().unwrap_or(policy.max_attempts),
        available_at: new.schedule().available_at(now),
        lease: None,
        epoch: Epoch::ZERO,
        first_leased_at: None,
        last_error: None,
        redrives: 0,
        created_at: now,
        updated_at: now,
    }
}

/// The history row of `job`, finished now. `processed_by` is the worker of its lease, which must therefore still be there;
/// the epoch is taken as it is. The error of a dead letter becomes its last error.
///
/// Whether the row is kept is for [`Archive::keeps`](crate::Archive::keeps) to say.
pub fn finished(job: Job, outcome: Outcome, now: DateTime<Utc>) -> FinishedJob {
    let last_error = match &outcome {
        Outcome::DeadLetter { error } => Some(error.clone()),
        Outcome::Completed { .. } | Outcome::Discarded { .. } => job.last_error,
    };
    FinishedJob {
        id: job.id,
        queue: job.queue,
        kind: job.kind,
        priority: job.priority,
        unique_key: job.unique_key,
        payload: job.payload,
        headers: job.headers,
        attempts: job.attempts,
        max_attempts: job.max_attempts,
        epoch: job.epoch,
        outcome,
        last_error,
        redrives: job.redrives,
        processed_by: job.lease.map(|lease| lease.worker),
        created_at: job.created_at,
        started_at: job.first_leased_at,
        finished_at: now,
    }
}

/// The live job that a dead letter becomes when it is redriven now.
pub fn redriven(dead: FinishedJob, now: DateTime<Utc>) -> Job {
    Job {
        id: dead.id,
        queue: dead.queue,
        kind: dead.kind,
        priority: dead.priority,
        unique_key: dead.unique_key,
        payload: dead.payload,
        headers: dead.headers,
        attempts: 0,
        max_attempts: dead.max_attempts,
        available_at: now,
        lease: None,
        epoch: dead.epoch,
        first_leased_at: dead.started_at,
        last_error: Some(dead.outcome.document().clone()),
        redrives: dead.redrives + 1,
        created_at: dead.created_at,
        updated_at: now,
    }
}

/// The error of a job whose lease has passed: `{"error":"lease_expired"}`.
pub fn lease_expired() -> Json {
    Json::error("lease_expired")
}

/// The error of a job that ran out of attempts without any other: `{"error":"attempts_exhausted"}`.
pub fn attempts_exhausted() -> Json {
    Json::error("attempts_exhausted")
}

/// Takes JSON text that the database has kept.
///
/// # Errors
/// [`Corrupt`](StoreError::Corrupt), naming `column` and `id`.
pub fn stored_json(text: String, column: &str, id: JobId) -> Result<Json> {
    Json::stored(text).map_err(|error| StoreError::corrupt(format!("{column} of job {id}: {error}")))
}

/// Takes a value that the database has kept, such as `stored(QueueName::new(text), "queue_name", id)?`.
///
/// # Errors
/// [`Corrupt`](StoreError::Corrupt), naming `column` and `id`: it is not the caller's input that is bad.
pub fn stored<T>(value: std::result::Result<T, Invalid>, column: &str, id: JobId) -> Result<T> {
    value.map_err(|invalid| StoreError::corrupt(format!("{column} of job {id}: {invalid}")))
}

/// An event, for [`Store::subscribe`](crate::Store::subscribe).
pub fn event(kind: EventKind, queue: QueueName, job: JobId, at: DateTime<Utc>) -> Event {
    Event { kind, queue, job, at }
}

/// What [`Store::enqueue`](crate::Store::enqueue) must refuse before anything else.
///
/// # Errors
/// [`Invalid`](StoreError::Invalid) with the field `jobs` or `payload`.
pub fn check_enqueue(jobs: &[NewJob], capabilities: &Capabilities) -> Result<()> {
    check_batch("jobs", jobs.len())?;
    jobs.iter().try_for_each(|job| check_document("payload", job.payload(), capabilities))
}

/// What [`Store::settle`](crate::Store::settle) must refuse before anything else.
///
/// # Errors
/// [`Invalid`](StoreError::Invalid) with the field `items`, `result`, `error` or `reason`.
pub fn check_settle(items: &[(Receipt, Verdict)], capabilities: &Capabilities) -> Result<()> {
    check_batch("items", items.len())?;
    items.iter().try_for_each(|(_, verdict)| check_verdict(verdict, capabilities))
}

/// The part of [`check_settle`] that concerns one verdict.
///
/// # Errors
/// [`Invalid`](StoreError::Invalid) with the field `result`, `error` or `reason`.
pub fn check_verdict(verdict: &Verdict, capabilities: &Capabilities) -> Result<()> {
    match verdict {
        Verdict::Done(result) => check_document("result", result, capabilities),
        Verdict::Retry { error, .. } | Verdict::Dead { error } => {
            check_document("error", error, capabilities)
        }
        Verdict::Discard { reason } => check_document("reason", reason, capabilities),
        Verdict::Snooze { .. } => Ok(()),
    }
}

/// Refuses a document beyond [`Capabilities::payload_limit`].
///
/// # Errors
/// [`Invalid`](StoreError::Invalid) with the given field.
pub fn check_document(field: &'static str, document: &Json, capabilities: &Capabilities) -> Result<()> {
    let (bytes, limit) = (document.as_str().len(), capabilities.payload_limit);
    if bytes > limit {
        return Err(Invalid::new(field, Problem::TooLong { bytes, limit }).into());
    }
    Ok(())
}

/// Refuses more than 10 000 of anything.
///
/// # Errors
/// [`Invalid`](StoreError::Invalid) with the given field.
pub fn check_batch(field: &'static str, count: usize) -> Result<()> {
    let limit = limits::BATCH as usize;
    if count > limit {
        return Err(Invalid::new(field, Problem::TooMany { count, limit }).into());
    }
    Ok(())
}

/// Refuses a selection of more than 10 000 ids, for [`Store::redrive`](crate::Store::redrive) and
/// [`Store::prune`](crate::Store::prune).
///
/// # Errors
/// [`Invalid`](StoreError::Invalid) with the field `ids`.
pub fn check_ids(ids: Option<&[JobId]>) -> Result<()> {
    check_batch("ids", ids.map_or(0, <[JobId]>::len))
}

/// Refuses a policy with a field that the backend does not promise to keep.
///
/// # Errors
/// [`Unsupported`](StoreError::Unsupported).
pub fn check_policy(policy: &QueuePolicy, capabilities: &Capabilities) -> Result<()> {
    let refusals = [
        (!policy.is_empty() && !capabilities.policies, "policies"),
        (policy.concurrency_limit.is_some() && !capabilities.concurrency_limit, "concurrency limits"),
        (policy.rate.is_some() && !capabilities.rate_limit, "rate limits"),
        (policy.order == Some(QueueOrder::Fifo) && !capabilities.fifo, "Fifo order"),
    ];
    match refusals.into_iter().find(|(refused, _)| *refused) {
        Some((_, feature)) => Err(StoreError::Unsupported { feature }),
        None => Ok(()),
    }
}

/// Whether `receipt` is good for `job`: it has a lease, passed or not, and is in that epoch.
pub fn is_held(job: &Job, receipt: &Receipt) -> bool {
    job.id == receipt.job && job.epoch == receipt.epoch && job.lease.is_some()
}

/// Grants a lease on a job that is Ready: the pure half of [`Store::dequeue`](crate::Store::dequeue).
pub fn lease(job: &mut Job, request: &Dequeue, policy: &EffectivePolicy, now: DateTime<Utc>) {
    let until = crate::time::later(now, policy.lease_for(request.lease_for).get()); // D7, P6
    job.lease = Some(Lease { until, worker: request.worker.clone() });
    job.attempts += 1; // D3
    job.epoch = job.epoch.next(); // D4
    job.first_leased_at.get_or_insert(now); // D8
    job.updated_at = now;
}

/// Extends the lease of a job whose receipt was found good: the pure half of
/// [`Store::heartbeat`](crate::Store::heartbeat). The job is changed only if its lease now ends later than before.
pub fn extend(
    job: &mut Job,
    extend: LeaseFor,
    policy: &EffectivePolicy,
    now: DateTime<Utc>,
) -> HeartbeatOutcome {
    let Some(lease) = job.lease.as_mut().filter(|lease| lease.until > now) else {
        return HeartbeatOutcome::Lost; // H3
    };
    let until = crate::time::later(now, policy.lease_for(extend).get()); // H1, P6
    if until > lease.until {
        (lease.until, job.updated_at) = (until, now); // H2, H6
    }
    let until = lease.until;
    HeartbeatOutcome::Extended { until, left: crate::time::between(now, until) }
}

/// What an administrator's word makes of a live job, `None` if nothing changes: the pure half of
/// [`Store::intervene`](crate::Store::intervene).
pub fn apply_intervention(mut job: Job, intervention: &Intervention, now: DateTime<Utc>) -> Option<Applied> {
    let waits = matches!(job.state(now), JobState::Scheduled | JobState::Retrying);
    if job.lease.is_some() {
        job.epoch = job.epoch.next(); // A4
    }
    let available_at = match intervention {
        Intervention::Discard { reason } => {
            return Some(Applied::finish(job, Outcome::Discarded { reason: reason.clone() }, now)); // A2
        }
        Intervention::RetryLater(schedule) => schedule.available_at(now), // A1
        Intervention::Promote if waits => now,                            // A3
        Intervention::Promote => return None,
    };
    let job = Job { lease: None, available_at, updated_at: now, ..job };
    Some(Applied::Live(job, Fate::Retrying { available_at }))
}

/// What a verdict makes of a leased job: the pure half of [`Store::settle`](crate::Store::settle).
///
/// `random` in 0 to 1 is for the backoff's jitter. The receipt must have been found good.
pub fn apply_verdict(
    job: Job,
    verdict: Verdict,
    policy: &EffectivePolicy,
    now: DateTime<Utc>,
    random: f64,
) -> Applied {
    match verdict {
        Verdict::Done(result) => Applied::finish(job, Outcome::Completed { result }, now),
        Verdict::Dead { error } => Applied::finish(job, Outcome::DeadLetter { error }, now),
        Verdict::Discard { reason } => Applied::finish(job, Outcome::Discarded { reason }, now),
        Verdict::Retry { error, .. } if job.attempts >= job.max_attempts.get() => {
            Applied::finish(job, Outcome::DeadLetter { error }, now)
        }
        Verdict::Retry { error, after } => {
            let delay = match after {
                RetryAfter::Delay(delay) => delay,
                RetryAfter::Backoff => policy.backoff.delay(job.attempts, random),
            };
            let available_at = crate::time::later(now, delay.get());
            let job = Job { lease: None, available_at, last_error: Some(error), updated_at: now, ..job };
            Applied::Live(job, Fate::Retrying { available_at })
        }
        Verdict::Snooze { after } => {
            let available_at = crate::time::later(now, after.get());
            let attempts = job.attempts.saturating_sub(1);
            let job = Job { lease: None, available_at, attempts, updated_at: now, ..job };
            Applied::Live(job, Fate::Snoozed { available_at })
        }
    }
}

/// What reclaiming makes of an Expired or Exhausted job: the pure half of [`Store::reclaim`](crate::Store::reclaim).
///
/// `random` in 0 to 1 is for the backoff's jitter, if the policy asks for one.
pub fn apply_reclaim(
    mut job: Job,
    policy: &EffectivePolicy,
    now: DateTime<Utc>,
    random: f64,
) -> (Applied, Reclaimed) {
    let expired = job.lease.is_some();
    let error = match (&job.last_error, expired) {
        (_, true) => lease_expired(),
        (Some(error), false) => error.clone(),
        (None, false) => attempts_exhausted(),
    };
    if expired {
        job.epoch = job.epoch.next();
    }
    if job.attempts >= job.max_attempts.get() {
        let told = Reclaimed::new(&job, ReclaimFate::DeadLettered);
        return (Applied::finish(job, Outcome::DeadLetter { error }, now), told);
    }
    let delay = match policy.on_expiry {
        OnExpiry::RetryNow => Delay::ZERO,
        OnExpiry::Backoff => policy.backoff.delay(job.attempts, random),
    };
    let available_at = crate::time::later(now, delay.get());
    let told = Reclaimed::new(&job, ReclaimFate::Requeued { available_at });
    let job = Job { lease: None, available_at, last_error: Some(error), updated_at: now, ..job };
    (Applied::Live(job, Fate::Retrying { available_at }), told)
}

/// Why a live job is not running, as far as it and its queue's policy say: the pure half of
/// [`Store::explain`](crate::Store::explain). `None` if the reason lies with other jobs.
pub fn explain_alone(
    job: &Job,
    policy: &EffectivePolicy,
    now: DateTime<Utc>,
) -> Option<crate::inspect::Explanation> {
    crate::derived::explain_alone(job, policy, now)
}

/// What became of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Applied {
    /// It stays in the queue, so changed: lease, times, attempts, epoch and error are as they are to be stored.
    Live(Job, Fate),
    /// It moves to the history, unless the policy's archive says otherwise.
    Finished(FinishedJob, Fate),
}

impl Applied {
    fn finish(job: Job, outcome: Outcome, now: DateTime<Utc>) -> Self {
        let fate = match outcome {
            Outcome::Completed { .. } => Fate::Completed,
            Outcome::DeadLetter { .. } => Fate::DeadLettered,
            Outcome::Discarded { .. } => Fate::Discarded,
        };
        Self::Finished(finished(job, outcome, now), fate)
    }
}
