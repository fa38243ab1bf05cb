//! Taking back what dead workers have left.

use leasehold_core::time::later;
use leasehold_core::{BatchSize, EventKind, Job, JobId, OnExpiry, Outcome, ReclaimFate, Reclaimed, backend};

use crate::directory::Slot;
use crate::state::{Row, State};

/// Reclaims Expired and Exhausted jobs, those that have been so for the longest time first (R1, R5).
pub(crate) fn reclaim(state: &mut State, limit: BatchSize) -> Vec<Reclaimed> {
    let first = state.reclaimable.iter().take(limit.as_usize());
    let ids: Vec<JobId> = first.map(|(_, id)| *id).collect();
    ids.into_iter().filter_map(|id| reclaim_one(state, id)).collect() // R9
}

fn reclaim_one(state: &mut State, id: JobId) -> Option<Reclaimed> {
    let Row { job, slot } = state.remove(id)?;
    let spent = job.attempts >= job.max_attempts.get();
    let error = match &job.lease {
        Some(_) => backend::lease_expired(), // R3, R8
        None => job.last_error.clone().unwrap_or_else(backend::attempts_exhausted), // R4
    };
    let fate = if spent {
        state.tell(EventKind::DeadLettered, &job.queue, id);
        state.archive(slot, backend::finished(job, Outcome::DeadLetter { error }, state.now));
        ReclaimFate::DeadLettered
    } else {
        requeue(state, slot, Job { last_error: Some(error), ..job })
    };
    Some(Reclaimed { id, fate })
}

/// Takes the lease away and nothing else: attempts and epoch stay (R8).
fn requeue(state: &mut State, slot: Slot, job: Job) -> ReclaimFate {
    let random = state.random();
    let policy = state.queues[slot].policy.clone();
    let available_at = match policy.on_expiry {
        OnExpiry::RetryNow => state.now, // R2
        OnExpiry::Backoff => later(state.now, policy.backoff.delay(job.attempts, random).get()), // P12
    };
    state.tell(EventKind::Reclaimed, &job.queue, job.id);
    state.insert(slot, Job { lease: None, available_at, updated_at: state.now, ..job });
    ReclaimFate::Requeued { available_at }
}
