//! Everything but dequeue: find the job, ask what becomes of it, put that in its place.

use chrono::{DateTime, Utc};
use leasehold_core::backend::{self, Applied};
use leasehold_core::{
    BatchSize, Enqueued, HeartbeatOutcome, Intervention, JobId, LeaseFor, NewJob, Prune, QueuePattern,
    QueuePolicy, Receipt, Reclaimed, Redrive, Redriven, Result, SettleOutcome, StoreError, Verdict,
};

use crate::tables::Tables;

pub(crate) fn enqueue(tables: &mut Tables<'_>, jobs: &[NewJob], now: DateTime<Utc>) -> Result<Vec<Enqueued>> {
    let policies = tables.policies()?;
    let mut answers = Vec::with_capacity(jobs.len());
    for new in jobs {
        if let Some(id) = tables.holder(new.queue(), new.unique_key())? {
            answers.push(Enqueued { id, deduplicated: true }); // E3, E4
            continue;
        }
        let id = tables.next_id()?;
        tables.put(&backend::accepted(id, new, &policies.effective(new.queue()), now))?; // E8, E11, E12
        answers.push(Enqueued { id, deduplicated: false });
    }
    Ok(answers)
}

pub(crate) fn settle(
    tables: &mut Tables<'_>,
    items: &[(Receipt, Verdict)],
    now: DateTime<Utc>,
) -> Result<Vec<SettleOutcome>> {
    items.iter().map(|(receipt, verdict)| settle_one(tables, receipt, verdict.clone(), now)).collect() // S1
}

pub(crate) fn settle_one(
    tables: &mut Tables<'_>,
    receipt: &Receipt,
    verdict: Verdict,
    now: DateTime<Utc>,
) -> Result<SettleOutcome> {
    let Some(job) = tables.held(receipt)? else { return Ok(SettleOutcome::LeaseLost) }; // S2
    let policy = tables.policies()?.effective(&job.queue);
    let applied = backend::apply_verdict(job, verdict, &policy, now, fastrand::f64()); // S3 to S9
    let (Applied::Live(_, fate) | Applied::Finished(_, fate)) = applied;
    replace(tables, receipt.job, applied)?;
    Ok(backend::settled_outcome(*receipt, fate))
}

pub(crate) fn heartbeat(
    tables: &mut Tables<'_>,
    receipts: &[Receipt],
    extend: LeaseFor,
    now: DateTime<Utc>,
) -> Result<Vec<HeartbeatOutcome>> {
    let policies = tables.policies()?;
    let mut outcomes = Vec::with_capacity(receipts.len());
    for receipt in receipts {
        let Some(mut job) = tables.held(receipt)? else {
            outcomes.push(HeartbeatOutcome::Lost); // H4
            continue;
        };
        let policy = policies.effective(&job.queue);
        outcomes.push(backend::extend(&mut job, extend, &policy, now));
        tables.take(job.id)?; // As it was: its place in the index goes with it.
        tables.put(&job)?;
    }
    Ok(outcomes)
}

pub(crate) fn reclaim(
    tables: &mut Tables<'_>,
    limit: BatchSize,
    now: DateTime<Utc>,
) -> Result<Vec<Reclaimed>> {
    let policies = tables.policies()?;
    let mut reclaimed = Vec::new();
    for id in tables.reclaimable(limit.as_usize(), now)? {
        let Some(job) = tables.job(id)? else { continue };
        let policy = policies.effective(&job.queue);
        let (applied, told) = backend::apply_reclaim(job, &policy, now, fastrand::f64()); // R2, R3, R4, R8, P12
        replace(tables, id, applied)?;
        reclaimed.push(told);
    }
    Ok(reclaimed)
}

pub(crate) fn intervene(
    tables: &mut Tables<'_>,
    id: JobId,
    intervention: &Intervention,
    now: DateTime<Utc>,
) -> Result<()> {
    let Some(job) = tables.job(id)? else {
        return Err(match tables.finished(id)? {
            Some(_) => StoreError::conflict(format!("job {id} is finished")),
            None => StoreError::NotFound(id),
        }); // A5
    };
    match backend::apply_intervention(job, intervention, now) {
        Some(applied) => replace(tables, id, applied), // A1, A2, A3, A4
        None => Ok(()),
    }
}

pub(crate) fn redrive(tables: &mut Tables<'_>, request: &Redrive, now: DateTime<Utc>) -> Result<Redriven> {
    let limit = request.limit.as_usize();
    let mut answer = Redriven::default();
    let any = Redrive { ids: None, ..request.clone() };
    for id in tables.finished_ids(request.ids.as_deref())? {
        if answer.jobs.len() == limit {
            break;
        }
        let Some(dead) = tables.finished(id)?.filter(|job| any.matches(job)) else { continue }; // X1
        if tables.holder(&dead.queue, dead.unique_key.as_ref())?.is_none() {
            tables.forget(id)?;
            tables.put(&backend::redriven(dead, now))?; // X2, X3, X5
            answer.jobs.push(id);
        } else if answer.conflicts.len() < limit {
            answer.conflicts.push(id); // X4
        }
    }
    Ok(answer)
}

pub(crate) fn prune(tables: &mut Tables<'_>, request: &Prune, now: DateTime<Utc>) -> Result<u64> {
    let policies = tables.policies()?;
    let any = Prune { ids: None, ..request.clone() };
    let mut pruned = 0;
    for id in tables.finished_ids(request.ids.as_deref())? {
        if pruned == u64::from(request.limit.get()) {
            break; // U2
        }
        let Some(job) = tables.finished(id)? else { continue };
        if any.matches(&job, policies.effective(&job.queue).retention, now) {
            tables.forget(id)?; // U1, U3
            pruned += 1;
        }
    }
    if request.forgets_keys() {
        pruned += tables.forget_keys(now, u64::from(request.limit.get()) - pruned)?; // U4
    }
    Ok(pruned)
}

pub(crate) fn set_policy(
    tables: &mut Tables<'_>,
    pattern: &QueuePattern,
    policy: &QueuePolicy,
) -> Result<()> {
    let mut policies = tables.policies()?;
    policies.set(pattern.clone(), policy.clone());
    tables.set_policies(&policies) // P9
}

/// Puts what has become of a job in its place: in the queue, in the history, or nowhere if that is the policy (S12, P7).
fn replace(tables: &mut Tables<'_>, id: JobId, applied: Applied) -> Result<()> {
    tables.take(id)?;
    match applied {
        Applied::Live(job, _) => tables.put(&job),
        Applied::Finished(job, _) => {
            let archive = tables.policies()?.effective(&job.queue).archive;
            if archive.keeps(job.outcome.status()) { tables.archive(&job) } else { Ok(()) }
        }
    }
}
