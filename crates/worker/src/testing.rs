//! Testing handlers: a queue in memory, a clock that you move, and a worker that takes one step at a time.
//!
//! ```
//! use std::time::Duration;
//! use leasehold_core::{FinalStatus, JobKind, NewJob, Store};
//! use leasehold_worker::Context;
//! use leasehold_worker::testing::{Crash, TestQueue};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Greet {
//!     name: String,
//! }
//!
//! impl JobKind for Greet {
//!     const KIND: &'static str = "greet";
//! }
//!
//! async fn greet(greet: Greet, context: Context<()>) -> Result<(), String> {
//!     if context.attempt() == 1 {
//!         return Err("they did not hear".to_owned());
//!     }
//!     let again = Greet { name: format!("{} again", greet.name) };
//!     let again = NewJob::of("later", &again).delay(Duration::from_secs(60)).build().unwrap();
//!     context.store().enqueue(&[again]).await.map(drop).map_err(|error| error.to_string())
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let queue = TestQueue::new();
//! let worker = queue.worker().queue("hall").handle::<Greet>(greet).test()?;
//! queue.enqueue("hall", &Greet { name: "Ada".to_owned() }).await?;
//!
//! // The first attempt fails, and nothing more is due.
//! assert_eq!(worker.drain().await?.len(), 1);
//! assert!(worker.run_one().await?.is_none());
//!
//! // In time it is. The worker dies before the handler is called: the attempt is spent, the job is not lost.
//! queue.advance(Duration::from_secs(10));
//! worker.crash(Crash::BeforeHandler).await?;
//! queue.advance(Duration::from_secs(60));
//! let ran = worker.run_one().await?.unwrap();
//! assert_eq!(ran.job.attempts, 3);
//! assert_eq!(ran.status(), Some(FinalStatus::Completed));
//! queue.assert_enqueued::<Greet>("later", |greet| greet.name == "Ada again").await;
//! # Ok::<(), leasehold_core::StoreError>(())
//! # }).unwrap();
//! ```

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use leasehold_core::{
    BatchSize, Dequeue, FinalStatus, Invalid, Job, JobFilter, JobId, JobKind, NewJob, Page, Queues, Record,
    Result, Store,
};
use leasehold_memory::{Clock, ManualClock, MemoryStore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Worker;
use crate::builder::WorkerBuilder;
use crate::context::Execution;
use crate::execute::{Executor, Finished};
use crate::handle::Parts;
use crate::leases::Leases;
use crate::report::{Reporter, WorkerStats};
use crate::settle::Settler;

/// Steps after which a test has gone astray: a handler that enqueues its own kind for ever, for example.
const STEPS: usize = 100_000;

/// A queue in memory, and its clock, which stands still until it is told to move.
#[derive(Debug, Clone)]
pub struct TestQueue {
    store: MemoryStore,
    clock: ManualClock,
}

impl TestQueue {
    /// An empty queue, at noon.
    pub fn new() -> Self {
        let clock = ManualClock::new(DateTime::<Utc>::from_timestamp(1_800_014_400, 0).unwrap_or_default());
        Self { store: MemoryStore::with_clock(clock.clone()), clock }
    }

    /// The store, for what is not here.
    pub fn store(&self) -> &MemoryStore {
        &self.store
    }

    /// What time it is.
    pub fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// A worker for this queue: give it queues and handlers, then say [`test`](WorkerBuilder::test).
    pub fn worker(&self) -> WorkerBuilder {
        Worker::builder(Arc::new(self.store.clone()))
    }

    /// Enqueues a job, to run now.
    ///
    /// # Errors
    /// As [`Store::enqueue`].
    pub async fn enqueue<K: JobKind>(&self, queue: &str, payload: &K) -> Result<JobId> {
        let enqueued = self.store.enqueue(&[NewJob::of(queue, payload).build()?]).await?;
        enqueued
            .first()
            .map(|enqueued| enqueued.id)
            .ok_or(leasehold_core::StoreError::NotFound(JobId::new(0)))
    }

    /// The live jobs of this kind in a queue, oldest first, whatever their state. Those whose payload cannot be decoded are
    /// left out.
    ///
    /// # Errors
    /// As [`Store::jobs`].
    pub async fn enqueued<K: JobKind>(&self, queue: &str) -> Result<Vec<(Job, K)>> {
        let filter = JobFilter {
            queues: Queues::named([queue])?,
            kind: Some(K::KIND.try_into()?),
            limit: BatchSize::new(leasehold_core::limits::BATCH)?,
            ..JobFilter::default()
        };
        let Page { items, .. } = self.store.jobs(&filter).await?;
        Ok(items.into_iter().filter_map(|job| job.payload.to().ok().map(|payload| (job, payload))).collect())
    }

    /// The live job of this kind in a queue whose payload is as `expected`.
    ///
    /// # Panics
    /// If there is none, or more than one, with what there is instead.
    #[track_caller]
    #[allow(clippy::manual_async_fn, reason = "so that the place of the caller is told")]
    pub fn assert_enqueued<K: JobKind>(
        &self,
        queue: &str,
        expected: impl Fn(&K) -> bool,
    ) -> impl Future<Output = Job> {
        let place = std::panic::Location::caller();
        async move {
            let jobs = match self.enqueued::<K>(queue).await {
                Ok(jobs) => jobs,
                Err(error) => refuse(place, &format!("queue {queue}: {error}")),
            };
            let there: Vec<String> = jobs.iter().map(|(job, _)| job.payload.as_str().to_owned()).collect();
            let mut matching: Vec<Job> =
                jobs.into_iter().filter(|(_, payload)| expected(payload)).map(|(job, _)| job).collect();
            match (matching.pop(), matching.is_empty()) {
                (Some(job), true) => job,
                (Some(_), false) => {
                    refuse(place, &format!("several such jobs of kind {} in {queue}: {there:?}", K::KIND))
                }
                (None, _) => {
                    refuse(place, &format!("no such job of kind {} in {queue}, only {there:?}", K::KIND))
                }
            }
        }
    }

    /// Runs everything that there is to run, also what is due only later: the clock moves on to the next due time, over and
    /// over, for `horizon` at most.
    ///
    /// # Errors
    /// As [`TestWorker::run_one`].
    pub async fn run_to_end(&self, worker: &TestWorker, horizon: Duration) -> Result<Vec<Ran>> {
        let mut ran = worker.drain().await?;
        let mut left = horizon;
        for _ in 0..STEPS {
            let Some(wait) = worker.next_due().await?.filter(|wait| *wait <= left) else { break };
            self.advance(wait);
            left -= wait;
            ran.extend(worker.drain().await?);
        }
        Ok(ran)
    }
}

impl Default for TestQueue {
    fn default() -> Self {
        Self::new()
    }
}

#[allow(clippy::panic, reason = "that is what an assertion does")]
fn refuse(place: &std::panic::Location<'_>, what: &str) -> ! {
    panic!("{place}: {what}")
}

/// Where a worker dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Crash {
    /// After the claim was committed, before the handler is called.
    BeforeHandler,
    /// In the handler, where it first waits for something. If it never does, at its end.
    InHandler,
    /// After the handler has returned, before its verdict is settled. A transactional handler has committed by then.
    AfterHandler,
}

