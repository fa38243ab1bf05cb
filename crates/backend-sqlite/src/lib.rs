//! The SQLite backend of Leasehold: the queue lives in a file, or in memory, with no server and nothing to install.
//!
//! It keeps the promises of [`leasehold_core::contract`], for any number of processes on one file. What its
//! [`Capabilities`] leave out: an open transaction holds up all other writers, hints stay within the
//! store, and events are not told.
//!
//! # How it works
//!
//! SQLite has one writer at a time, so the store has one thread that writes: it takes what is there to be done, does each
//! operation in a savepoint of its own and commits all of it at once, so that the disk is waited for once. Nobody is
//! answered before the commit, and a dropped future changes nothing. Others read beside it, each on a connection of its own.
//! The queue is durable unless told otherwise: a write-ahead log, and `synchronous = FULL`.
//!
//! # Transactions
//!
//! A job can be enqueued or settled in the transaction that writes your own rows: both are there, or neither. The
//! store is a [`TxStore`](leasehold_core::TxStore) of diesel's `SqliteConnection`. If the lease was lost,
//! [`ack_in`](leasehold_core::TxStore::ack_in) fails, and `?` rolls your rows back. [`TxError`] takes the errors of
//! both sides.
//!
//! ```
//! use diesel::{RunQueryDsl, SqliteConnection};
//! use leasehold_core::{Job, Json, Settled, TxStore};
//! use leasehold_sqlite::{SqliteStore, TxError, transaction};
//!
//! async fn pay(store: &SqliteStore, conn: &mut SqliteConnection, job: &Job) -> Result<Settled, TxError> {
//!     transaction(conn, async |conn| {
//!         diesel::sql_query("INSERT INTO payment DEFAULT VALUES").execute(conn)?;
//!         Ok(store.ack_in(conn, &job.receipt(), Json::null()).await?)
//!     })
//!     .await
//! }
//! ```
//!
//! A transaction has to be opened by diesel's own means: of a bare `BEGIN` it does not know, and it is refused as
//! [`NoTransaction`](leasehold_core::StoreError::NoTransaction).

mod builder;
mod clock;
mod connect;
mod dequeue;
mod enqueue;
mod error;
mod facts;
mod heartbeat;
mod history;
mod inspect;
mod intervene;
mod migrate;
mod policy;
mod readers;
mod reclaim;
mod room;
mod row;
mod selection;
mod session;
mod settle;
mod sql;
mod statement;
mod task;
mod tx;
mod writer;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use diesel::sqlite::SqliteConnection;
use leasehold_core::{
    BatchSize, Capabilities, Dequeue, Enqueued, Explanation, FinishedJob, HeartbeatOutcome, HistoryFilter,
    Intervention, Job, JobFilter, JobId, LeaseFor, NewJob, NextAvailable, Page, Policies, Prune, QueueName,
    QueuePattern, QueuePolicy, QueueStats, QueueUsage, Queues, Receipt, ReceiptStatus, Reclaimed, Record,
    Redrive, Redriven, Result, SettleOutcome, Store, StoreError, Verdict, Wakeups, backend,
};
use leasehold_sql::{Subscribers as Hub, Turns};
pub use leasehold_sql::{TablePrefix, TxError};

pub use crate::builder::SqliteStoreBuilder;
use crate::clock::Clock;
pub use crate::connect::Synchronous;
use crate::connect::{Connector, Place};
use crate::error::Failure;
use crate::readers::Readers;
use crate::session::Session;
use crate::sql::Statements;
pub use crate::tx::transaction;
use crate::writer::Writer;

/// A store in an SQLite database. Clones are handles on the same threads and connections.
#[derive(Clone)]
pub struct SqliteStore {
    shared: Arc<Shared>,
}

/// What the handles share.
pub(crate) struct Shared {
    writer: Writer,
    /// None for a database in memory: it has one connection.
    readers: Option<Readers>,
    sql: Arc<Statements>,
    hub: Arc<Hub>,
    turns: Arc<Turns>,
    clock: Clock,
    capabilities: Capabilities,
    prefix: TablePrefix,
    connector: Connector,
}

impl SqliteStore {
    /// Opens the database at `url`, and makes it if it is not there: `sqlite://jobs.db`, a path, or `sqlite::memory:`.
    ///
    /// # Errors
    /// * [`Invalid`](leasehold_core::StoreError::Invalid) with the field `url`;
    /// * [`Backend`](leasehold_core::StoreError::Backend) if the file cannot be opened or is no database;
    /// * [`Conflict`](leasehold_core::StoreError::Conflict) if a newer version of this crate has made the tables.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// Begins a store with other settings.
    pub fn builder() -> SqliteStoreBuilder {
        SqliteStoreBuilder::new()
    }

    /// Makes the tables, or brings them up to date. Any number of processes may do it at once.
    ///
    /// # Errors
    /// [`Conflict`](leasehold_core::StoreError::Conflict) if a newer version of this crate has made the tables.
    pub async fn migrate(&self) -> Result<()> {
        let prefix = self.shared.prefix.clone();
        self.shared.writer.run("migrate", move |session| migrate::migrate(session, &prefix)).await
    }

    /// What [`migrate`](Self::migrate) runs on an empty database, as one script, for teams that run their own migrations.
    pub fn migrations_sql(prefix: &TablePrefix) -> String {
        migrate::script(prefix)
    }

