//! The MySQL and MariaDB backend of Leasehold: the queue lives in tables beside your own.
//!
//! It keeps the promises of [`leasehold_core::contract`] on MySQL 8.0.16 and newer and on MariaDB 10.6 and newer, by one set of
//! statements. What its [`Capabilities`] leave out: hints come from the store's own operations and
//! from looking, not from the server, and events are not told.
//!
//! # How it works
//!
//! Jobs that can be leased are looked for without a lock, by walking one index in order; then they are locked by their ids, as far
//! as nobody else has locked them (`SKIP LOCKED`), and leased in the same short transaction. Every connection of the store runs at
//! READ COMMITTED, so that statements lock rows and no gaps. Everybody locks in one order: rows of limits by name, jobs by id,
//! then keys and history. If the server breaks a deadlock all the same, the store does the operation again.
//!
//! An operation is a task of its own: dropping its future leaves no connection in the middle of an answer. On connections that the
//! store has opened, the statement that is running is then ended on the server, and the transaction rolled back.
//!
//! # Transactions
//!
//! A job can be enqueued or settled in the transaction that writes your own rows: both are there, or neither. The store is a
//! [`TxStore`](leasehold_core::TxStore) of diesel-async's `AsyncMysqlConnection`, and of the pooled object. If the lease was lost,
//! [`ack_in`](leasehold_core::TxStore::ack_in) fails, and `?` rolls your rows back. [`TxError`] takes the errors of both sides.
//!
//! ```
//! use diesel_async::{AsyncConnection, AsyncMysqlConnection, RunQueryDsl};
//! use leasehold_core::{Job, Json, Settled, TxStore};
//! use leasehold_mysql::{MysqlStore, TxError};
//!
//! async fn pay(store: &MysqlStore, conn: &mut AsyncMysqlConnection, job: &Job) -> Result<Settled, TxError> {
//!     conn.transaction(async |conn| {
//!         diesel::sql_query("INSERT INTO payment VALUES ()").execute(conn).await?;
//!         Ok(store.ack_in(conn, &job.receipt(), Json::null()).await?)
//!     })
//!     .await
//! }
//! ```
//!
//! If the server has given up on a transaction (a deadlock, a lock that did not come), the answer is
//! [`Unavailable`](leasehold_core::StoreError::Unavailable), and the transaction is broken, its connection with it: run it again from
//! the start. Connections of [`MysqlStore::pool`] are at READ COMMITTED, which is what transactions with jobs in them should be at.

mod builder;
mod cancel;
mod candidates;
mod connect;
mod dequeue;
mod endings;
mod enqueue;
mod error;
mod facts;
mod heartbeat;
mod history;
mod inspect;
mod intervene;
mod limits;
mod migrate;
mod packet;
mod policy;
mod reclaim;
mod room;
mod row;
mod run;
mod selection;
mod session;
mod settle;
mod sql;
mod statement;
mod tx;
mod unclaim;
mod wake;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use diesel_async::AsyncMysqlConnection;
use diesel_async::pooled_connection::deadpool::{Object, Pool};
use leasehold_core::{
    BatchSize, Capabilities, Dequeue, Enqueued, Explanation, FinishedJob, HeartbeatOutcome, HistoryFilter,
    Intervention, Job, JobFilter, JobId, LeaseFor, NewJob, NextAvailable, Page, Policies, Prune, QueueName,
    QueuePattern, QueuePolicy, QueueStats, QueueUsage, Queues, Receipt, ReceiptStatus, Reclaimed, Record,
    Redrive, Redriven, Result, SettleOutcome, Store, StoreError, Verdict, Wakeups, backend,
};
use leasehold_gather::{Courier, Gatherer};
use leasehold_sql::{Lender, Subscribers};
pub use leasehold_sql::{TablePrefix, TxError};

pub use crate::builder::MysqlStoreBuilder;
use crate::builder::Server;
use crate::connect::Connector;
use crate::dequeue::Memory;
use crate::packet::Packet;
use crate::sql::Statements;

/// A store in a MySQL or MariaDB database. Clones are handles on the same pool of connections.
#[derive(Clone)]
pub struct MysqlStore {
    shared: Arc<Shared>,
}

