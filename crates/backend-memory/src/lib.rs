//! The reference backend of Leasehold: everything in memory.
//!
//! It keeps every promise of [`leasehold_core::contract`], durability excepted, and is meant for three uses: tests
//! that never sleep (its [clock](ManualClock) is yours), programs whose jobs may die with them, and reading: whoever
//! writes a backend finds each operation in a file of its name.
//!
//! ```
//! use leasehold_core::{Dequeue, NewJob, Store, Verdict};
//! use leasehold_memory::MemoryStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold_core::Result<()> {
//! let store = MemoryStore::new();
//! store.enqueue(&[NewJob::builder("mail", "welcome").payload(&"ada").build()?]).await?;
//! for job in store.dequeue(&Dequeue::new("mail", "worker-1")?).await? {
//!     store.settle(&[(job.receipt(), Verdict::done())]).await?;
//! }
//! # Ok(()) }
//! ```
//!
//! # How it works
//!
//! One lock is around all data. An operation takes it once, reads the clock once, and never awaits while it has it;
//! so every operation is atomic, and a dropped future has done all or nothing. `state` has the data and the steps of
//! which operations are made, `queue` the index of one queue, `directory` that of all queues. A claim and a verdict
//! take time in the logarithm of the number of jobs and queues, however many jobs wait for a later time and however
//! many queues are paused or blocked.

mod builder;
mod clock;
mod connection;
mod dequeue;
mod directory;
mod enqueue;
mod events;
mod explain;
mod heartbeat;
mod history;
mod inspect;
mod intervene;
mod limits;
mod locks;
mod policy;
mod queue;
mod reclaim;
mod settle;
mod state;
mod tx;
mod wake;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_core::{
    BatchSize, Capabilities, Dequeue, EffectivePolicy, Enqueued, Events, Explanation, FinishedJob,
    HeartbeatOutcome, HistoryFilter, IdempotencyKey, Intervention, Job, JobFilter, JobId, Json, LeaseFor,
    NewJob, NextAvailable, Page, Policies, Prune, QueueName, QueuePattern, QueuePolicy, QueueStats,
    QueueUsage, Queues, Receipt, ReceiptStatus, Reclaimed, Record, Redrive, Redriven, Result, SettleOutcome,
    Settled, Store, TxStore, Verdict, Wakeups, backend,
};

pub use crate::builder::MemoryStoreBuilder;
pub use crate::clock::{Clock, ManualClock, SystemClock};
pub use crate::connection::MemoryConnection;
use crate::state::State;
use crate::tx::Transaction;

/// A store in memory. Clones are handles on the same data, which is gone with the last of them.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

/// What the handles share.
pub(crate) struct Shared {
    state: Mutex<State>,
    capabilities: Capabilities,
}

impl MemoryStore {
    /// An empty store that goes by this computer's clock.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// An empty store that goes by `clock`.
    pub fn with_clock(clock: impl Clock + 'static) -> Self {
        Self::builder().clock(clock).build()
    }

