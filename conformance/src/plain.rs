//! A store with nothing of its own but what is required.

use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_core::{
    BatchSize, Capabilities, Dequeue, Enqueued, FinishedJob, HeartbeatOutcome, HistoryFilter, Intervention,
    Job, JobFilter, JobId, LeaseFor, NewJob, Page, Policies, Prune, QueueName, QueuePattern, QueuePolicy,
    QueueUsage, Receipt, Reclaimed, Record, Redrive, Redriven, Result, SettleOutcome, Store, Verdict,
};

/// A store with the required methods of another (and its `usage`), and with the defaults for all the rest: what a backend
/// that overrides derived methods is compared with.
pub struct Plain(pub Arc<dyn Store>);

#[async_trait]
impl Store for Plain {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    async fn now(&self) -> Result<DateTime<Utc>> {
        self.0.now().await
    }
    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.0.enqueue(jobs).await
    }
    async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>> {
        self.0.dequeue(request).await
    }
    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
        self.0.settle(items).await
    }
    async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>> {
        self.0.heartbeat(receipts, extend).await
    }
    async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>> {
        self.0.reclaim(limit).await
    }
    async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()> {
        self.0.intervene(id, intervention).await
    }
    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        self.0.get(id).await
    }
    async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>> {
        self.0.jobs(filter).await
    }
    async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>> {
        self.0.history(filter).await
    }
    async fn redrive(&self, request: &Redrive) -> Result<Redriven> {
        self.0.redrive(request).await
    }
    async fn prune(&self, request: &Prune) -> Result<u64> {
        self.0.prune(request).await
    }
    async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()> {
        self.0.set_policy(pattern, policy).await
    }
    async fn policies(&self) -> Result<Policies> {
        self.0.policies().await
    }
    /// Only the backend knows its tokens.
    async fn usage(&self, queue: &QueueName) -> Result<QueueUsage> {
        self.0.usage(queue).await
    }
}
