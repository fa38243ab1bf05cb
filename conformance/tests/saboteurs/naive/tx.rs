//! Speaking on the caller's transaction.
//!
//! A transaction is a list of what is to be done. Each operation is tried on a copy of the state in which the list has
//! been played; the commit plays it on the state itself, and if any part no longer holds, nothing counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_conformance::{Ending, Isolation};
use leasehold_core::{
    Enqueued, IdempotencyKey, Job, JobId, NewJob, Receipt, Result, SettleOutcome, Settled, Store, StoreError,
    TxStore, Verdict, backend, limits, time,
};

use super::{Database, Naive, State, breathe, lock};
use crate::fault::Fault;

/// A user's connection.
pub(crate) struct NaiveConnection {
    database: Arc<Database>,
    /// What the open transaction is to do.
    staged: Option<Vec<Staged>>,
    spoilt: bool,
    /// In whose name rows are locked, in a store with row locks.
    owner: u64,
    /// Whether the transaction was ended behind the back of whoever uses the connection.
    is_ended: bool,
    /// For faults: the level of the transaction, and the jobs as they were when it first looked.
    level: Isolation,
    seen: Option<BTreeMap<JobId, Job>>,
}

static OWNERS: AtomicU64 = AtomicU64::new(0);

enum Staged {
    Insert(Job),
    Settle { receipt: Receipt, verdict: Verdict, at: DateTime<Utc> },
    Once(IdempotencyKey, DateTime<Utc>),
    Write(String),
}

impl NaiveConnection {
    pub(crate) fn new(database: &Arc<Database>) -> Self {
        let owner = OWNERS.fetch_add(1, Ordering::Relaxed);
        let (database, level) = (Arc::clone(database), Isolation::Serializable);
        Self { database, staged: None, spoilt: false, owner, is_ended: false, level, seen: None }
    }

    pub(crate) fn begin(&mut self, level: Isolation) {
        self.staged = Some(Vec::new());
        self.level = level;
    }

    /// The user's own rows.
    pub(crate) fn read(&mut self) -> Vec<String> {
        let state = lock(&self.database.state);
        self.seen = Some(state.jobs.clone());
        state.ledger.clone()
    }

    /// Ends the transaction as the database may do it by itself.
    pub(crate) fn end(&mut self, how: Ending) -> Result<bool> {
        self.is_ended = true;
        match how {
            Ending::Commit | Ending::Definition => self.commit()?,
            _ => self.rollback(),
        }
        Ok(true)
    }

    /// A write of the user's own.
    pub(crate) fn write(&mut self, entry: &str) -> Result<()> {
        self.open("write")?.push(Staged::Write(entry.to_owned()));
        Ok(())
    }

    pub(crate) fn commit(&mut self) -> Result<()> {
        let staged = self.staged.take().ok_or(StoreError::NoTransaction { operation: "commit" })?;
        if self.spoilt {
            self.unlock();
            return Err(StoreError::conflict("the transaction is aborted"));
        }
        let owner = self.owner;
        self.database.change(|state, _| {
            let mut next = state.clone();
            next.locked.clear();
            next.unlock(owner);
            let played = staged.iter().try_for_each(|step| next.play(step));
            if played.is_ok() || state.has(Fault::FailedCommitKeepsTheWrites) {
                *state = next;
            }
            state.locked.clear();
            state.unlock(owner);
            played
        })
    }

    pub(crate) fn rollback(&mut self) {
        if self.is_ended && self.staged.is_some() {
            drop(self.commit()); // There was nothing to be undone: what came after the end has counted at once.
        }
        self.staged = None;
        self.unlock();
        self.database.change(|state, _| state.locked.clear());
    }

    fn unlock(&mut self) {
        lock(&self.database.state).unlock(self.owner);
    }

    fn open(&mut self, operation: &'static str) -> Result<&mut Vec<Staged>> {
        let fault = match operation {
            "settle_in" => Fault::SettleInAfterTheEnd,
            "enqueue_in" => Fault::EnqueueInAfterTheEnd,
            "once_in" => Fault::OnceInAfterTheEnd,
            _ => Fault::LockInAfterTheEnd,
        };
        if self.is_ended && self.staged.is_none() && lock(&self.database.state).has(fault) {
            self.staged = Some(Vec::new());
        }
        self.staged.as_mut().ok_or(StoreError::NoTransaction { operation })
    }

    /// The state as the transaction sees it.
    fn view(&self, state: &State) -> Result<State> {
        let mut view = state.clone();
        view.rows.clear();
        for step in self.staged.iter().flatten() {
            view.play(step)?;
        }
        Ok(view)
    }

    /// With a fault: whether the lease is not in the transaction's old view.
    fn has_not_seen(&self, receipt: &Receipt) -> bool {
        let is_seen = |seen: &BTreeMap<JobId, Job>| {
            seen.get(&receipt.job).is_some_and(|job| job.epoch == receipt.epoch)
        };
        lock(&self.database.state).has(Fault::OldViewLosesLeases)
            && self.seen.as_ref().is_some_and(|seen| !is_seen(seen))
    }