/// What the handles share.
pub(crate) struct Shared {
    /// The pools: one for the store's own statements, one for the transactions of users.
    connections: Lender<AsyncMysqlConnection>,
    sql: Arc<Statements>,
    hub: Arc<Subscribers>,
    poller: Once,
    memory: Memory,
    gatherer: Arc<Gatherer>,
    deadlocks: AtomicU64,
    capabilities: Capabilities,
    prefix: TablePrefix,
    polling: bool,
    settings: MysqlStoreBuilder,
    /// None if the pool is somebody else's.
    connector: Option<Connector>,
    server: Server,
    /// How much a connection of a pool that is not the store's may send at once.
    packet: OnceLock<Packet>,
}

impl MysqlStore {
    /// Connects to the database at `url`, `mysql://user:password@host:3306/database`, with ten connections at most.
    ///
    /// # Errors
    /// * [`Invalid`](leasehold_core::StoreError::Invalid) with the field `url`;
    /// * [`Unavailable`](leasehold_core::StoreError::Unavailable) if the server cannot be reached;
    /// * [`Conflict`](leasehold_core::StoreError::Conflict) if a newer version of this crate has made the tables, or if the server has a
    ///   binary log with `binlog_format = STATEMENT`, which takes no writes at READ COMMITTED.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// Works on connections of a pool that is there already. See [`MysqlStoreBuilder::from_pool`].
    pub fn from_pool(pool: Pool<AsyncMysqlConnection>) -> Self {
        Self::builder().from_pool(pool)
    }

    /// Begins a store with other settings.
    pub fn builder() -> MysqlStoreBuilder {
        MysqlStoreBuilder::new()
    }

    /// Makes the tables, or brings them up to date. Any number of processes may do it at once, and one that was broken off is
    /// taken up where it was left.
    ///
    /// # Errors
    /// [`Conflict`](leasehold_core::StoreError::Conflict) if a newer version of this crate has made the tables.
    pub async fn migrate(&self) -> Result<()> {
        let lent = self.shared.connections.get().await;
        let conn = Object::take(lent.map_err(|error| StoreError::unavailable("migrate", error))?);
        migrate::migrate(conn, &self.shared.prefix).await
    }

    /// What [`migrate`](Self::migrate) runs on an empty database, as one script, for teams that run their own migrations.
    pub fn migrations_sql(prefix: &TablePrefix) -> String {
        migrate::script(prefix)
    }

    /// A pool of connections to the same database, for transactions of your own, at READ COMMITTED. It is another than the
    /// store's own pool, unless that was given to [`from_pool`](Self::from_pool), and opens nothing before it is used.
    pub fn pool(&self) -> &Pool<AsyncMysqlConnection> {
        self.shared.connections.users()
    }

    /// How often the server has broken a deadlock at the cost of an operation of this store, which was then done again. In
    /// transactions of your own it is you who is told.
    pub fn deadlocks(&self) -> u64 {
        self.shared.deadlocks.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { connector, prefix, .. } = &*self.shared;
        let mut debug = f.debug_struct("MysqlStore");
        debug.field("connector", connector).field("prefix", prefix).finish_non_exhaustive()
    }
}

#[async_trait]
impl Courier for Shared {
    async fn send(self: &Arc<Self>, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.run("enqueue", jobs.to_vec(), |s, _, jobs| Box::pin(enqueue::enqueue(s, jobs))).await
    }
}

