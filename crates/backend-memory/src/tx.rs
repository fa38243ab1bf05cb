//! Transactions: changes that wait for their commit.
//!
//! A transaction changes nothing of the store but its locks; it keeps what is to be done. The commit looks under the store's lock
//! whether all of it still holds, and then does all of it or nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use chrono::{DateTime, Utc};
use leasehold_core::backend::{self, Applied};
use leasehold_core::{
    Enqueued, EventKind, IdempotencyKey, Job, JobId, Json, NewJob, QueueName, Receipt, Result, Settled,
    StoreError, UniqueKey, Verdict, time,
};

use crate::locks::Owner;
use crate::settle;
use crate::state::{Row, State};

/// What transactions have left besides jobs.
#[derive(Default)]
pub(crate) struct Ledger {
    once: HashSet<IdempotencyKey>,
    /// The same keys by the end of their retention.
    once_by_end: BTreeSet<(DateTime<Utc>, IdempotencyKey)>,
    pub(crate) values: BTreeMap<String, Json>,
}

impl Ledger {
    /// Forgets up to `limit` keys whose retention has passed, and says how many (U4).
    pub(crate) fn forget_keys(&mut self, now: DateTime<Utc>, limit: u64) -> u64 {
        let mut forgotten = 0;
        while forgotten < limit && self.once_by_end.first().is_some_and(|(end, _)| *end <= now) {
            if let Some((_, key)) = self.once_by_end.pop_first() {
                self.once.remove(&key);
                forgotten += 1;
            }
        }
        forgotten
    }

    fn keep(&mut self, key: IdempotencyKey, until: DateTime<Utc>) {
        self.once.insert(key.clone());
        self.once_by_end.insert((until, key));
    }
}

/// What an open transaction is going to do, in order, and what that means for what it sees.
#[derive(Default)]
pub(crate) struct Transaction {
    steps: Vec<Step>,
    settled: HashSet<Receipt>,
    /// Unique keys that the transaction has taken (by which job) or freed.
    keys: HashMap<(QueueName, UniqueKey), Option<JobId>>,
    /// Idempotency keys that the transaction has taken, and until when they are kept.
    once: HashMap<IdempotencyKey, DateTime<Utc>>,
    pub(crate) values: BTreeMap<String, Json>,
    /// Has the jobs locked that the transaction has locked.
    owner: Owner,
}

/// Times were read and jitter was drawn when the step was asked for, so that its answer comes true.
enum Step {
    Enqueue(Job),
    Settle(Receipt, Applied),
}

impl Transaction {
    /// Accepts jobs for the commit. Their ids are known at once.
    pub(crate) fn enqueue(&mut self, state: &mut State, jobs: &[NewJob]) -> Vec<Enqueued> {
        jobs.iter().map(|new| self.enqueue_one(state, new)).collect()
    }

    /// Gives a verdict for the commit.
    pub(crate) fn settle(
        &mut self,
        state: &mut State,
        receipt: &Receipt,
        verdict: Verdict,
    ) -> Result<Settled> {
        let random = state.random();
        let Row { job, slot } = self.held(state, receipt, "settle_in")?;
        let policy = &state.queues[*slot].policy;
        let applied = backend::apply_verdict(job.clone(), verdict, policy, state.now, random); // T9
        let fate = match &applied {
            Applied::Live(_, fate) => *fate,
            Applied::Finished(job, fate) => {
                let key = job.unique_key.clone().map(|key| (job.queue.clone(), key));
                self.keys.extend(key.map(|key| (key, None))); // E6
                *fate
            }
        };
        self.settled.insert(*receipt);
        self.steps.push(Step::Settle(*receipt, applied));
        Ok(backend::settled(*receipt, fate))
    }

    /// Locks a job until the transaction ends (T10).
    pub(crate) fn lock(&self, state: &mut State, receipt: Receipt) -> Result<()> {
        self.held(state, &receipt, "lock_in")?;
        state.locks.lock(receipt.job, &self.owner);
        Ok(())
    }