/// A worker that does nothing by itself: each step is asked for.
pub struct TestWorker {
    store: Arc<dyn Store>,
    requests: Vec<Dequeue>,
    executor: Arc<Executor>,
    leases: Arc<Leases>,
    settler: Settler,
    reporter: Reporter,
}

/// A job that was run.
#[derive(Debug, Clone, PartialEq)]
pub struct Ran {
    /// As it was leased.
    pub job: Job,
    /// What has become of it; nothing if it left no trace.
    pub record: Option<Record>,
}

impl Ran {
    /// How the job ended; nothing if it is back in its queue or left no trace.
    pub fn status(&self) -> Option<FinalStatus> {
        match &self.record {
            Some(Record::Finished(job)) => Some(job.outcome.status()),
            _ => None,
        }
    }
}

impl TestWorker {
    pub(crate) fn new(parts: Parts) -> Result<Self, Invalid> {
        let (reporter, leases) = (Reporter::new(parts.labels()), Arc::new(Leases::default()));
        let request = |queues: Queues| Dequeue {
            queues,
            limit: BatchSize::ONE,
            lease_for: parts.settings.lease,
            worker: parts.settings.worker.clone(),
        };
        let requests = parts.sources.iter().map(|source| request(source.queues.clone())).collect();
        let executor = Executor {
            router: parts.router,
            timeout: parts.timeout,
            make_span: parts.make_span,
            reporter: reporter.clone(),
        };
        let settler = Settler::new(Arc::clone(&parts.store), Arc::clone(&leases), reporter.clone());
        Ok(Self { store: parts.store, requests, executor: Arc::new(executor), leases, settler, reporter })
    }

