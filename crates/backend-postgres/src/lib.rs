//! The Postgres backend of Leasehold: the queue lives in the database that is there already, in a schema of its own.
//!
//! It keeps every promise of [`leasehold_core::contract`], on Postgres 13 and newer, directly or through PgBouncer.
//!
//! # How it works
//!
//! Every operation is one statement (`queries/`, a file each), so it is one round trip, one
//! snapshot and one transaction; a dropped future has done all or nothing, and never leaves a transaction open. On connections that
//! the store has opened its statement is cancelled on the server. Only a batch of more than 64 MiB is several statements, in one
//! transaction, on a connection that is closed afterwards. Claims, verdicts, heartbeats and reclaims skip rows that another
//! transaction has locked.
//! Statements are prepared once per connection. Queues without a policy pay nothing for there being policies.
//!
//! # Transactions
//!
//! A job can be enqueued or settled in the transaction that writes your own rows: both are there, or neither. The
//! store is a [`TxStore`](leasehold_core::TxStore) of the connection that the transaction is open on. If the lease was
//! lost, [`ack_in`](leasehold_core::TxStore::ack_in) fails, and `?` rolls your rows back. [`TxError`] takes the errors of
//! both sides.
//!
//! With diesel-async, on an `AsyncPgConnection` or one of a pool:
//!
//! ```no_run
//! use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
//! use leasehold_core::{Job, Json, Settled, TxStore};
//! use leasehold_postgres::{PgStore, TxError};
//!
//! async fn pay(store: &PgStore, conn: &mut AsyncPgConnection, job: &Job) -> Result<Settled, TxError> {
//!     conn.transaction(async |conn| {
//!         diesel::sql_query("INSERT INTO payment DEFAULT VALUES").execute(conn).await?;
//!         Ok(store.ack_in(conn, &job.receipt(), Json::null()).await?)
//!     })
//!     .await
//! }
//! ```
//!
#![cfg_attr(feature = "tokio-postgres", doc = include_str!("tx/tokio_postgres.md"))]
#![cfg_attr(feature = "sqlx", doc = include_str!("tx/sqlx.md"))]
//! Features, none of them on by default: `tokio-postgres` for `tokio_postgres::Transaction`, `sqlx` for
//! `sqlx::PgConnection` of sqlx 0.8. The store keeps its own pool in any case.
//!
//! A transaction has to be opened by the driver's own means: of a bare `BEGIN` neither diesel nor sqlx knows, and it is
//! refused as [`NoTransaction`](leasehold_core::StoreError::NoTransaction).

mod builder;
mod chunk;
mod connect;
mod dequeue;
mod enqueue;
mod error;
mod events;
mod facts;
mod floors;
mod heartbeat;
mod history;
mod inspect;
mod intervene;
mod language;
mod lent;
mod migrate;
mod policy;
mod reclaim;
mod room;
mod row;
mod schema;
mod selection;
mod session;
mod settle;
mod sql;
mod statement;
mod tls;
mod tx;
mod upkeep;
mod wake;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::deadpool::{Object, Pool};
use leasehold_core::{
    BatchSize, Capabilities, Dequeue, Enqueued, Events, Explanation, FinishedJob, HeartbeatOutcome,
    HistoryFilter, Intervention, Job, JobFilter, JobId, LeaseFor, NewJob, NextAvailable, Page, Policies,
    Prune, QueueName, QueuePattern, QueuePolicy, QueueStats, QueueUsage, Queues, Receipt, ReceiptStatus,
    Reclaimed, Record, Redrive, Redriven, Result, SettleOutcome, Store, Verdict, Wakeups, backend,
};

use leasehold_gather::{Courier, Gatherer};

pub use crate::builder::PgStoreBuilder;
use crate::chunk::Chunks;
use crate::connect::Connector;
#[doc(hidden)]
pub use crate::dequeue::FirstTry;
use crate::dequeue::Memory;
use crate::error::Effect::{Read, Write};
use crate::events::News;
use crate::lent::Connections;
use crate::room::with_room;
pub use crate::schema::Schema;
use crate::sql::Statements;
pub use crate::tx::TxError;
use crate::upkeep::Upkeep;
use crate::wake::Hub;
pub use crate::wake::WakeupMode;

/// A store in a Postgres database. Clones are handles on the same pool of connections.
#[derive(Clone)]
pub struct PgStore {
    shared: Arc<Shared>,
}

/// What the handles share.
pub(crate) struct Shared {
    connections: Arc<Connections>,
    sql: Arc<Statements>,
    hub: Arc<Hub>,
    memory: Memory,
    upkeep: Upkeep,
    gatherer: Arc<Gatherer>,
    chunks: Chunks,
    capabilities: Capabilities,
    schema: Schema,
    settings: PgStoreBuilder,
    connector: Option<Connector>,
}

