//! Finished jobs: kept, redriven, pruned.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use chrono::{DateTime, Utc};
use leasehold_core::{
    Delay, EventKind, FinalStatus, FinishedJob, JobId, Prune, PruneAge, QueueName, Redrive, Redriven,
    backend, time,
};

use crate::state::State;

/// Finished jobs by id, and in the two orders in which they go.
#[derive(Default)]
pub(crate) struct History {
    rows: BTreeMap<JobId, Box<FinishedJob>>,
    dead: BTreeSet<JobId>,
    by_end: BTreeSet<(DateTime<Utc>, JobId)>,
}

impl History {
    pub(crate) fn get(&self, id: JobId) -> Option<&FinishedJob> {
        self.rows.get(&id).map(Box::as_ref)
    }

    pub(crate) fn rows(&self) -> &BTreeMap<JobId, Box<FinishedJob>> {
        &self.rows
    }

    /// Keeps a finished job; says whether it is a dead letter.
    pub(crate) fn insert(&mut self, job: FinishedJob) -> bool {
        let dead = job.outcome.status() == FinalStatus::DeadLetter;
        if dead {
            self.dead.insert(job.id);
        }
        self.by_end.insert((job.finished_at, job.id));
        self.rows.insert(job.id, Box::new(job));
        dead
    }

    fn remove(&mut self, id: JobId) -> Option<FinishedJob> {
        let job = *self.rows.remove(&id)?;
        self.dead.remove(&id);
        self.by_end.remove(&(job.finished_at, id));
        Some(job)
    }

    /// What ended at this time or before, oldest first.
    fn ended_by(&self, deadline: DateTime<Utc>) -> impl Iterator<Item = &FinishedJob> {
        let ended = self.by_end.range(..=(deadline, JobId::new(i64::MAX)));
        ended.filter_map(|(_, id)| self.get(*id))
    }
}

/// Puts dead letters back into their queues, oldest first (X1).
pub(crate) fn redrive(state: &mut State, request: &Redrive) -> Redriven {
    let ids: Option<BTreeSet<JobId>> = request.ids.as_ref().map(|ids| ids.iter().copied().collect());
    let any = Redrive { ids: None, queues: request.queues.clone(), kind: request.kind.clone(), ..*request };
    let limit = request.limit.as_usize();
    let mut answer = Redriven::default();
    let mut last = None;
    while answer.jobs.len() < limit {
        last = next_dead(state, &any, ids.as_ref(), last);
        match last {
            None => break,
            Some(id) if redrive_one(state, id) => answer.jobs.push(id),
            Some(id) if answer.conflicts.len() < limit => answer.conflicts.push(id), // X4
            Some(_) => {}
        }
    }
    answer
}

/// Forgets finished jobs, oldest first, then passed idempotency keys; says how many.
pub(crate) fn prune(state: &mut State, request: &Prune) -> u64 {
    let ids = prunable(state, request);
    for id in &ids {
        remove(state, *id);
    }
    let jobs = ids.len() as u64;
    match request.forgets_keys() {
        true => jobs + state.ledger.forget_keys(state.now, u64::from(request.limit.get()) - jobs), // U4
        false => jobs,
    }
}

/// Moves one dead letter back, unless a live job has its unique key.
fn redrive_one(state: &mut State, id: JobId) -> bool {
    let key = state.history.get(id).map(|dead| (&dead.queue, dead.unique_key.as_ref()));
    let taken = match key {
        Some((queue, Some(key))) => {
            state.queues.find(queue).is_some_and(|slot| state.queues[slot].keys.contains_key(key))
        }
        _ => false,
    };
    if taken {
        return false;
    }
    if let Some(dead) = remove(state, id) {
        state.tell(EventKind::Redriven, &dead.queue, id);
        let slot = state.slot(&dead.queue);
        state.insert(slot, backend::redriven(dead, state.now)); // X2, X3, X5
    }
    true
}

/// Takes a row out of the history, and out of its queue's count.
fn remove(state: &mut State, id: JobId) -> Option<FinishedJob> {
    let job = state.history.remove(id)?;
    if let Some(slot) =
        state.queues.find(&job.queue).filter(|_| job.outcome.status() == FinalStatus::DeadLetter)
    {
        state.queues[slot].dead_letters -= 1;
        state.queues.touch(slot);
    }
    Some(job)
}

/// The next dead letter after `last`, of `ids` if they were named. Those are looked up, not searched for.
fn next_dead(
    state: &State,
    any: &Redrive,
    ids: Option<&BTreeSet<JobId>>,
    last: Option<JobId>,
) -> Option<JobId> {
    let asked = ids.unwrap_or(&state.history.dead);
    let later = asked.range((last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
    later.copied().find(|id| state.history.get(*id).is_some_and(|job| any.matches(job)))
}

/// The rows that a prune asks for, at most its limit. Those named by id are looked up, not searched for.
fn prunable(state: &State, request: &Prune) -> Vec<JobId> {
    let any =
        Prune { ids: None, statuses: request.statuses.clone(), queues: request.queues.clone(), ..*request };
    let mut retentions = HashMap::new();
    let matches =
        |job: &&FinishedJob| any.matches(job, retention(state, &job.queue, &mut retentions), state.now);
    let limit = request.limit.as_usize();
    if let Some(ids) = &request.ids {
        let ids: BTreeSet<JobId> = ids.iter().copied().collect();
        let named = ids.into_iter().filter_map(|id| state.history.get(id));
        return named.filter(matches).take(limit).map(|job| job.id).collect();
    }
    let Some(age) = youngest(state, request.age) else {
        return Vec::new();
    };
    let old = state.history.ended_by(time::earlier(state.now, age.get()));
    old.filter(matches).take(limit).map(|job| job.id).collect() // U2
}

/// The age that every row to prune has at least; `None` if there is none to prune.
fn youngest(state: &State, age: PruneAge) -> Option<Delay> {
    match age {
        PruneAge::OlderThan(age) => Some(age),
        PruneAge::Retention => state.policies.shortest_retention(),
    }
}

/// The retention of a queue (U3), worked out once for each.
fn retention(
    state: &State,
    queue: &QueueName,
    known: &mut HashMap<QueueName, Option<Delay>>,
) -> Option<Delay> {
    *known.entry(queue.clone()).or_insert_with(|| state.policy(queue).retention)
}
