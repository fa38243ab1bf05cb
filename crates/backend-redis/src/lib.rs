//! The Redis backend of Leasehold: the queue lives in Redis 7 or Valkey, in Lua scripts that are each atomic.
//!
//! It keeps the promises of [`leasehold_core::contract`], but for those that need a transaction of yours: there is none to
//! share, so [`RedisStore`] is a [`Store`] and no `TxStore`, and the compiler says so.
//!
//! # How it works
//!
//! A job is a hash, live or finished, and so is in one place. Sorted sets beside it say who is next (`ready`, sorted by
//! priority, time and id), whose lease ends when (`leased`), and what has ended (`history`). Each queue belongs to a shard, and
//! all keys of a shard have one tag: on one server there is one shard, in a cluster there are several, and what concerns
//! queues of several shards goes to all of them at once. The id of a job ends with the number of its queue, so that a receipt
//! leads to its keys without an index. Time is that of the server, read once in each script.
//!
//! ```no_run
//! use leasehold_core::{NewJob, Store};
//! use leasehold_redis::RedisStore;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::connect("redis://127.0.0.1/").await?;
//! store.enqueue(&[NewJob::builder("mail", "welcome").payload(&"ada").build()?]).await?;
//! # Ok(()) }
//! ```

mod agenda;
mod builder;
mod clock;
mod cluster;
mod connect;
mod dequeue;
mod directory;
mod enqueue;
mod error;
mod facts;
mod fan;
mod heartbeat;
mod history;
mod id;
mod inspect;
mod intervene;
mod keys;
mod link;
mod policy;
mod portion;
mod reclaim;
mod row;
mod rows;
mod script;
mod settle;
mod single;
mod stuck;
mod turns;
mod wake;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_core::{
    BatchSize, Capabilities, Dequeue, Enqueued, Events, Explanation, FinishedJob, HeartbeatOutcome,
    HistoryFilter, Intervention, Job, JobFilter, JobId, LeaseFor, NewJob, NextAvailable, Page, Policies,
    Prune, QueueName, QueuePattern, QueuePolicy, QueueStats, QueueUsage, Queues, Receipt, ReceiptStatus,
    Reclaimed, Record, Redrive, Redriven, Result, SettleOutcome, Store, Verdict, Wakeups, backend,
};
use leasehold_gather::{Courier, Gatherer};

pub use crate::builder::RedisStoreBuilder;
use crate::connect::Address;
pub use crate::keys::KeyPrefix;
use crate::link::Link;
use crate::turns::Turns;
use crate::wake::Hub;

/// A store in Redis. Clones are handles on the same connection.
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

/// What the handles share.
pub(crate) struct Shared {
    link: Link,
    turns: Turns,
    gatherer: Arc<Gatherer>,
    hub: Hub,
    capabilities: Capabilities,
    address: Address,
    builder: RedisStoreBuilder,
}

impl RedisStore {
    /// Connects to the server at `url`, such as `redis://:password@127.0.0.1:6379/0`; of a cluster, to some of its servers,
    /// with commas between their URLs.
    ///
    /// # Errors
    /// * [`Invalid`](leasehold_core::StoreError::Invalid) with the field `url`;
    /// * [`Conflict`](leasehold_core::StoreError::Conflict) if the server evicts keys: its `maxmemory-policy` must be
    ///   `noeviction`;
    /// * [`Unavailable`](leasehold_core::StoreError::Unavailable) if it cannot be reached.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// Begins a store with other settings.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::new()
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.shared.link.layout.prefix).finish_non_exhaustive()
    }
}

#[async_trait]
impl Courier for Shared {
    async fn send(self: &Arc<Self>, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        enqueue::enqueue(&self.link, jobs).await
    }
}

#[async_trait]
impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        self.shared.link.now("now").await
    }

    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        backend::check_enqueue(jobs, &self.shared.capabilities)?;
        match jobs {
            [] => Ok(Vec::new()), // I2
            [job] if job.unique_key().is_none() && self.shared.capabilities.atomic_batches => {
                self.shared.gatherer.enqueue(&self.shared, job).await.map(|answer| vec![answer])
            }
            _ => self.shared.send(jobs).await,
        }
    }

    async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>> {
        dequeue::dequeue(&self.shared.link, &self.shared.turns, request).await
    }

    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
        backend::check_settle(items, &self.shared.capabilities)?;
        settle::settle(&self.shared.link, items).await
    }

    async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>> {
        backend::check_batch("receipts", receipts.len())?;
        heartbeat::heartbeat(&self.shared.link, receipts, extend).await
    }

    async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>> {
        reclaim::reclaim(&self.shared.link, limit).await
    }

    async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()> {
        if let Intervention::Discard { reason } = intervention {
            backend::check_document("reason", reason, &self.shared.capabilities)?;
        }
        intervene::intervene(&self.shared.link, id, intervention).await
    }

    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        inspect::get(&self.shared.link, id).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>> {
        inspect::jobs(&self.shared.link, filter).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>> {
        inspect::history(&self.shared.link, filter).await
    }

    async fn redrive(&self, request: &Redrive) -> Result<Redriven> {
        backend::check_ids(request.ids.as_deref())?;
        history::redrive(&self.shared.link, request).await
    }

    async fn prune(&self, request: &Prune) -> Result<u64> {
        backend::check_ids(request.ids.as_deref())?;
        history::prune(&self.shared.link, request).await
    }

    async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()> {
        backend::check_policy(policy, &self.shared.capabilities)?;
        policy::change(&self.shared.link, "set_policy", pattern, |_| policy.clone()).await
    }

    async fn policies(&self) -> Result<Policies> {
        policy::policies(&self.shared.link).await
    }

    async fn receipts(&self, receipts: &[Receipt]) -> Result<Vec<ReceiptStatus>> {
        backend::check_batch("receipts", receipts.len())?;
        inspect::receipts(&self.shared.link, receipts).await
    }

    async fn stuck(&self, older_than: Duration, limit: BatchSize) -> Result<Vec<Job>> {
        stuck::stuck(&self.shared.link, older_than, limit).await
    }

    async fn usage(&self, queue: &QueueName) -> Result<QueueUsage> {
        facts::usage(&self.shared.link, queue).await
    }

    async fn explain(&self, id: JobId) -> Result<Explanation> {
        facts::explain(&self.shared.link, id).await
    }

    async fn stats(&self, queues: &Queues) -> Result<Vec<QueueStats>> {
        facts::stats(&self.shared.link, queues).await
    }

    async fn next_available_at(&self, queues: &Queues) -> Result<Option<NextAvailable>> {
        facts::next_available_at(&self.shared.link, queues).await
    }

    async fn pause(&self, pattern: &QueuePattern) -> Result<()> {
        policy::change(&self.shared.link, "pause", pattern, |all| policy::paused(all, pattern, true)).await
    }

    async fn resume(&self, pattern: &QueuePattern) -> Result<()> {
        policy::change(&self.shared.link, "resume", pattern, |all| policy::paused(all, pattern, false)).await
    }

    async fn dedicated(&self) -> Result<Option<Arc<dyn Store>>> {
        let Shared { builder, address, .. } = &*self.shared;
        Ok(Some(Arc::new(builder.clone().open(address.clone()).await?)))
    }

    async fn wakeups(&self, queues: &Queues) -> Result<Wakeups> {
        wake::wakeups(&self.shared, queues).await
    }

    async fn subscribe(&self, queues: &Queues) -> Result<Events> {
        wake::subscribe(&self.shared, queues).await
    }
}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/redis.md")]
struct Guide;