impl PgStore {
    /// What the store says on each of its own connections. For its lists: their plans walk the indexes in order, and
    /// are not compiled. What runs all the time brings its own settings along. And `lock_timeout`: nothing waits for the lock
    /// of another session for longer than 5 s; then it is [`Unavailable`](leasehold_core::StoreError::Unavailable). And
    /// `default_transaction_isolation`: READ COMMITTED, whatever the default of the role or the database is. And `lc_messages`, if the role may set
    /// it: errors are in English, since diesel-async keeps no SQLSTATE of most of them. Other people's statements are better off without.
    ///
    /// Behind PgBouncer it is not said, since there it would come to others.
    pub const SETTINGS: &str = connect::SETTINGS;

    /// Connects to the server at `url`, with ten connections at most and the tables in the schema `leasehold`.
    ///
    /// # Errors
    /// * [`Invalid`](leasehold_core::StoreError::Invalid) with the field `url`;
    /// * [`Unavailable`](leasehold_core::StoreError::Unavailable) if the server cannot be reached;
    /// * [`Conflict`](leasehold_core::StoreError::Conflict) if a newer version of this crate has made the tables.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// Works on connections of a pool that is there already. See [`PgStoreBuilder::from_pool`].
    pub fn from_pool(pool: Pool<AsyncPgConnection>) -> Self {
        Self::builder().from_pool(pool)
    }

    /// Begins a store with other settings.
    pub fn builder() -> PgStoreBuilder {
        PgStoreBuilder::new()
    }

    /// Makes the schema and its tables, or brings them up to date. Any number of processes may do it at once.
    ///
    /// # Errors
    /// [`Conflict`](leasehold_core::StoreError::Conflict) if a newer version of this crate has made the tables.
    pub async fn migrate(&self) -> Result<()> {
        let conn = Object::take(self.shared.lend("migrate").await?);
        migrate::migrate(conn, &self.shared.schema).await
    }

    /// What [`migrate`](Self::migrate) runs on an empty schema, as one script, for teams that run their own migrations.
    pub fn migrations_sql(schema: &Schema) -> String {
        migrate::script(schema)
    }

    /// A pool of connections to the same database, for transactions of your own. It is another than the store's own pool,
    /// unless that was given to [`from_pool`](Self::from_pool), and opens nothing before it is used.
    pub fn pool(&self) -> &Pool<AsyncPgConnection> {
        self.shared.connections.users()
    }
}

impl fmt::Debug for PgStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgStore").field("schema", &self.shared.schema).finish_non_exhaustive()
    }
}

impl Shared {
    /// Tells what has happened, to those who subscribe to events.
    fn tell(&self, news: impl FnOnce() -> News) {
        if self.hub.has_bulletin() {
            self.hub.tell(&self.connections, &self.sql, news());
        }
    }

    fn wake<N: AsRef<str>>(&self, queues: impl IntoIterator<Item = N>) {
        self.hub.wake(&self.connections, &self.sql, queues);
    }
}

