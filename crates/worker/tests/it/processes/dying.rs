//! A store on which a process dies at a named point.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use diesel_async::SimpleAsyncConnection;
use leasehold_core::{
    BatchSize, Capabilities, Dequeue, Enqueued, FinishedJob, HeartbeatOutcome, HistoryFilter, Intervention,
    Job, JobFilter, JobId, LeaseFor, NewJob, NextAvailable, Page, Policies, Prune, QueuePattern, QueuePolicy,
    Queues, Receipt, ReceiptStatus, Reclaimed, Record, Redrive, Redriven, Result, SettleOutcome, Store,
    Verdict, Wakeups,
};
use leasehold_postgres::PgStore;
use serde::{Deserialize, Serialize};

/// Where a worker can die.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Point {
    /// Jobs are leased, and no handler has begun.
    Claimed,
    /// In the handler, before its writes.
    Started,
    /// The handler has written and settled, and not committed.
    Written,
    /// It has committed, and the worker does not know yet.
    Committed,
    /// A settlement is under way.
    Settling,
    /// It is committed, and the worker does not know yet.
    Settled,
}

impl Point {
    pub(crate) const ALL: [Self; 6] =
        [Self::Claimed, Self::Started, Self::Written, Self::Committed, Self::Settling, Self::Settled];
}

/// When the process dies.
pub(crate) struct Death(Option<(Point, AtomicU32)>);

impl Death {
    pub(crate) fn new(at: Option<(Point, u32)>) -> Self {
        Self(at.map(|(point, times)| (point, AtomicU32::new(times))))
    }

    /// Dies at once if it is time: nothing is unwound, dropped or flushed, as with SIGKILL.
    pub(crate) fn pass(&self, point: Point) {
        if self.is_at(point) {
            std::process::abort();
        }
    }

    /// Whether it is time.
    fn is_at(&self, point: Point) -> bool {
        let own = self.0.as_ref().filter(|(other, _)| *other == point);
        own.is_some_and(|(_, left)| left.fetch_sub(1, Ordering::Relaxed) == 1)
    }
}

pub(crate) struct Dying {
    pub(crate) store: PgStore,
    pub(crate) schema: String,
    pub(crate) death: Arc<Death>,
}

impl Dying {
    /// Writes down which jobs are about to be given back: whether that counts is the store's to say.
    async fn note_given_back(&self, items: &[(Receipt, Verdict)]) {
        let back = items.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Snooze { .. }));
        let rows: Vec<String> =
            back.map(|(receipt, _)| format!("({}, {})", receipt.job, receipt.epoch.get())).collect();
        if !rows.is_empty() {
            let note =
                format!("INSERT INTO {}.given_back (job, epoch) VALUES {}", self.schema, rows.join(","));
            self.store.pool().get().await.unwrap().batch_execute(&note).await.unwrap();
        }
    }
}

#[async_trait]
impl Store for Dying {
    async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>> {
        let jobs = self.store.dequeue(request).await;
        if jobs.as_ref().is_ok_and(|jobs| !jobs.is_empty()) {
            self.death.pass(Point::Claimed);
        }
        jobs
    }

    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
        self.note_given_back(items).await;
        if self.death.is_at(Point::Settling) {
            // Anywhere between the sending of the request and the coming of the answer.
            let _ =
                tokio::time::timeout(Duration::from_micros(fastrand::u64(..2_000)), self.store.settle(items))
                    .await;
            std::process::abort();
        }
        let outcomes = self.store.settle(items).await;
        self.death.pass(Point::Settled);
        outcomes
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    async fn now(&self) -> Result<DateTime<Utc>> {
        self.store.now().await
    }
    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.store.enqueue(jobs).await
    }
    async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>> {
        self.store.heartbeat(receipts, extend).await
    }
    async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>> {
        self.store.reclaim(limit).await
    }
    async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()> {
        self.store.intervene(id, intervention).await
    }
    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        self.store.get(id).await
    }
    async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>> {
        self.store.jobs(filter).await
    }
    async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>> {
        self.store.history(filter).await
    }
    async fn redrive(&self, request: &Redrive) -> Result<Redriven> {
        self.store.redrive(request).await
    }
    async fn prune(&self, request: &Prune) -> Result<u64> {
        self.store.prune(request).await
    }
    async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()> {
        self.store.set_policy(pattern, policy).await
    }
    async fn policies(&self) -> Result<Policies> {
        self.store.policies().await
    }
    async fn receipts(&self, receipts: &[Receipt]) -> Result<Vec<ReceiptStatus>> {
        self.store.receipts(receipts).await
    }
    async fn next_available_at(&self, queues: &Queues) -> Result<Option<NextAvailable>> {
        self.store.next_available_at(queues).await
    }
    async fn dedicated(&self) -> Result<Option<Arc<dyn Store>>> {
        self.store.dedicated().await
    }
    async fn wakeups(&self, queues: &Queues) -> Result<Wakeups> {
        self.store.wakeups(queues).await
    }
}