    /// One more connection to the same database, for transactions of your own, set up as the store's: it waits as long for
    /// the lock, and is as durable.
    ///
    /// # Errors
    /// * [`Unsupported`](leasehold_core::StoreError::Unsupported): a database in memory has one connection only;
    /// * otherwise as [`connect`](Self::connect).
    pub async fn connection(&self) -> Result<SqliteConnection> {
        if self.shared.connector.place == Place::Memory {
            return Err(StoreError::unsupported("a second connection to a database in memory"));
        }
        let connector = self.shared.connector.clone();
        builder::aside(move || connector.user()).await
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { connector, prefix, .. } = &*self.shared;
        let mut debug = f.debug_struct("SqliteStore");
        debug.field("place", &connector.place).field("prefix", prefix).finish_non_exhaustive()
    }
}

impl Shared {
    /// Does `work` on one snapshot, beside the writer.
    async fn read<T, W>(&self, operation: &'static str, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
    {
        match &self.readers {
            Some(readers) => readers.run(operation, work).await,
            None => self.writer.run(operation, work).await,
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        Ok(self.shared.clock.now())
    }

    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        backend::check_enqueue(jobs, &self.shared.capabilities)?;
        if jobs.is_empty() {
            return Ok(Vec::new()); // I2
        }
        let jobs = jobs.to_vec();
        self.shared.writer.run("enqueue", move |session| enqueue::enqueue(session, &jobs)).await
    }

    async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>> {
        let (request, turns) = (request.clone(), Arc::clone(&self.shared.turns));
        self.shared.writer.run("dequeue", move |session| dequeue::dequeue(session, &turns, &request)).await
    }

    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
        backend::check_settle(items, &self.shared.capabilities)?;
        if items.is_empty() {
            return Ok(Vec::new()); // I2
        }
        let items = items.to_vec();
        self.shared.writer.run("settle", move |session| settle::settle(session, &items)).await
    }

    async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>> {
        backend::check_batch("receipts", receipts.len())?;
        if receipts.is_empty() {
            return Ok(Vec::new()); // I2
        }
        let receipts = receipts.to_vec();
        let work = move |session: &mut Session<'_>| heartbeat::heartbeat(session, &receipts, extend);
        self.shared.writer.run("heartbeat", work).await
    }

    async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>> {
        self.shared.writer.run("reclaim", move |session| reclaim::reclaim(session, limit)).await
    }

    async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()> {
        if let Intervention::Discard { reason } = intervention {
            backend::check_document("reason", reason, &self.shared.capabilities)?;
        }
        let word = intervention.clone();
        self.shared.writer.run("intervene", move |session| intervene::intervene(session, id, &word)).await
    }

    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        self.shared.read("get", move |session| inspect::get(session, id)).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>> {
        let filter = filter.clone();
        self.shared.read("jobs", move |session| inspect::jobs(session, &filter)).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>> {
        let filter = filter.clone();
        self.shared.read("history", move |session| inspect::history(session, &filter)).await
    }

    async fn redrive(&self, request: &Redrive) -> Result<Redriven> {
        backend::check_ids(request.ids.as_deref())?;
        let request = request.clone();
        self.shared.writer.run("redrive", move |session| history::redrive(session, &request)).await
    }

    async fn prune(&self, request: &Prune) -> Result<u64> {
        backend::check_ids(request.ids.as_deref())?;
        let request = request.clone();
        self.shared.writer.run("prune", move |session| history::prune(session, &request)).await
    }

    async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()> {
        backend::check_policy(policy, &self.shared.capabilities)?;
        let (pattern, policy) = (pattern.clone(), policy.clone());
        let work = move |session: &mut Session<'_>| policy::set_policy(session, &pattern, &policy);
        self.shared.writer.run("set_policy", work).await
    }

    async fn policies(&self) -> Result<Policies> {
        self.shared.read("policies", policy::policies).await
    }

    async fn receipts(&self, receipts: &[Receipt]) -> Result<Vec<ReceiptStatus>> {
        backend::check_batch("receipts", receipts.len())?;
        let receipts = receipts.to_vec();
        self.shared.read("receipts", move |session| inspect::receipts(session, &receipts)).await
    }

    async fn stuck(&self, older_than: Duration, limit: BatchSize) -> Result<Vec<Job>> {
        self.shared.read("stuck", move |session| inspect::stuck(session, older_than, limit)).await
    }

    async fn explain(&self, id: JobId) -> Result<Explanation> {
        self.shared.read("explain", move |session| facts::explain(session, id)).await
    }

    async fn usage(&self, queue: &QueueName) -> Result<QueueUsage> {
        let queue = queue.clone();
        self.shared.read("usage", move |session| facts::usage(session, &queue)).await
    }

    async fn stats(&self, queues: &Queues) -> Result<Vec<QueueStats>> {
        let queues = queues.clone();
        self.shared.read("stats", move |session| inspect::stats(session, &queues)).await
    }

    async fn next_available_at(&self, queues: &Queues) -> Result<Option<NextAvailable>> {
        let queues = queues.clone();
        let work = move |session: &mut Session<'_>| facts::next_available_at(session, &queues);
        self.shared.read("next_available_at", work).await
    }

    async fn pause(&self, pattern: &QueuePattern) -> Result<()> {
        let pattern = pattern.clone();
        self.shared.writer.run("pause", move |session| policy::set_paused(session, &pattern, true)).await
    }

    async fn resume(&self, pattern: &QueuePattern) -> Result<()> {
        let pattern = pattern.clone();
        self.shared.writer.run("resume", move |session| policy::set_paused(session, &pattern, false)).await
    }

    async fn wakeups(&self, queues: &Queues) -> Result<Wakeups> {
        Ok(self.shared.hub.subscribe(queues))
    }
}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/sqlite.md")]
struct Guide;
