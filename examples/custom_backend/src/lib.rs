//! A backend for Leasehold over [redb], an embedded key-value store: a file, no server, real transactions.
//!
//! It is here to be read, beside the page "Writing a backend in an afternoon" of the book. It does little that is clever:
//!
//! 1. `tables.rs` says what is kept, and has the only two functions that change a live job.
//! 2. `dequeue.rs` is the one operation that needs thought: who is next?
//! 3. `operations.rs` has the others. Each finds a job, asks [`leasehold_core::backend`] what is to become of it, and puts
//!    that in its place.
//! 4. This file wraps each of them in a transaction. That is all it takes to be atomic, safe in races, and durable.
//!
//! What it leaves out, it says in its [`Capabilities`]: no limits, no Fifo queues, no hints. A redb file belongs to one
//! process, so a handle is shared by cloning it.

mod dequeue;
mod operations;
mod tables;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_core::{
    BatchSize, BoxError, Capabilities, Dequeue, Enqueued, FinishedJob, HeartbeatOutcome, HistoryFilter,
    IdempotencyKey, Intervention, Job, JobFilter, JobId, LeaseFor, NewJob, Page, Policies, Prune,
    QueuePattern, QueuePolicy, Receipt, Reclaimed, Record, Redrive, Redriven, Result, SettleOutcome, Settled,
    Store, StoreError, TxStore, Verdict, backend, time,
};
use redb::{Database, WriteTransaction};

use crate::tables::{Snapshot, Tables};

/// Where an embedded store's time comes from: the clock of the machine, or one that a test moves.
pub type Clock = Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>;

/// Jobs in a redb file. Clones are handles on the same file.
#[derive(Clone)]
pub struct RedbStore {
    database: Arc<Database>,
    clock: Clock,
}