    fn spoil(&mut self, expected: bool, by: Fault) {
        self.spoilt |= expected && lock(&self.database.state).has(by);
    }
}

impl Drop for NaiveConnection {
    fn drop(&mut self) {
        if lock(&self.database.state).has(Fault::DroppedTransactionCommits) {
            let _ = self.commit();
        }
        self.unlock();
    }
}

#[async_trait]
impl TxStore<NaiveConnection> for Naive {
    async fn enqueue_in(&self, conn: &mut NaiveConnection, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        conn.open("enqueue_in")?;
        backend::check_enqueue(jobs, &self.capabilities())?;
        let (answers, rows) = self.atomically(|state, now| stage_jobs(conn, state, jobs, now)).await?;
        conn.spoil(answers.iter().any(|answer| answer.deduplicated), Fault::DuplicateSpoilsTheTransaction);
        conn.open("enqueue_in")?.extend(rows.into_iter().map(Staged::Insert));
        Ok(answers)
    }

    async fn settle_in(
        &self,
        conn: &mut NaiveConnection,
        receipt: &Receipt,
        verdict: Verdict,
    ) -> Result<Settled> {
        if conn.staged.is_none() && self.has(Fault::SettleInWithoutTransaction) {
            let outcome = self.atomically(|state, now| state.settle_one(*receipt, &verdict, now)).await;
            return outcome.settled().ok_or(StoreError::lease_lost("settle_in", *receipt));
        }
        conn.open("settle_in")?;
        if conn.has_not_seen(receipt) {
            return Err(StoreError::lease_lost("settle_in", *receipt));
        }
        backend::check_verdict(&verdict, &self.capabilities())?;
        let step = |state: &mut State, at| -> Result<_> {
            if state.rows.get(&receipt.job).is_some_and(|owner| *owner != conn.owner) {
                return Ok(None); // Another transaction has it.
            }
            let mut view = conn.view(state)?;
            let outcome = view.settle_one(*receipt, &verdict, at);
            if state.has(Fault::SettleInCountsAtOnce) {
                state.settle_one(*receipt, &verdict, at);
            }
            if state.has(Fault::DroppedTransactionKeepsItsLock)
                || state.has(Fault::HeartbeatWaitsForTransactions)
            {
                state.locked.insert(receipt.job);
            }
            if state.row_locks && !outcome.is_lost() {
                state.rows.insert(receipt.job, conn.owner);
            }
            Ok(Some((outcome, at)))
        };
        let (outcome, at) = loop {
            match self.atomically(&step).await? {
                Some(answer) => break answer,
                None => breathe().await,
            }
        };
        conn.spoil(outcome.is_lost(), Fault::LostLeaseSpoilsTheTransaction);
        let settled = match outcome {
            SettleOutcome::Settled(settled) => settled,
            SettleOutcome::LeaseLost if self.has(Fault::SettleInOfAStaleReceiptIsOk) => {
                return Ok(backend::settled(*receipt, leasehold_core::Fate::Completed));
            }
            SettleOutcome::LeaseLost => return Err(StoreError::lease_lost("settle_in", *receipt)),
            _ => return Err(StoreError::row_locked("settle_in")),
        };
        let verdict = spoil_verdict(self, verdict);
        if !self.has(Fault::SettleInCountsAtOnce) {
            conn.open("settle_in")?.push(Staged::Settle { receipt: *receipt, verdict, at });
        }
        Ok(settled)
    }

    async fn lock_in(&self, conn: &mut NaiveConnection, receipt: Receipt) -> Result<()> {
        if conn.staged.is_none() && self.has(Fault::LockInWithoutTransaction) {
            return Ok(());
        }
        conn.open("lock_in")?;
        if conn.has_not_seen(&receipt) {
            return Err(StoreError::lease_lost("lock_in", receipt));
        }
        let step = |state: &mut State, at| -> Result<_> {
            if state.rows.get(&receipt.job).is_some_and(|owner| *owner != conn.owner) {
                return Ok(None); // Another transaction has it.
            }
            let view = conn.view(state)?;
            let is_good = view.jobs.get(&receipt.job).is_some_and(|job| view.is_good(receipt, job, at));
            if is_good && !state.has(Fault::LockInDoesNotLock) {
                state.rows.insert(receipt.job, conn.owner);
            }
            Ok(Some(is_good))
        };
        let is_good = loop {
            match self.atomically(&step).await? {
                Some(is_good) => break is_good,
                None => breathe().await,
            }
        };
        match is_good || self.has(Fault::LockInOfAStaleReceiptIsOk) {
            true => Ok(()),
            false => Err(StoreError::lease_lost("lock_in", receipt)),
        }
    }

