//! A store with nothing of its own but what is required.

use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_core::{
    BatchSize, Capabilities, Dequeue, Enqueued, FinishedJob, HeartbeatOutcome, HistoryFilter, Intervention,
    Job, JobFilter, JobId, LeaseFor, NewJob, Page, Policies, Prune, QueueName, QueuePattern, QueuePolicy,
    QueueUsage, Receipt, Reclaimed, Record, Redrive, Redriven, Result, SettleOutcome, Store, Verdict,
    backend,
};

/// A store with the required methods of another (and its `usage`), and with the defaults for all the rest: what a backend
/// that overrides derived methods is compared with.
pub struct Plain {
    store: Arc<dyn Store>,
    capabilities: Capabilities,
}

impl Plain {
    /// All that `store` can do, plainly.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let capabilities = store.capabilities();
        Self { store, capabilities }
    }

    /// The same, promising no more than these capabilities.
    pub fn promising(store: Arc<dyn Store>, capabilities: Capabilities) -> Self {
        Self { store, capabilities }
    }
}

#[async_trait]
impl Store for Plain {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
    async fn now(&self) -> Result<DateTime<Utc>> {
        self.store.now().await
    }
    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.store.enqueue(jobs).await
    }
    async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>> {
        self.store.dequeue(request).await
    }
    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
        self.store.settle(items).await
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
        backend::check_policy(policy, &self.capabilities)?;
        self.store.set_policy(pattern, policy).await
    }
    async fn policies(&self) -> Result<Policies> {
        self.store.policies().await
    }
    /// Only the backend knows its tokens.
    async fn usage(&self, queue: &QueueName) -> Result<QueueUsage> {
        self.store.usage(queue).await
    }
}
