//! What the tests of the worker share.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod wrapped;

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::{FinishedJob, HistoryFilter, JobKind, NewJob, Store};
use leasehold_memory::{Clock, MemoryStore};
use leasehold_worker::{HeartbeatOn, Worker, WorkerBuilder, WorkerEvent, WorkerHandle};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// The store's clock goes by tokio's, which tests pause and move.
pub struct TokioClock {
    start: Instant,
    epoch: DateTime<Utc>,
}

impl TokioClock {
    pub fn new() -> Self {
        Self { start: Instant::now(), epoch: "2026-11-16T12:00:00Z".parse().unwrap() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> DateTime<Utc> {
        self.epoch + self.start.elapsed()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub n: u64,
}

impl JobKind for Work {
    const KIND: &'static str = "work";
}

/// For handlers that settle in a transaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pay {}

impl JobKind for Pay {
    const KIND: &'static str = "pay";
}

pub fn store() -> MemoryStore {
    MemoryStore::with_clock(TokioClock::new())
}

/// A worker on paused time.
pub fn worker(store: &MemoryStore) -> WorkerBuilder {
    Worker::builder(Arc::new(store.clone())).queue("q").heartbeat_on(HeartbeatOn::Task)
}

pub async fn enqueue(store: &dyn Store, count: u64) {
    let jobs: Vec<NewJob> = (0..count).map(|n| NewJob::of("q", &Work { n }).build().unwrap()).collect();
    store.enqueue(&jobs).await.unwrap();
}

/// Waits until so many jobs are in the history, for an hour of paused time at most.
pub async fn finished(store: &dyn Store, count: usize) -> Vec<FinishedJob> {
    for _ in 0..360_000 {
        let filter = HistoryFilter {
            limit: leasehold_core::BatchSize::new(10_000).unwrap(),
            ..HistoryFilter::default()
        };
        let page = store.history(&filter).await.unwrap();
        if page.items.len() >= count {
            return page.items;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("fewer than {count} jobs are finished: {:?}", store.jobs(&Default::default()).await);
}

/// The next event that `wanted` takes, within an hour of paused time.
pub async fn event<T>(worker: &WorkerHandle, wanted: impl Fn(WorkerEvent) -> Option<T>) -> T {
    let mut events = worker.events();
    let next = async {
        loop {
            if let Some(found) = wanted(events.recv().await.unwrap()) {
                return found;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(3600), next).await.unwrap()
}

/// A memory store that can be told to fail.
#[derive(Clone)]
pub struct Faulty {
    inner: MemoryStore,
    fails: Arc<std::sync::atomic::AtomicBool>,
}

pub fn faulty(inner: MemoryStore) -> Faulty {
    Faulty { inner, fails: Arc::default() }
}

impl Faulty {
    pub fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    pub fn fail(&self, fails: bool) {
        self.fails.store(fails, std::sync::atomic::Ordering::SeqCst);
    }

    fn check(&self, operation: &'static str) -> leasehold_core::Result<()> {
        match self.fails.load(std::sync::atomic::Ordering::SeqCst) {
            true => Err(leasehold_core::StoreError::unavailable(operation, "told to fail")),
            false => Ok(()),
        }
    }
}

macro_rules! forward {
    ($(async fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $answer:ty;)+) => {
        #[async_trait::async_trait]
        impl Store for Faulty {
            fn capabilities(&self) -> leasehold_core::Capabilities {
                self.inner.capabilities()
            }

            $(async fn $name(&self $(, $arg: $type)*) -> leasehold_core::Result<$answer> {
                self.check(stringify!($name))?;
                self.inner.$name($($arg),*).await
            })+
        }
    };
}

forward! {
    async fn now(&self) -> DateTime<Utc>;
    async fn enqueue(&self, jobs: &[NewJob]) -> Vec<leasehold_core::Enqueued>;
    async fn dequeue(&self, request: &leasehold_core::Dequeue) -> Vec<leasehold_core::Job>;
    async fn settle(&self, items: &[(leasehold_core::Receipt, leasehold_core::Verdict)]) -> Vec<leasehold_core::SettleOutcome>;
    async fn heartbeat(&self, receipts: &[leasehold_core::Receipt], extend: leasehold_core::LeaseFor) -> Vec<leasehold_core::HeartbeatOutcome>;
    async fn reclaim(&self, limit: leasehold_core::BatchSize) -> Vec<leasehold_core::Reclaimed>;
    async fn intervene(&self, id: leasehold_core::JobId, intervention: &leasehold_core::Intervention) -> ();
    async fn get(&self, id: leasehold_core::JobId) -> Option<leasehold_core::Record>;
    async fn jobs(&self, filter: &leasehold_core::JobFilter) -> leasehold_core::Page<leasehold_core::Job>;
    async fn history(&self, filter: &HistoryFilter) -> leasehold_core::Page<FinishedJob>;
    async fn redrive(&self, request: &leasehold_core::Redrive) -> leasehold_core::Redriven;
    async fn prune(&self, request: &leasehold_core::Prune) -> u64;
    async fn set_policy(&self, pattern: &leasehold_core::QueuePattern, policy: &leasehold_core::QueuePolicy) -> ();
    async fn policies(&self) -> leasehold_core::Policies;
    async fn receipts(&self, receipts: &[leasehold_core::Receipt]) -> Vec<leasehold_core::ReceiptStatus>;
    async fn next_available_at(&self, queues: &leasehold_core::Queues) -> Option<leasehold_core::NextAvailable>;
    async fn wakeups(&self, queues: &leasehold_core::Queues) -> leasehold_core::Wakeups;
    async fn stats(&self, queues: &leasehold_core::Queues) -> Vec<leasehold_core::QueueStats>;
}