    /// Claims one job, runs its handler and settles it. `None` if nothing is due now. Leases that have passed are taken
    /// away first, as any worker would.
    ///
    /// # Errors
    /// The store's.
    pub async fn run_one(&self) -> Result<Option<Ran>> {
        let Some(execution) = self.claim().await? else { return Ok(None) };
        let job = (*execution.job).clone();
        let finished = Arc::clone(&self.executor).execute(execution).await;
        self.settle(finished).await;
        let record = self.store.get(job.id).await?;
        Ok(Some(Ran { job, record }))
    }

    /// [`run_one`](Self::run_one) until nothing is due.
    ///
    /// # Errors
    /// The store's.
    pub async fn drain(&self) -> Result<Vec<Ran>> {
        let mut all = Vec::new();
        while let Some(ran) = self.run_one().await? {
            all.push(ran);
            if all.len() >= STEPS {
                return Err(leasehold_core::StoreError::conflict(format!(
                    "still not done after {STEPS} jobs"
                )));
            }
        }
        Ok(all)
    }

    /// Claims one job and dies at `point`: whatever the handler did by then has happened, nothing more will, and the lease
    /// stays until it passes. The job, or `None` if nothing is due.
    ///
    /// # Errors
    /// The store's.
    pub async fn crash(&self, point: Crash) -> Result<Option<Job>> {
        let Some(execution) = self.claim().await? else { return Ok(None) };
        let job = (*execution.job).clone();
        let work = Arc::clone(&self.executor).execute(execution);
        match point {
            Crash::BeforeHandler => drop(work),
            Crash::InHandler => drop(work.now_or_never()),
            Crash::AfterHandler => {
                let _: Finished = work.await;
            }
        }
        self.leases.let_go([&job.receipt()]);
        Ok(Some(job))
    }

    /// Settles a job as a worker does, with pauses while that fails.
    async fn settle(&self, finished: Finished) {
        let receipt = finished.job.receipt();
        let mut batches = vec![self.settler.batch(vec![finished])];
        while let Some(batch) = batches.pop() {
            if batch.due() > Instant::now() {
                tokio::time::sleep_until(batch.due()).await;
            }
            batches.extend(self.settler.round(batch).await.again);
        }
        self.leases.let_go([&receipt]);
    }

    /// How long it is until something is due, nothing if it is now; `None` if nothing will be.
    ///
    /// # Errors
    /// The store's.
    pub async fn next_due(&self) -> Result<Option<Duration>> {
        let mut soonest: Option<Duration> = None;
        for request in &self.requests {
            let next = self.store.next_available_at(&request.queues).await?.map(|next| next.wait);
            soonest = soonest.into_iter().chain(next).min();
        }
        Ok(soonest)
    }

    /// The worker in numbers.
    pub fn stats(&self) -> WorkerStats {
        self.reporter.stats()
    }

    async fn claim(&self) -> Result<Option<Execution>> {
        self.store.reclaim(BatchSize::new(leasehold_core::limits::BATCH)?).await?;
        for (source, request) in self.requests.iter().enumerate() {
            let sent = Instant::now();
            let jobs: Vec<Arc<Job>> = self.store.dequeue(request).await?.into_iter().map(Arc::new).collect();
            let router = &self.executor.router;
            let tokens = self.leases.hold(&jobs, sent, |job| router.is_transactional(&job.kind));
            if let Some((job, cancelled)) = jobs.into_iter().zip(tokens).next() {
                let (leases, store) = (Arc::clone(&self.leases), Arc::clone(&self.store));
                return Ok(Some(Execution {
                    job,
                    source,
                    cancelled,
                    stopping: CancellationToken::new(),
                    leases,
                    store,
                }));
            }
        }
        Ok(None)
    }
}

impl std::fmt::Debug for TestWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestWorker").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
