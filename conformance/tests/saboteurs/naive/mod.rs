//! A small store that is obviously right, written from the docs of [`Store`] alone, until a [`Fault`] is put into it.
//!
//! One mutex, plain collections, linear scans. Only what is required of a backend is implemented, and what has no
//! useful default: `usage`, `wakeups` and `subscribe`. Everything else runs on the defaults.

mod admin;
mod dequeue;
mod enqueue;
mod heartbeat;
mod inspect;
mod locks;
mod policy;
mod reclaim;
mod settle;
mod state;
mod tx;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures_util::stream;
use leasehold_core::{
    BatchSize, Capabilities, Dequeue, Enqueued, Event, Events, FinishedJob, HeartbeatOutcome, HistoryFilter,
    Intervention, Job, JobFilter, JobId, LeaseFor, NewJob, Page, Policies, Prune, QueueName, QueuePattern,
    QueuePolicy, QueueUsage, Queues, Receipt, Reclaimed, Record, Redrive, Redriven, Result, SettleOutcome,
    Store, StoreError, Verdict, Wakeups, backend,
};
use tokio::sync::mpsc;

use crate::fault::Fault;
pub(crate) use state::State;
pub(crate) use tx::NaiveConnection;

/// One handle on a [`Database`].
pub(crate) struct Naive {
    database: Arc<Database>,
    own: Mutex<Own>,
}

/// What every handle shares.
pub(crate) struct Database {
    state: Mutex<State>,
    subscribers: Mutex<Vec<Subscriber>>,
    /// What [`lose`](Self::lose) goes back to.
    saved: Mutex<Option<State>>,
}

/// What a handle has for itself.
#[derive(Default)]
struct Own {
    /// When each queue was last served over a prefix, counted in leases.
    served: BTreeMap<QueueName, u64>,
    turn: u64,
    /// Only for faults that count per handle.
    granted: BTreeSet<Receipt>,
    buckets: BTreeMap<QueueName, DateTime<Utc>>,
    reclaimed_to: Option<JobId>,
    policies: Option<Policies>,
    polled: BTreeMap<QueueName, u32>,
    empty_up_to: BTreeMap<QueueName, DateTime<Utc>>,
}

enum Subscriber {
    Hints(Queues, mpsc::UnboundedSender<()>),
    Events(Queues, mpsc::UnboundedSender<Event>),
}

impl Database {
    /// With `row_locks`, an open transaction locks the jobs that it settles.
    pub(crate) fn new(fault: Option<Fault>, row_locks: bool) -> Self {
        let mut state = State::new(fault);
        state.row_locks = row_locks;
        Self { state: Mutex::new(state), subscribers: Mutex::default(), saved: Mutex::default() }
    }

    pub(crate) fn connect(self: &Arc<Self>) -> Naive {
        self.change(|state, _| state.opened());
        Naive { database: Arc::clone(self), own: Mutex::default() }
    }

    pub(crate) fn age(&self, by: Duration) {
        lock(&self.state).age(by);
    }

    pub(crate) fn set_back(&self, by: Duration) {
        lock(&self.state).set_back(by);
    }

    pub(crate) fn save(&self) {
        *lock(&self.saved) = Some(lock(&self.state).clone());
    }

    /// Forgets what was written since it was saved.
    pub(crate) fn lose(&self) {
        let mut state = lock(&self.state);
        if let Some(saved) = lock(&self.saved).clone() {
            state.lose_all_since(saved);
        }
    }

    /// Puts a dead letter with the id of a live job into the history.
    pub(crate) fn finish_twin(&self, id: JobId) {
        let mut state = lock(&self.state);
        let now = state.tick();
        if let Some(job) = state.jobs.get(&id).cloned() {
            state.history.push(backend::finished(job, settle::dead(backend::lease_expired()), now));
        }
    }

    pub(crate) fn ledger(&self) -> Vec<String> {
        lock(&self.state).ledger.clone()
    }

    /// The critical section: everything happens in one, at one time.
    fn change<T>(&self, step: impl FnOnce(&mut State, DateTime<Utc>) -> T) -> T {
        let mut state = lock(&self.state);
        let now = state.tick();
        let answer = step(&mut state, now);
        self.publish(&mut state);
        answer
    }

    fn publish(&self, state: &mut State) {
        let (events, woken) = (std::mem::take(&mut state.events), std::mem::take(&mut state.woken));
        lock(&self.subscribers).retain(|subscriber| match subscriber {
            Subscriber::Hints(queues, sender) => {
                let concerned = |queue| state.has(Fault::WakeForOtherQueues) || queues.contains(queue);
                !woken.iter().any(concerned) || sender.send(()).is_ok()
            }
            Subscriber::Events(queues, sender) => {
                let concerned =
                    |event: &&Event| state.has(Fault::EventsOfOtherQueues) || queues.contains(&event.queue);
                events.iter().filter(concerned).all(|event| sender.send(event.clone()).is_ok())
            }
        });
    }
}

