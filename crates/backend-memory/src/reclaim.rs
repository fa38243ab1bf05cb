//! Taking back what dead workers have left.

use leasehold_core::backend::{self, Applied};
use leasehold_core::{BatchSize, EventKind, JobId, Reclaimed};

use crate::state::{Row, State};

/// Reclaims Expired and Exhausted jobs, those that have been so for the longest time first (R1, R5).
pub(crate) fn reclaim(state: &mut State, limit: BatchSize) -> Vec<Reclaimed> {
    let free = state.reclaimable.iter().map(|(_, id)| *id).filter(|id| !state.locks.is_locked(*id)); // T10
    let ids: Vec<JobId> = free.take(limit.as_usize()).collect();
    ids.into_iter().filter_map(|id| reclaim_one(state, id)).collect() // R9
}

fn reclaim_one(state: &mut State, id: JobId) -> Option<Reclaimed> {
    let Row { job, slot } = state.remove(id)?;
    let random = state.random();
    let policy = &state.queues[slot].policy;
    let (applied, reclaimed) = backend::apply_reclaim(job, policy, state.now, random); // R2, R3, R4, R8, P12
    match applied {
        Applied::Live(job, _) => {
            state.tell(EventKind::Reclaimed, &job.queue, id);
            state.insert(slot, job);
        }
        Applied::Finished(job, _) => {
            state.tell(EventKind::DeadLettered, &job.queue, id);
            state.archive(slot, job);
        }
    }
    Some(reclaimed)
}