    /// Begins a store with other settings.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::new()
    }

    /// A connection with no open transaction.
    pub fn connection(&self) -> MemoryConnection {
        MemoryConnection::new(self.shared.clone(), None)
    }

    /// A connection with an open transaction.
    pub fn begin(&self) -> MemoryConnection {
        MemoryConnection::new(self.shared.clone(), Some(Transaction::default()))
    }

    /// The document that a committed transaction has [put](MemoryConnection::put) under `key`.
    pub fn value(&self, key: &str) -> Option<Json> {
        self.shared.run(|state| state.ledger.values.get(key).cloned())
    }

    /// All documents that committed transactions have [put](MemoryConnection::put).
    pub fn values(&self) -> BTreeMap<String, Json> {
        self.shared.run(|state| state.ledger.values.clone())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

impl Shared {
    /// Runs one operation under the lock, and wakes whom it concerns after that.
    pub(crate) fn run<T>(&self, operation: impl FnOnce(&mut State) -> T) -> T {
        let (answer, woken) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.begin();
            let answer = operation(&mut state);
            (answer, state.end())
        };
        woken.iter().for_each(|subscriber| subscriber.wake());
        answer
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        Ok(self.shared.run(|state| state.now))
    }

    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        backend::check_enqueue(jobs, &self.shared.capabilities)?;
        Ok(self.shared.run(|state| enqueue::enqueue(state, jobs)))
    }

    async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>> {
        Ok(self.shared.run(|state| dequeue::dequeue(state, request)))
    }

    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
        backend::check_settle(items, &self.shared.capabilities)?;
        Ok(self.shared.run(|state| settle::settle(state, items)))
    }

    async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>> {
        backend::check_batch("receipts", receipts.len())?;
        Ok(self.shared.run(|state| heartbeat::heartbeat(state, receipts, extend)))
    }

    async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>> {
        Ok(self.shared.run(|state| reclaim::reclaim(state, limit)))
    }

    async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()> {
        if let Intervention::Discard { reason } = intervention {
            backend::check_document("reason", reason, &self.shared.capabilities)?;
        }
        self.shared.run(|state| intervene::intervene(state, id, intervention))
    }

    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        Ok(self.shared.run(|state| inspect::get(state, id)))
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>> {
        Ok(self.shared.run(|state| inspect::jobs(state, filter)))
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>> {
        Ok(self.shared.run(|state| inspect::history(state, filter)))
    }

    async fn redrive(&self, request: &Redrive) -> Result<Redriven> {
        backend::check_ids(request.ids.as_deref())?;
        Ok(self.shared.run(|state| history::redrive(state, request)))
    }

    async fn prune(&self, request: &Prune) -> Result<u64> {
        backend::check_ids(request.ids.as_deref())?;
        Ok(self.shared.run(|state| history::prune(state, request)))
    }

    async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()> {
        backend::check_policy(policy, &self.shared.capabilities)?;
        self.shared.run(|state| policy::set_policy(state, pattern, policy.clone()));
        Ok(())
    }

    async fn policies(&self) -> Result<Policies> {
        Ok(self.shared.run(|state| state.policies.all.clone()))
    }

    async fn receipts(&self, receipts: &[Receipt]) -> Result<Vec<ReceiptStatus>> {
        backend::check_batch("receipts", receipts.len())?;
        Ok(self.shared.run(|state| inspect::receipts(state, receipts)))
    }

    async fn stuck(&self, older_than: Duration, limit: BatchSize) -> Result<Vec<Job>> {
        Ok(self.shared.run(|state| inspect::stuck(state, older_than, limit)))
    }

    async fn explain(&self, id: JobId) -> Result<Explanation> {
        Ok(self.shared.run(|state| explain::explain(state, id)))
    }

    async fn usage(&self, queue: &QueueName) -> Result<QueueUsage> {
        Ok(self.shared.run(|state| inspect::usage(state, queue)))
    }

    async fn stats(&self, queues: &Queues) -> Result<Vec<QueueStats>> {
        Ok(self.shared.run(|state| inspect::stats(state, queues)))
    }

    async fn next_available_at(&self, queues: &Queues) -> Result<Option<NextAvailable>> {
        Ok(self.shared.run(|state| inspect::next_available_at(state, queues)))
    }

    async fn policy(&self, queue: &QueueName) -> Result<EffectivePolicy> {
        Ok(self.shared.run(|state| EffectivePolicy::clone(&state.policy(queue))))
    }

    async fn pause(&self, pattern: &QueuePattern) -> Result<()> {
        self.shared.run(|state| policy::set_paused(state, pattern, true));
        Ok(())
    }

    async fn resume(&self, pattern: &QueuePattern) -> Result<()> {
        self.shared.run(|state| policy::set_paused(state, pattern, false));
        Ok(())
    }

    async fn wakeups(&self, queues: &Queues) -> Result<Wakeups> {
        Ok(self.shared.run(|state| state.subscribers.subscribe(queues)))
    }

    async fn subscribe(&self, queues: &Queues) -> Result<Events> {
        Ok(self.shared.run(|state| state.events.subscribe(queues)))
    }
}

#[async_trait]
impl TxStore<MemoryConnection> for MemoryStore {
    async fn enqueue_in(&self, conn: &mut MemoryConnection, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        let transaction = conn.on(&self.shared, "enqueue_in")?;
        backend::check_enqueue(jobs, &self.shared.capabilities)?;
        Ok(self.shared.run(|state| transaction.enqueue(state, jobs)))
    }

    async fn settle_in(
        &self,
        conn: &mut MemoryConnection,
        receipt: &Receipt,
        verdict: Verdict,
    ) -> Result<Settled> {
        let transaction = conn.on(&self.shared, "settle_in")?;
        backend::check_verdict(&verdict, &self.shared.capabilities)?;
        self.shared.run(|state| transaction.settle(state, receipt, verdict))
    }

    async fn lock_in(&self, conn: &mut MemoryConnection, receipt: Receipt) -> Result<()> {
        let transaction = conn.on(&self.shared, "lock_in")?;
        self.shared.run(|state| transaction.lock(state, receipt))
    }

    async fn once_in(&self, conn: &mut MemoryConnection, key: &IdempotencyKey) -> Result<bool> {
        let transaction = conn.on(&self.shared, "once_in")?;
        Ok(self.shared.run(|state| transaction.once(state, key)))
    }
}
