//! Mocks of the traits, for unit tests of code that uses a store.
//!
//! The thin forms (`ack`, `nack`, `release`, `retry_later`, `discard`, `promote`, `ack_in`, `nack_in`) are not mocked:
//! they run on the mocked methods, as in a real store. The methods stand twice because `mock!` cannot be given them by
//! a macro: the hygiene of `self` is in the way.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use crate::{
    BatchSize, Capabilities, Dequeue, EffectivePolicy, Enqueued, Events, Explanation, FinishedJob,
    HeartbeatOutcome, HistoryFilter, IdempotencyKey, Intervention, Job, JobFilter, JobId, LeaseFor, NewJob,
    NextAvailable, Page, Policies, Prune, QueueName, QueuePattern, QueuePolicy, QueueStats, QueueUsage,
    Queues, Receipt, ReceiptStatus, Reclaimed, Record, Redrive, Redriven, Result, SettleOutcome, Settled,
    Store, TxStore, Verdict, Wakeups,
};

mockall::mock! {
    /// A mock of [`Store`](crate::Store).
    #[derive(Debug)]
    pub Store {}

    #[async_trait]
    impl Store for Store {
        fn capabilities(&self) -> Capabilities;
        async fn now(&self) -> Result<DateTime<Utc>>;
        async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>>;
        async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>>;
        async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>>;
        async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>>;
        async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>>;
        async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()>;
        async fn get(&self, id: JobId) -> Result<Option<Record>>;
        async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>>;
        async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>>;
        async fn redrive(&self, request: &Redrive) -> Result<Redriven>;
        async fn prune(&self, request: &Prune) -> Result<u64>;
        async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()>;
        async fn policies(&self) -> Result<Policies>;
        async fn receipts(&self, receipts: &[Receipt]) -> Result<Vec<ReceiptStatus>>;
        async fn stuck(&self, older_than: Duration, limit: BatchSize) -> Result<Vec<Job>>;
        async fn explain(&self, id: JobId) -> Result<Explanation>;
        async fn usage(&self, queue: &QueueName) -> Result<QueueUsage>;
        async fn stats(&self, queues: &Queues) -> Result<Vec<QueueStats>>;
        async fn next_available_at(&self, queues: &Queues) -> Result<Option<NextAvailable>>;
        async fn policy(&self, queue: &QueueName) -> Result<EffectivePolicy>;
        async fn pause(&self, pattern: &QueuePattern) -> Result<()>;
        async fn resume(&self, pattern: &QueuePattern) -> Result<()>;
        async fn wakeups(&self, queues: &Queues) -> Result<Wakeups>;
        async fn dedicated(&self) -> Result<Option<Arc<dyn Store>>>;
        async fn subscribe(&self, queues: &Queues) -> Result<Events>;
    }
}

mockall::mock! {
    /// A mock of [`TxStore`](crate::TxStore), and of [`Store`](crate::Store) with it.
    #[derive(Debug)]
    pub TxStore<C: Send + Sync + 'static> {}

    #[async_trait]
    impl<C: Send + Sync + 'static> Store for TxStore<C> {
        fn capabilities(&self) -> Capabilities;
        async fn now(&self) -> Result<DateTime<Utc>>;
        async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>>;
        async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>>;
        async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>>;
        async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>>;
        async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>>;
        async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()>;
        async fn get(&self, id: JobId) -> Result<Option<Record>>;
        async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>>;
        async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>>;
        async fn redrive(&self, request: &Redrive) -> Result<Redriven>;
        async fn prune(&self, request: &Prune) -> Result<u64>;
        async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()>;
        async fn policies(&self) -> Result<Policies>;
        async fn receipts(&self, receipts: &[Receipt]) -> Result<Vec<ReceiptStatus>>;
        async fn stuck(&self, older_than: Duration, limit: BatchSize) -> Result<Vec<Job>>;
        async fn explain(&self, id: JobId) -> Result<Explanation>;
        async fn usage(&self, queue: &QueueName) -> Result<QueueUsage>;
        async fn stats(&self, queues: &Queues) -> Result<Vec<QueueStats>>;
        async fn next_available_at(&self, queues: &Queues) -> Result<Option<NextAvailable>>;
        async fn policy(&self, queue: &QueueName) -> Result<EffectivePolicy>;
        async fn pause(&self, pattern: &QueuePattern) -> Result<()>;
        async fn resume(&self, pattern: &QueuePattern) -> Result<()>;
        async fn wakeups(&self, queues: &Queues) -> Result<Wakeups>;
        async fn dedicated(&self) -> Result<Option<Arc<dyn Store>>>;
        async fn subscribe(&self, queues: &Queues) -> Result<Events>;
    }

    #[async_trait]
    impl<C: Send + Sync + 'static> TxStore<C> for TxStore<C> {
        async fn enqueue_in(&self, conn: &mut C, jobs: &[NewJob]) -> Result<Vec<Enqueued>>;
        async fn settle_in(&self, conn: &mut C, receipt: &Receipt, verdict: Verdict) -> Result<Settled>;
        async fn lock_in(&self, conn: &mut C, receipt: Receipt) -> Result<()>;
        async fn once_in(&self, conn: &mut C, key: &IdempotencyKey) -> Result<bool>;
    }
}
