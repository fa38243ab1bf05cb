//! A store that does what a test wants before and after each operation of another.

use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_core::{
    BatchSize, Capabilities, Dequeue, Enqueued, FinishedJob, HeartbeatOutcome, HistoryFilter, Intervention,
    Job, JobFilter, JobId, LeaseFor, NewJob, NextAvailable, Page, Policies, Prune, QueuePattern, QueuePolicy,
    Queues, Receipt, ReceiptStatus, Reclaimed, Record, Redrive, Redriven, Result, SettleOutcome, Store,
    Verdict, Wakeups,
};
use leasehold_memory::MemoryStore;

/// What a worker asks of its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    Dequeue,
    Settle,
    Heartbeat,
    Reclaim,
    Receipts,
    Next,
    Wakeups,
    Dedicated,
}

/// What happens around the operations. An error takes the place of the answer.
#[async_trait]
pub trait Around: Send + Sync + 'static {
    async fn before(&self, _: Op, _items: usize) -> Result<()> {
        Ok(())
    }

    async fn after(&self, _: Op, _items: usize) -> Result<()> {
        Ok(())
    }

    /// The same as `before`, for what depends on the receipts.
    async fn before_receipts(&self, _: Op, _: &[Receipt]) -> Result<()> {
        Ok(())
    }

    /// The same for a claim.
    async fn before_claim(&self, _: &Dequeue) -> Result<()> {
        Ok(())
    }

    /// Whether the verdict for this receipt is skipped, because its row is locked.
    fn skips(&self, _: &Receipt) -> bool {
        false
    }
}

pub struct Wrapped<A> {
    pub store: MemoryStore,
    pub around: Arc<A>,
}

impl<A: Around> Wrapped<A> {
    pub fn new(store: &MemoryStore, around: &Arc<A>) -> Arc<Self> {
        Arc::new(Self { store: store.clone(), around: Arc::clone(around) })
    }

    async fn during<T>(&self, op: Op, items: usize, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.around.before(op, items).await?;
        let answer = work.await;
        self.around.after(op, items).await?;
        answer
    }
}

#[async_trait]
impl<A: Around> Store for Wrapped<A> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        self.store.now().await
    }

    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.store.enqueue(jobs).await
    }

    async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>> {
        self.around.before_claim(request).await?;
        self.during(Op::Dequeue, request.limit.as_usize(), self.store.dequeue(request)).await
    }

    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
        let receipts: Vec<Receipt> = items.iter().map(|(receipt, _)| *receipt).collect();
        self.around.before_receipts(Op::Settle, &receipts).await?;
        let sent: Vec<_> = items.iter().filter(|(receipt, _)| !self.around.skips(receipt)).cloned().collect();
        let settled = self.during(Op::Settle, items.len(), self.store.settle(&sent)).await?;
        let mut settled = settled.into_iter();
        let outcome = |(receipt, _): &(Receipt, Verdict)| match sent.iter().any(|item| item.0 == *receipt) {
            true => settled.next().unwrap(),
            false => SettleOutcome::Pending,
        };
        Ok(items.iter().map(outcome).collect())
    }

    async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>> {
        self.around.before_receipts(Op::Heartbeat, receipts).await?;
        self.during(Op::Heartbeat, receipts.len(), self.store.heartbeat(receipts, extend)).await
    }

    async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>> {
        self.during(Op::Reclaim, limit.as_usize(), self.store.reclaim(limit)).await
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
        self.during(Op::Receipts, receipts.len(), self.store.receipts(receipts)).await
    }

    async fn next_available_at(&self, queues: &Queues) -> Result<Option<NextAvailable>> {
        self.during(Op::Next, 0, self.store.next_available_at(queues)).await
    }

    async fn wakeups(&self, queues: &Queues) -> Result<Wakeups> {
        self.during(Op::Wakeups, 0, self.store.wakeups(queues)).await
    }

    async fn dedicated(&self) -> Result<Option<Arc<dyn Store>>> {
        self.during(Op::Dedicated, 0, self.store.dedicated()).await
    }
}