impl RedbStore {
    /// Opens the file, and makes it if it is not there.
    ///
    /// # Errors
    /// Whatever redb says, such as that another process has the file open.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, BoxError> {
        Self::with_clock(path, Arc::new(Utc::now))
    }

    /// The same, with another clock.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_clock(path: impl AsRef<Path>, clock: Clock) -> Result<Self, BoxError> {
        let store = Self { database: Arc::new(Database::create(path)?), clock };
        let tx = store.database.begin_write()?;
        Tables::open(&tx)?; // redb makes a table when it is first opened for writing.
        tx.commit()?;
        Ok(store)
    }

    /// The file, for tables of your own beside the jobs.
    pub fn database(&self) -> &Arc<Database> {
        &self.database
    }

    /// Opens a transaction, for your own tables and for [`TxStore`]. While it is open nobody else writes.
    ///
    /// redb has one writer at a time, and waiting for one's turn blocks the thread. The one who has the turn may be another
    /// task of this very thread: so it is waited for on a thread that nobody needs.
    ///
    /// # Errors
    /// Whatever redb says. Nothing was done.
    pub async fn begin(&self) -> Result<WriteTransaction> {
        let database = Arc::clone(&self.database);
        let begin = move || database.begin_write().map_err(|error| StoreError::backend("begin", error));
        let begun = tokio::task::spawn_blocking(begin).await;
        begun.map_err(|error| StoreError::unavailable("begin", error))?
    }

    /// Does `work` and commits it: all of it, or nothing if it fails (C1). After `begin` nothing is awaited, so a future that
    /// is dropped has not begun, or is done (C2).
    async fn write<T>(&self, work: impl FnOnce(&mut Tables<'_>, DateTime<Utc>) -> Result<T>) -> Result<T> {
        let tx = self.begin().await?;
        let answer = self.speak(&tx, work)?;
        // By default redb returns when the disk has it. An error may have come before or after that: nobody knows.
        tx.commit().map_err(|error| StoreError::unknown("commit", error))?;
        Ok(answer)
    }

    /// Does `work` in a transaction that somebody else commits.
    fn speak<T>(
        &self,
        tx: &WriteTransaction,
        work: impl FnOnce(&mut Tables<'_>, DateTime<Utc>) -> Result<T>,
    ) -> Result<T> {
        work(&mut Tables::open(tx)?, self.time())
    }

    /// What is committed at this moment. Readers wait for nobody.
    fn read(&self) -> Result<Snapshot> {
        Snapshot::open(&self.database)
    }

    fn time(&self) -> DateTime<Utc> {
        time::whole_micros((self.clock)()) // C4
    }
}

#[async_trait]
impl Store for RedbStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            transactions: true,
            policies: true,
            atomic_batches: true,
            durable: true,
            ..Capabilities::minimal()
        }
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        Ok(self.time())
    }

    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        backend::check_enqueue(jobs, &self.capabilities())?;
        self.write(|tables, now| operations::enqueue(tables, jobs, now)).await
    }

    async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>> {
        self.write(|tables, now| dequeue::dequeue(tables, request, now)).await
    }

    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
        backend::check_settle(items, &self.capabilities())?;
        self.write(|tables, now| operations::settle(tables, items, now)).await
    }

    async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>> {
        backend::check_batch("receipts", receipts.len())?;
        self.write(|tables, now| operations::heartbeat(tables, receipts, extend, now)).await
    }

    async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>> {
        self.write(|tables, now| operations::reclaim(tables, limit, now)).await
    }

    async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()> {
        if let Intervention::Discard { reason } = intervention {
            backend::check_document("reason", reason, &self.capabilities())?;
        }
        self.write(|tables, now| operations::intervene(tables, id, intervention, now)).await
    }

    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        self.read()?.get(id)
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>> {
        self.read()?.jobs(filter, self.time())
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>> {
        self.read()?.history(filter)
    }

    async fn redrive(&self, request: &Redrive) -> Result<Redriven> {
        backend::check_ids(request.ids.as_deref())?;
        self.write(|tables, now| operations::redrive(tables, request, now)).await
    }

    async fn prune(&self, request: &Prune) -> Result<u64> {
        backend::check_ids(request.ids.as_deref())?;
        self.write(|tables, now| operations::prune(tables, request, now)).await
    }

    async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()> {
        backend::check_policy(policy, &self.capabilities())?; // P11
        self.write(|tables, _| operations::set_policy(tables, pattern, policy)).await
    }

    async fn policies(&self) -> Result<Policies> {
        self.read()?.policies()
    }
}

/// The user's transaction is redb's own, with his own tables in it. His handles on tables of ours must be closed meanwhile,
/// and he has none.
#[async_trait]
impl TxStore<WriteTransaction> for RedbStore {
    async fn enqueue_in(&self, tx: &mut WriteTransaction, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        backend::check_enqueue(jobs, &self.capabilities())?;
        self.speak(tx, |tables, now| operations::enqueue(tables, jobs, now))
    }

    async fn settle_in(
        &self,
        tx: &mut WriteTransaction,
        receipt: &Receipt,
        verdict: Verdict,
    ) -> Result<Settled> {
        backend::check_verdict(&verdict, &self.capabilities())?;
        let outcome = self.speak(tx, |tables, now| operations::settle_one(tables, receipt, verdict, now))?;
        outcome.settled().ok_or_else(|| StoreError::lease_lost("settle_in", *receipt)) // T3
    }

    async fn lock_in(&self, tx: &mut WriteTransaction, receipt: Receipt) -> Result<()> {
        // redb has one writer at a time: the open transaction keeps everything else from the job (T10).
        match self.speak(tx, |tables, _| tables.held(&receipt))? {
            Some(_) => Ok(()),
            None => Err(StoreError::lease_lost("lock_in", receipt)), // T3
        }
    }

    async fn once_in(&self, tx: &mut WriteTransaction, key: &IdempotencyKey) -> Result<bool> {
        self.speak(tx, |tables, now| tables.once(key, now)) // T5
    }
}
