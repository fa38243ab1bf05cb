//! A store that counts what is asked of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_core::{
    BatchSize, Capabilities, Dequeue, Enqueued, Events, FinishedJob, HeartbeatOutcome, HistoryFilter,
    Intervention, Job, JobFilter, JobId, LeaseFor, NewJob, NextAvailable, Page, Policies, Prune,
    QueuePattern, QueuePolicy, QueueStats, Queues, Receipt, ReceiptStatus, Reclaimed, Record, Redrive,
    Redriven, Result, SettleOutcome, Store, Verdict, Wakeups,
};

/// How often each kind of operation was asked for.
#[derive(Debug, Default)]
pub struct Counts {
    /// Claims.
    pub dequeue: AtomicU64,
    /// Settlements.
    pub settle: AtomicU64,
    /// Everything else.
    pub other: AtomicU64,
}

impl Counts {
    /// All operations.
    pub fn total(&self) -> u64 {
        [&self.dequeue, &self.settle, &self.other].map(|count| count.load(Ordering::Relaxed)).iter().sum()
    }
}

/// Another store, with a count of its operations. Those of its dedicated store count too.
#[derive(Debug)]
pub struct Counted {
    store: Arc<dyn Store>,
    counts: Arc<Counts>,
}

impl Counted {
    /// Counts the operations of `store`.
    pub fn new(store: Arc<dyn Store>) -> (Arc<Self>, Arc<Counts>) {
        let counts = Arc::new(Counts::default());
        (Arc::new(Self { store, counts: Arc::clone(&counts) }), counts)
    }

    fn other(&self) -> &dyn Store {
        one(&self.counts.other);
        &*self.store
    }
}

fn one(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

#[async_trait]
impl Store for Counted {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    async fn now(&self) -> Result<DateTime<Utc>> {
        self.other().now().await
    }
    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.other().enqueue(jobs).await
    }
    async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>> {
        one(&self.counts.dequeue);
        self.store.dequeue(request).await
    }
    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
        one(&self.counts.settle);
        self.store.settle(items).await
    }
    async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>> {
        self.other().heartbeat(receipts, extend).await
    }
    async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>> {
        self.other().reclaim(limit).await
    }
    async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()> {
        self.other().intervene(id, intervention).await
    }
    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        self.other().get(id).await
    }
    async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>> {
        self.other().jobs(filter).await
    }
    async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>> {
        self.other().history(filter).await
    }
    async fn redrive(&self, request: &Redrive) -> Result<Redriven> {
        self.other().redrive(request).await
    }
    async fn prune(&self, request: &Prune) -> Result<u64> {
        self.other().prune(request).await
    }
    async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()> {
        self.other().set_policy(pattern, policy).await
    }
    async fn policies(&self) -> Result<Policies> {
        self.other().policies().await
    }
    async fn receipts(&self, receipts: &[Receipt]) -> Result<Vec<ReceiptStatus>> {
        self.other().receipts(receipts).await
    }
    async fn stuck(&self, older_than: Duration, limit: BatchSize) -> Result<Vec<Job>> {
        self.other().stuck(older_than, limit).await
    }
    async fn stats(&self, queues: &Queues) -> Result<Vec<QueueStats>> {
        self.other().stats(queues).await
    }
    async fn next_available_at(&self, queues: &Queues) -> Result<Option<NextAvailable>> {
        self.other().next_available_at(queues).await
    }
    async fn dedicated(&self) -> Result<Option<Arc<dyn Store>>> {
        let dedicated = self.store.dedicated().await?;
        Ok(dedicated
            .map(|store| Arc::new(Self { store, counts: Arc::clone(&self.counts) }) as Arc<dyn Store>))
    }
    async fn wakeups(&self, queues: &Queues) -> Result<Wakeups> {
        self.store.wakeups(queues).await
    }
    async fn subscribe(&self, queues: &Queues) -> Result<Events> {
        self.store.subscribe(queues).await
    }
}
