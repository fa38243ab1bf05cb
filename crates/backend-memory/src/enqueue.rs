//! Accepting jobs.

use leasehold_core::{Enqueued, EventKind, JobId, NewJob, backend};

use crate::directory::Slot;
use crate::state::State;

/// Puts jobs into their queues. Nothing can fail once the batch was checked, so it is accepted whole (E1).
pub(crate) fn enqueue(state: &mut State, jobs: &[NewJob]) -> Vec<Enqueued> {
    jobs.iter().map(|new| enqueue_one(state, new)).collect()
}

/// The live job that keeps `new` out: the one with its queue and unique key.
pub(crate) fn twin(state: &State, slot: Slot, new: &NewJob) -> Option<JobId> {
    state.queues[slot].keys.get(new.unique_key()?).copied()
}

fn enqueue_one(state: &mut State, new: &NewJob) -> Enqueued {
    let slot = state.slot(new.queue());
    if let Some(id) = twin(state, slot, new) {
        return Enqueued { id, deduplicated: true }; // E3, E4
    }
    let id = state.next_id();
    let job = backend::accepted(id, new, &state.queues[slot].policy, state.now); // E8, E11, E12
    state.insert(slot, job);
    state.tell(EventKind::Enqueued, new.queue(), id);
    Enqueued { id, deduplicated: false }
}