    /// The job of a receipt that is good, also for this transaction, and that no other transaction has locked.
    fn held<'s>(&self, state: &'s State, receipt: &Receipt, operation: &'static str) -> Result<&'s Row> {
        let Some(row) = state.held(receipt).filter(|_| !self.settled.contains(receipt)) else {
            state.tell_lost(receipt);
            return Err(StoreError::lease_lost(operation, *receipt)); // T3
        };
        match state.locks.is_locked_by_other(receipt.job, &self.owner) {
            true => Err(StoreError::row_locked(operation)),
            false => Ok(row),
        }
    }

    /// Whether `key` is new, to be remembered with the commit.
    pub(crate) fn once(&mut self, state: &State, key: &IdempotencyKey) -> bool {
        if state.ledger.once.contains(key) || self.once.contains_key(key) {
            return false; // T5
        }
        self.once.insert(key.clone(), time::later(state.now, key.kept_for()));
        true
    }

    fn enqueue_one(&mut self, state: &mut State, new: &NewJob) -> Enqueued {
        if let Some(id) = self.twin(state, new) {
            return Enqueued { id, deduplicated: true };
        }
        let id = state.next_id();
        let job = backend::accepted(id, new, &state.policy(new.queue()), state.now);
        let key = job.unique_key.clone().map(|key| (job.queue.clone(), key));
        self.keys.extend(key.map(|key| (key, Some(id))));
        self.steps.push(Step::Enqueue(job));
        Enqueued { id, deduplicated: false }
    }

    /// The live job that keeps `new` out, as this transaction sees it.
    fn twin(&self, state: &State, new: &NewJob) -> Option<JobId> {
        let key = (new.queue().clone(), new.unique_key()?.clone());
        match self.keys.get(&key) {
            Some(own) => *own,
            None => holder(state, &key.0, &key.1),
        }
    }

    /// Does all of it or, if any of it no longer holds, nothing.
    pub(crate) fn commit(self, state: &mut State) -> Result<()> {
        self.check(state)?;
        self.steps.into_iter().for_each(|step| take(state, step)); // T1, T2
        self.once.into_iter().for_each(|(key, until)| state.ledger.keep(key, until));
        state.ledger.values.extend(self.values);
        Ok(())
    }

    /// Whether everything that the transaction was told still holds (T7).
    fn check(&self, state: &State) -> Result<()> {
        if let Some(receipt) = self.settled.iter().find(|receipt| state.held(receipt).is_none()) {
            state.tell_lost(receipt);
            return Err(StoreError::lease_lost("commit", *receipt));
        }
        if self.settled.iter().any(|receipt| state.locks.is_locked_by_other(receipt.job, &self.owner)) {
            return Err(StoreError::row_locked("commit")); // T10
        }
        let freed: HashSet<JobId> = self.steps.iter().filter_map(Step::finishes).collect();
        let jobs = self.steps.iter().filter_map(Step::enqueues);
        let keys = jobs.filter_map(|job| Some((&job.queue, job.unique_key.as_ref()?)));
        for (queue, key) in keys {
            if let Some(id) = holder(state, queue, key).filter(|id| !freed.contains(id)) {
                return Err(StoreError::conflict(format!("job {id} has taken the unique key {key:?}"))); // E5
            }
        }
        match self.once.keys().find(|key| state.ledger.once.contains(*key)) {
            Some(key) => Err(StoreError::conflict(format!("the once-key {key:?} is taken"))), // T5
            None => Ok(()),
        }
    }
}

impl Step {
    fn enqueues(&self) -> Option<&Job> {
        match self {
            Self::Enqueue(job) => Some(job),
            Self::Settle(..) => None,
        }
    }

    fn finishes(&self) -> Option<JobId> {
        match self {
            Self::Settle(_, Applied::Finished(job, _)) => Some(job.id),
            _ => None,
        }
    }
}

/// Does one step of a transaction that was found good.
fn take(state: &mut State, step: Step) {
    match step {
        Step::Enqueue(job) => {
            state.tell(EventKind::Enqueued, &job.queue, job.id);
            let slot = state.slot(&job.queue);
            state.insert(slot, job);
        }
        Step::Settle(receipt, applied) => {
            if let Some(row) = state.remove(receipt.job) {
                settle::put(state, row.slot, applied);
            }
        }
    }
}

/// The live job that has a unique key.
fn holder(state: &State, queue: &QueueName, key: &UniqueKey) -> Option<JobId> {
    let slot = state.queues.find(queue)?;
    state.queues[slot].keys.get(key).copied()
}