#[async_trait]
impl Store for MysqlStore {
    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        self.shared.run("now", (), |session, _, ()| Box::pin(inspect::now(session))).await
    }

    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        backend::check_enqueue(jobs, &self.shared.capabilities)?;
        match jobs {
            [] => Ok(Vec::new()), // I2
            [job] if job.unique_key().is_none() => {
                self.shared.gatherer.enqueue(&self.shared, job).await.map(|answer| vec![answer])
            }
            _ => self.shared.send(jobs).await,
        }
    }

    async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>> {
        let request = request.clone();
        self.shared
            .run_or_undo(
                "dequeue",
                request,
                |s, shared, request| Box::pin(dequeue::dequeue(s, &shared.memory, request)),
                |shared, jobs| Box::pin(unclaim::unclaim(shared, jobs)),
            )
            .await
    }

    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
        backend::check_settle(items, &self.shared.capabilities)?;
        if items.is_empty() {
            return Ok(Vec::new()); // I2
        }
        self.shared.run("settle", items.to_vec(), |s, _, items| Box::pin(settle::settle(s, items))).await
    }

    async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>> {
        backend::check_batch("receipts", receipts.len())?;
        if receipts.is_empty() {
            return Ok(Vec::new()); // I2
        }
        let input = (receipts.to_vec(), extend);
        self.shared
            .run("heartbeat", input, |s, _, (receipts, extend)| {
                Box::pin(heartbeat::heartbeat(s, receipts, *extend))
            })
            .await
    }

    async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>> {
        self.shared.run("reclaim", limit, |s, _, limit| Box::pin(reclaim::reclaim(s, *limit))).await
    }

    async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()> {
        if let Intervention::Discard { reason } = intervention {
            backend::check_document("reason", reason, &self.shared.capabilities)?;
        }
        let input = (id, intervention.clone());
        self.shared
            .run("intervene", input, |s, _, (id, word)| Box::pin(intervene::intervene(s, *id, word)))
            .await
    }

    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        self.shared.run("get", id, |s, _, id| Box::pin(inspect::get(s, *id))).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>> {
        self.shared.run("jobs", filter.clone(), |s, _, filter| Box::pin(inspect::jobs(s, filter))).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>> {
        self.shared.run("history", filter.clone(), |s, _, filter| Box::pin(inspect::history(s, filter))).await
    }

    async fn redrive(&self, request: &Redrive) -> Result<Redriven> {
        backend::check_ids(request.ids.as_deref())?;
        self.shared.run("redrive", request.clone(), |s, _, r| Box::pin(history::redrive(s, r))).await
    }

    async fn prune(&self, request: &Prune) -> Result<u64> {
        backend::check_ids(request.ids.as_deref())?;
        self.shared.run("prune", request.clone(), |s, _, r| Box::pin(history::prune(s, r))).await
    }

    async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()> {
        backend::check_policy(policy, &self.shared.capabilities)?;
        let input = (pattern.clone(), policy.clone());
        self.shared
            .run("set_policy", input, |s, _, (pattern, policy)| {
                Box::pin(policy::set_policy(s, pattern, policy))
            })
            .await
    }

    async fn policies(&self) -> Result<Policies> {
        self.shared.run("policies", (), |s, _, ()| Box::pin(policy::policies(s))).await
    }

    async fn receipts(&self, receipts: &[Receipt]) -> Result<Vec<ReceiptStatus>> {
        backend::check_batch("receipts", receipts.len())?;
        self.shared.run("receipts", receipts.to_vec(), |s, _, r| Box::pin(inspect::receipts(s, r))).await
    }

    async fn stuck(&self, older_than: Duration, limit: BatchSize) -> Result<Vec<Job>> {
        let input = (older_than, limit);
        self.shared.run("stuck", input, |s, _, (age, limit)| Box::pin(inspect::stuck(s, *age, *limit))).await
    }

    async fn explain(&self, id: JobId) -> Result<Explanation> {
        self.shared.run("explain", id, |s, _, id| Box::pin(facts::explain(s, *id))).await
    }

    async fn usage(&self, queue: &QueueName) -> Result<QueueUsage> {
        self.shared.run("usage", queue.clone(), |s, _, queue| Box::pin(facts::usage(s, queue))).await
    }

    async fn stats(&self, queues: &Queues) -> Result<Vec<QueueStats>> {
        self.shared.run("stats", queues.clone(), |s, _, queues| Box::pin(inspect::stats(s, queues))).await
    }

    async fn next_available_at(&self, queues: &Queues) -> Result<Option<NextAvailable>> {
        self.shared
            .run("next_available_at", queues.clone(), |s, _, queues| {
                Box::pin(facts::next_available_at(s, queues))
            })
            .await
    }

    async fn pause(&self, pattern: &QueuePattern) -> Result<()> {
        self.shared.run("pause", pattern.clone(), |s, _, p| Box::pin(policy::set_paused(s, p, true))).await
    }

    async fn resume(&self, pattern: &QueuePattern) -> Result<()> {
        self.shared.run("resume", pattern.clone(), |s, _, p| Box::pin(policy::set_paused(s, p, false))).await
    }

    async fn dedicated(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(Some(Arc::new(self.shared.settings.small(&self.shared)?)))
    }

    async fn wakeups(&self, queues: &Queues) -> Result<Wakeups> {
        let wakeups = self.shared.hub.subscribe(queues);
        wake::start(&self.shared);
        Ok(wakeups)
    }
}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/mysql.md")]
struct Guide;