impl Drop for Naive {
    fn drop(&mut self) {
        // One reference is the harness's, the other this one.
        if self.has(Fault::GoneWithTheLastHandle) && Arc::strong_count(&self.database) <= 2 {
            let mut state = lock(&self.database.state);
            *state = State::new(Some(Fault::GoneWithTheLastHandle));
        }
    }
}

impl Naive {
    fn has(&self, fault: Fault) -> bool {
        lock(&self.database.state).has(fault)
    }

    /// A live job with the id of a finished one fails the operation, as a constraint of the history does.
    fn stop_at_a_twin(&self, fault: Fault, is_met: impl Fn(JobId, &Job) -> bool) -> Result<()> {
        let state = lock(&self.database.state);
        let is_twin = |row: &FinishedJob| state.jobs.get(&row.id).is_some_and(|job| is_met(row.id, job));
        if state.has(fault) && state.history.iter().any(is_twin) {
            return Err(StoreError::backend("settle", "duplicate entry"));
        }
        Ok(())
    }

    /// One atomic step between points at which the future may be dropped.
    async fn atomically<T>(&self, step: impl FnOnce(&mut State, DateTime<Utc>) -> T) -> T {
        breathe().await;
        let answer = self.database.change(step);
        breathe().await;
        answer
    }

    /// The same for steps that need what the handle has for itself.
    async fn atomically_own<T>(&self, step: impl FnOnce(&mut State, &mut Own, DateTime<Utc>) -> T) -> T {
        self.atomically(|state, now| step(state, &mut lock(&self.own), now)).await
    }
}

/// Lets others run, and whoever wants to drop the future do so.
async fn breathe() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Store for Naive {
    fn capabilities(&self) -> Capabilities {
        let rate_limit = !self.has(Fault::UnsupportedPolicyAccepted);
        let durable = self.has(Fault::GoneWithTheLastHandle);
        Capabilities { durable, rate_limit, ..Capabilities::full() }
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        Ok(self.atomically(|state, now| state.told(now)).await)
    }

    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        enqueue::enqueue(self, jobs).await
    }

    async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>> {
        dequeue::dequeue(self, request).await
    }

    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
        self.stop_at_a_twin(Fault::TwinFailsTheVerdict, |id, _| {
            items.iter().any(|(receipt, _)| receipt.job == id)
        })?;
        settle::settle(self, items).await
    }

    async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>> {
        heartbeat::heartbeat(self, receipts, extend).await
    }

    async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>> {
        self.stop_at_a_twin(Fault::TwinStopsReclaim, |_, job| {
            job.lease.is_some() && job.attempts == job.max_attempts.get()
        })?;
        reclaim::reclaim(self, limit).await
    }

    async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()> {
        admin::intervene(self, id, intervention).await
    }

    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        Ok(self.atomically(|state, _| state.record(id)).await)
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>> {
        Ok(self.atomically(|state, now| state.list_jobs(filter, now)).await)
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>> {
        Ok(self.atomically(|state, _| state.list_history(filter)).await)
    }

    async fn redrive(&self, request: &Redrive) -> Result<Redriven> {
        self.stop_at_a_twin(Fault::TwinStopsTheRedrive, |_, _| true)?;
        admin::redrive(self, request).await
    }

    async fn prune(&self, request: &Prune) -> Result<u64> {
        admin::prune(self, request).await
    }

    async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()> {
        policy::set_policy(self, pattern, policy).await
    }

    async fn policies(&self) -> Result<Policies> {
        Ok(self.atomically(|state, _| state.policies.clone()).await)
    }

    async fn usage(&self, queue: &QueueName) -> Result<QueueUsage> {
        Ok(self.atomically(|state, now| state.usage(queue, now)).await)
    }

    async fn wakeups(&self, queues: &Queues) -> Result<Wakeups> {
        let (sender, receiver) = mpsc::unbounded_channel();
        lock(&self.database.subscribers).push(Subscriber::Hints(queues.clone(), sender));
        Ok(Box::pin(stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|hint| (hint, receiver))
        })))
    }

    async fn subscribe(&self, queues: &Queues) -> Result<Events> {
        let (sender, receiver) = mpsc::unbounded_channel();
        lock(&self.database.subscribers).push(Subscriber::Events(queues.clone(), sender));
        Ok(Box::pin(stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|event| (Ok(event), receiver))
        })))
    }
}