#[async_trait]
impl Store for PgStore {
    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        let mut conn = self.shared.connection("now").await?;
        let answer = inspect::now(&mut conn, &self.shared.sql).await;
        conn.judge(answer, Read)
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
        let mut conn = self.shared.connection("dequeue").await?;
        let answer = dequeue::dequeue(&mut conn, &self.shared.sql, &self.shared.memory, request).await;
        let jobs = conn.judge(answer, Write)?;
        if !jobs.is_empty() {
            self.shared.has_counted();
        }
        self.shared.tell(|| News::leased(&jobs));
        Ok(jobs)
    }

    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
        backend::check_settle(items, &self.shared.capabilities)?;
        if items.is_empty() {
            return Ok(Vec::new()); // I2
        }
        self.shared.settle(items).await
    }

    async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>> {
        backend::check_batch("receipts", receipts.len())?;
        if receipts.is_empty() {
            return Ok(Vec::new()); // I2
        }
        let mut conn = self.shared.connection("heartbeat").await?;
        let answer = heartbeat::heartbeat(&mut conn, &self.shared.sql, receipts, extend).await;
        let outcomes = conn.judge(answer, Write)?;
        self.shared.tell_lost(receipts, &outcomes).await;
        Ok(outcomes)
    }

    async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>> {
        let (mut conn, at) = self.shared.connection_at("reclaim").await?;
        let sql = &self.shared.sql;
        let answer = with_room!(&mut conn, sql, reclaim::reclaim(&mut conn, sql, limit));
        let reclaimed = conn.judge(answer, Write)?;
        self.shared.tell(|| News::reclaimed(&reclaimed, at));
        self.shared.wake(reclaimed.iter().map(|job| &job.queue));
        Ok(reclaimed)
    }

    async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()> {
        if let Intervention::Discard { reason } = intervention {
            backend::check_document("reason", reason, &self.shared.capabilities)?;
        }
        let (mut conn, at) = self.shared.connection_at("intervene").await?;
        let sql = &self.shared.sql;
        let answer = with_room!(&mut conn, sql, intervene::intervene(&mut conn, sql, id, intervention));
        let (queue, is_changed) = conn.judge(answer, Write)??;
        if is_changed {
            self.shared.tell(|| News::intervened(id, intervention, &queue, at));
        }
        self.shared.wake([queue]);
        Ok(())
    }

    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        let mut conn = self.shared.connection("get").await?;
        let answer = inspect::get(&mut conn, &self.shared.sql, id).await;
        conn.judge(answer, Read)?.transpose()
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>> {
        let mut conn = self.shared.connection("jobs").await?;
        let answer = inspect::jobs(&mut conn, &self.shared.sql, filter).await;
        conn.judge(answer, Read)
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>> {
        let mut conn = self.shared.connection("history").await?;
        let answer = inspect::history(&mut conn, &self.shared.sql, filter).await;
        conn.judge(answer, Read)
    }

    async fn redrive(&self, request: &Redrive) -> Result<Redriven> {
        backend::check_ids(request.ids.as_deref())?;
        let (mut conn, at) = self.shared.connection_at("redrive").await?;
        let sql = &self.shared.sql;
        let answer = with_room!(&mut conn, sql, history::redrive(&mut conn, sql, request));
        let (redriven, back) = conn.judge(answer, Write)?;
        self.shared.tell(|| News::redriven(&back, at));
        self.shared.wake(back.into_iter().map(|(_, queue)| queue));
        Ok(redriven)
    }

    async fn prune(&self, request: &Prune) -> Result<u64> {
        backend::check_ids(request.ids.as_deref())?;
        let mut conn = self.shared.connection("prune").await?;
        let answer = history::prune(&mut conn, &self.shared.sql, request).await;
        conn.judge(answer, Write)
    }

    async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()> {
        backend::check_policy(policy, &self.shared.capabilities)?;
        let mut conn = self.shared.connection("set_policy").await?;
        let answer = policy::set_policy(&mut conn, &self.shared.sql, pattern, policy).await;
        conn.judge(answer, Write)?;
        self.shared.wake([pattern.to_string()]);
        Ok(())
    }

    async fn policies(&self) -> Result<Policies> {
        let mut conn = self.shared.connection("policies").await?;
        let answer = policy::policies(&mut conn, &self.shared.sql).await;
        conn.judge(answer, Read)
    }

    async fn receipts(&self, receipts: &[Receipt]) -> Result<Vec<ReceiptStatus>> {
        backend::check_batch("receipts", receipts.len())?;
        let mut conn = self.shared.connection("receipts").await?;
        let answer = inspect::receipts(&mut conn, &self.shared.sql, receipts).await;
        conn.judge(answer, Read)
    }

    async fn stuck(&self, older_than: Duration, limit: BatchSize) -> Result<Vec<Job>> {
        let mut conn = self.shared.connection("stuck").await?;
        let answer = inspect::stuck(&mut conn, &self.shared.sql, older_than, limit).await;
        conn.judge(answer, Read)
    }

    async fn explain(&self, id: JobId) -> Result<Explanation> {
        let mut conn = self.shared.connection("explain").await?;
        let answer = facts::explain(&mut conn, &self.shared.sql, id).await;
        conn.judge(answer, Read)?
    }

    async fn usage(&self, queue: &QueueName) -> Result<QueueUsage> {
        let mut conn = self.shared.connection("usage").await?;
        let answer = facts::usage(&mut conn, &self.shared.sql, queue).await;
        conn.judge(answer, Read)
    }

    async fn stats(&self, queues: &Queues) -> Result<Vec<QueueStats>> {
        let mut conn = self.shared.connection("stats").await?;
        let answer = inspect::stats(&mut conn, &self.shared.sql, queues).await;
        let stats = conn.judge(answer, Read)?;
        self.shared.is_asked_for_numbers();
        Ok(stats)
    }

    async fn next_available_at(&self, queues: &Queues) -> Result<Option<NextAvailable>> {
        let mut conn = self.shared.connection("next_available_at").await?;
        let answer = facts::next_available_at(&mut conn, &self.shared.sql, queues).await;
        conn.judge(answer, Read)
    }

    async fn pause(&self, pattern: &QueuePattern) -> Result<()> {
        let mut conn = self.shared.connection("pause").await?;
        let answer = policy::set_paused(&mut conn, &self.shared.sql, pattern, true).await;
        conn.judge(answer, Write)
    }

    async fn resume(&self, pattern: &QueuePattern) -> Result<()> {
        let mut conn = self.shared.connection("resume").await?;
        let answer = policy::set_paused(&mut conn, &self.shared.sql, pattern, false).await;
        conn.judge(answer, Write)?;
        self.shared.wake([pattern.to_string()]);
        Ok(())
    }

    async fn dedicated(&self) -> Result<Option<Arc<dyn Store>>> {
        let Shared { settings, connector, connections, .. } = &*self.shared;
        Ok(Some(Arc::new(settings.small(connector.as_ref(), connections)?)))
    }

    async fn wakeups(&self, queues: &Queues) -> Result<Wakeups> {
        self.shared.hub.subscribe(&self.shared.connections, queues).await
    }

    async fn subscribe(&self, queues: &Queues) -> Result<Events> {
        self.shared.hub.events(&self.shared.connections, &self.shared.sql, queues).await
    }
}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/postgres.md")]
struct Guide;
