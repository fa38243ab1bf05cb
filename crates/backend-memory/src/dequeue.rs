//! Leasing jobs.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use leasehold_core::{Dequeue, EventKind, Job, JobId, QueueName, QueuePrefix, Queues, backend};

use crate::directory::Slot;
use crate::state::State;

/// How many prefixes are remembered. More are hardly ever in use at once; those forgotten start again.
const TURNS: usize = 1024;

/// For how many jobs an answer has room from the start.
const ROOM: usize = 128;

/// Which queue of each prefix was served last.
#[derive(Default)]
pub(crate) struct Turns(HashMap<QueuePrefix, QueueName>);

/// Leases jobs: in one order over named queues, in turns over a prefix.
pub(crate) fn dequeue(state: &mut State, request: &Dequeue) -> Vec<Job> {
    match &request.queues {
        Queues::Named(names) => lease_by_rank(state, names, request),
        Queues::Matching(prefix) => lease_in_turns(state, prefix, request),
    }
}

/// Merges the queues by the ranks of their first jobs (D6).
fn lease_by_rank(state: &mut State, names: &[QueueName], request: &Dequeue) -> Vec<Job> {
    let slots = state.queues.claimable_among(names);
    let heads = slots.into_iter().filter_map(|slot| Some(Reverse((state.head(slot)?, slot))));
    let mut heads: BinaryHeap<_> = heads.collect();
    let mut leased =
        Vec::with_capacity(if heads.is_empty() { 0 } else { request.limit.as_usize().min(ROOM) });
    while leased.len() < request.limit.as_usize() {
        let Some(Reverse(((_, _, id), slot))) = heads.pop() else {
            break;
        };
        leased.extend(lease(state, slot, id, request));
        if state.queues.is_claimable(slot) {
            heads.extend(state.head(slot).map(|head| Reverse((head, slot))));
        }
    }
    leased
}

/// Serves the queues one by one in the order of their names, from where the last call stopped, round and round (D11).
fn lease_in_turns(state: &mut State, prefix: &QueuePrefix, request: &Dequeue) -> Vec<Job> {
    let mut last = state.turns.0.remove(prefix);
    let mut leased = Vec::new();
    while leased.len() < request.limit.as_usize() {
        let Some(slot) = state.queues.next_turn(prefix, last.as_ref()) else {
            break;
        };
        let Some((_, _, id)) = state.head(slot) else {
            break;
        };
        last = Some(state.queues[slot].name.clone());
        leased.extend(lease(state, slot, id, request));
    }
    if state.turns.0.len() == TURNS {
        state.turns.0.clear();
    }
    state.turns.0.extend(last.map(|last| (prefix.clone(), last)));
    leased
}

/// Grants one lease and works out whether the queue has another to grant.
fn lease(state: &mut State, slot: Slot, id: JobId, request: &Dequeue) -> Option<Job> {
    let now = state.now;
    let row = state.update(id, |job, policy| backend::lease(job, request, policy, now))?;
    let job = row.job.clone(); // D12
    state.queues[slot].granted += 1; // P3
    state.queues.touch(slot);
    state.refresh(slot);
    state.tell(EventKind::Leased, &job.queue, id);
    Some(job)
}