    async fn once_in(&self, conn: &mut NaiveConnection, key: &IdempotencyKey) -> Result<bool> {
        conn.open("once_in")?;
        let step = |state: &mut State, now| -> Result<_> {
            let view = conn.view(state)?;
            let known = match state.has(Fault::PassedKeyIsFree) {
                true => view.once.get(key).is_some_and(|until| *until > now),
                false => view.once.contains_key(key),
            };
            let until = time::later(now, state.kept_for(key));
            if state.has(Fault::OnceSurvivesRollback) {
                state.once.insert(key.clone(), until);
            }
            if state.once.contains_key(key) && state.has(Fault::SecondOnceProlongs) {
                state.once.insert(key.clone(), until);
            }
            Ok((known, until))
        };
        let (known, until) = self.atomically(step).await?;
        conn.spoil(known, Fault::SecondOnceSpoilsTheTransaction);
        if known && !self.has(Fault::OnceIsTrueTwice) {
            return Ok(false);
        }
        conn.open("once_in")?.push(Staged::Once(key.clone(), until));
        Ok(true)
    }
}

/// The answers, and the rows that the transaction is to put in.
fn stage_jobs(
    conn: &NaiveConnection,
    state: &mut State,
    jobs: &[NewJob],
    now: DateTime<Utc>,
) -> Result<(Vec<Enqueued>, Vec<Job>)> {
    let mut view = conn.view(state)?;
    let seen = conn.seen.iter().flatten().filter(|_| state.has(Fault::OldViewHasKeys));
    view.jobs.extend(seen.map(|(id, job)| (*id, job.clone())));
    if state.has(Fault::UncommittedJobsHaveKeys) && conn.level == Isolation::ReadUncommitted {
        view.jobs.extend(state.uncommitted.iter().map(|(_, job)| (job.id, job.clone())));
    }
    let answers = view.enqueue(jobs, now)?;
    let accepted = answers.iter().filter(|answer| !answer.deduplicated);
    let rows: Vec<Job> = accepted.filter_map(|answer| view.jobs.get(&answer.id).cloned()).collect();
    state.last_id = view.last_id;
    state.uncommitted.extend(rows.iter().map(|job| (conn.owner, job.clone())));
    if state.has(Fault::EnqueueInVisibleBeforeCommit) {
        state.enqueue(jobs, now)?;
        return Ok((answers, Vec::new()));
    }
    if state.has(Fault::EventsBeforeCommit) {
        state.events.append(&mut view.events);
    }
    Ok((answers, rows))
}

fn spoil_verdict(store: &Naive, verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Retry { error, .. } if store.has(Fault::SettleInIgnoresTheDelay) => {
            Verdict::Retry { error, after: leasehold_core::RetryAfter::Backoff }
        }
        Verdict::Snooze { .. } if store.has(Fault::SettleInTakesSnoozeForRetry) => Verdict::retry("snoozed"),
        verdict => verdict,
    }
}

impl State {
    fn kept_for(&self, key: &IdempotencyKey) -> Duration {
        if self.has(Fault::KeysAreAllKeptAlike) { limits::KEY_RETENTION } else { key.kept_for() }
    }

    fn play(&mut self, step: &Staged) -> Result<()> {
        match step {
            Staged::Insert(job) => {
                let key = job.unique_key.as_ref().filter(|_| !self.has(Fault::CommitIgnoresKeys));
                if key.is_some_and(|key| self.holder_of(&job.queue, key).is_some()) {
                    return Err(StoreError::conflict("another job has taken the unique key"));
                }
                self.add(job.clone());
                if self.has(Fault::NoWakeOnCommit) {
                    self.woken.clear();
                }
                if self.has(Fault::EventsBeforeCommit) {
                    self.events.clear();
                }
            }
            Staged::Settle { receipt, verdict, at } => {
                let outcome = self.settle_one(*receipt, verdict, *at);
                if outcome.is_pending() {
                    return Err(StoreError::row_locked("commit"));
                }
                if outcome.is_lost() && !self.has(Fault::CommitForgivesALostLease) {
                    return Err(StoreError::lease_lost("commit", *receipt));
                }
            }
            Staged::Once(key, until) => {
                let is_passed = |before| time::later(before, self.kept_for(key)) <= *until;
                let before = self.once.get(key).copied();
                let is_free = self.has(Fault::PassedKeyIsFree) && before.is_some_and(is_passed);
                if self.once.insert(key.clone(), *until).is_some()
                    && !is_free
                    && !self.has(Fault::OnceIsTrueTwice)
                    && !self.has(Fault::OnceTrueForTwoOpenTransactions)
                    && !self.has(Fault::OnceSurvivesRollback)
                {
                    return Err(StoreError::conflict("another transaction was first"));
                }
            }
            Staged::Write(entry) => self.ledger.push(entry.clone()),
        }
        Ok(())
    }
}
