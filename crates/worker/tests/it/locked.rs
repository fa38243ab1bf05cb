//! Jobs whose verdicts cannot be applied: their rows are locked, or the store hangs or fails for them. They delay no others.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::wrapped::{Around, Op, Wrapped};
use crate::support::{Work, enqueue, event, finished, store};
use async_trait::async_trait;
use futures_util::FutureExt;
use leasehold_core::{FinalStatus, JobId, MockStore, Receipt, Record, Result, Store, StoreError};
use leasehold_memory::MemoryStore;
use leasehold_worker::{Context, HeartbeatOn, Worker, WorkerBuilder, WorkerEvent};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

/// A store that does not settle some jobs, and counts the calls.
struct Stuck {
    jobs: Mutex<BTreeSet<JobId>>,
    how: How,
    calls: AtomicUsize,
    /// Calls of these with receipts that no call had before.
    first_sent: AtomicUsize,
    seen: Mutex<BTreeSet<Receipt>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum How {
    /// As a stranger's store that waits for a row lock without end.
    Hangs,
    Unknown,
    Unavailable,
    Backend,
    /// As our own stores: the row is skipped.
    Pending,
}

impl Stuck {
    fn new(jobs: impl IntoIterator<Item = i64>, how: How) -> Arc<Self> {
        let jobs = jobs.into_iter().map(JobId::new).collect();
        let (calls, first_sent) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { jobs: Mutex::new(jobs), how, calls, first_sent, seen: Mutex::default() })
    }

    fn free(&self) {
        self.jobs.lock().unwrap().clear();
    }

    fn has(&self, receipt: &Receipt) -> bool {
        self.jobs.lock().unwrap().contains(&receipt.job)
    }
}

#[async_trait]
impl Around for Stuck {
    async fn before_receipts(&self, op: Op, receipts: &[Receipt]) -> Result<()> {
        if op != Op::Settle {
            return Ok(());
        }
        self.calls.fetch_add(1, Ordering::SeqCst);
        let new = receipts.iter().filter(|receipt| self.seen.lock().unwrap().insert(**receipt)).count();
        self.first_sent.fetch_add(usize::from(new > 0), Ordering::SeqCst);
        if !receipts.iter().any(|receipt| self.has(receipt)) {
            return Ok(());
        }
        match self.how {
            How::Hangs => std::future::pending().await,
            How::Unknown => Err(StoreError::unknown("settle", "the answer was lost")),
            How::Unavailable => Err(StoreError::unavailable("settle", "not this one")),
            How::Backend => Err(StoreError::backend("settle", "a broken row")),
            How::Pending => Ok(()),
        }
    }

    fn skips(&self, receipt: &Receipt) -> bool {
        self.how == How::Pending && self.has(receipt)
    }
}

fn worker(store: &MemoryStore, stuck: &Arc<Stuck>) -> WorkerBuilder {
    Worker::builder(Wrapped::new(store, stuck)).queue("q").heartbeat_on(HeartbeatOn::Task)
}

async fn idle(_: Work, _: Context<()>) {}

const ALL: [How; 5] = [How::Hangs, How::Unknown, How::Unavailable, How::Backend, How::Pending];

/// One bad job among a hundred that end together.
#[tokio::test(start_paused = true)]
async fn one_job_that_cannot_be_settled_does_not_hold_its_batch_hostage() {
    for how in ALL {
        let store = store();
        let stuck = Stuck::new([50], how);
        let worker = worker(&store, &stuck).concurrency(100).handle::<Work>(idle).start().unwrap();
        enqueue(&store, 100).await;
        let start = Instant::now();
        finished(&store, 99).await;
        assert!(start.elapsed() < 15 * SECOND, "{how:?}: {:?}", start.elapsed());
        worker.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// An idle worker has one verdict that fails alone, for long. The verdicts of other jobs do not wait for it.
#[tokio::test(start_paused = true)]
async fn a_verdict_that_fails_alone_delays_no_new_verdict() {
    for how in ALL {
        let store = store();
        let stuck = Stuck::new([1], how);
        let worker = worker(&store, &stuck).lease(3600 * SECOND).handle::<Work>(idle).start().unwrap();
        enqueue(&store, 1).await;
        // At once after the first failure, and then at any time of the longest pause.
        for (settled, wait) in [0, 100, 100, 103, 107, 109].into_iter().enumerate() {
            sleep(wait * SECOND + SECOND / 100).await;
            enqueue(&store, 1).await;
            let start = Instant::now();
            finished(&store, settled + 1).await;
            assert!(start.elapsed() < SECOND / 20, "{how:?}: {:?}", start.elapsed());
        }
        worker.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// The store is unavailable for everything: jobs that end meanwhile are sent together, in ever longer pauses.
#[tokio::test(start_paused = true)]
async fn while_the_store_is_unavailable_new_verdicts_wait_for_each_other() {
    let store = store();
    enqueue(&store, 600).await;
    let stuck = Stuck::new(1..=600, How::Unavailable);
    let handler = async |work: Work, _: Context<()>| sleep(SECOND * work.n as u32 / 10).await;
    let worker = worker(&store, &stuck).concurrency(600).lease(3600 * SECOND).handle::<Work>(handler);
    let worker = worker.start().unwrap();
    sleep(61 * SECOND).await;
    let first_sent = stuck.first_sent.load(Ordering::SeqCst);
    assert!((5..25).contains(&first_sent), "{first_sent} batches of 600 verdicts");
    stuck.free();
    finished(&store, 600).await;
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// More bad jobs than there are places for settlements: the worker works on as if they were not there.
#[tokio::test(start_paused = true)]
async fn jobs_that_cannot_be_settled_do_not_stop_the_worker() {
    for how in ALL {
        let store = store();
        let stuck = Stuck::new((1..=20).map(|n| n * 37), how);
        enqueue(&store, 5000).await;
        let worker =
            worker(&store, &stuck).handle::<Work>(idle).settle_batch(10, SECOND / 100).start().unwrap();
        let start = Instant::now();
        finished(&store, 4980).await;
        assert!(start.elapsed() < 120 * SECOND, "{how:?}: {:?}", start.elapsed());
        // Once the worker knows them, they delay nothing.
        enqueue(&store, 100).await;
        let start = Instant::now();
        finished(&store, 5080).await;
        assert!(start.elapsed() < SECOND, "{how:?}: {:?}", start.elapsed());
        worker.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// What is locked is settled soon after it is free, once, with the verdict that the handler gave, and by its own lease.
#[tokio::test(start_paused = true)]
async fn a_job_that_was_locked_for_long_is_settled_when_it_is_free() {
    for how in [How::Hangs, How::Unknown, How::Unavailable, How::Pending] {
        let store = store();
        let stuck = Stuck::new([3], how);
        enqueue(&store, 10).await;
        let worker = worker(&store, &stuck).lease(10 * SECOND).handle::<Work>(idle).start().unwrap();
        finished(&store, 9).await;
        let calls = stuck.calls.load(Ordering::SeqCst);
        sleep(600 * SECOND).await;
        let calls = stuck.calls.load(Ordering::SeqCst) - calls;
        assert!((20..150).contains(&calls), "{how:?}: {calls} tries in ten minutes");
        assert_eq!(worker.stats().unsettled, 1, "{how:?}");
        let Some(Record::Live(job)) = store.get(3.into()).await.unwrap() else { panic!("it is settled") };
        assert!(job.lease.unwrap().until > store.now().await.unwrap(), "its lease is kept");
        stuck.free();
        let start = Instant::now();
        let jobs = finished(&store, 10).await;
        assert!(start.elapsed() < 35 * SECOND, "{how:?}: {:?}", start.elapsed());
        let all = jobs.iter().all(|job| job.attempts == 1 && job.outcome.status() == FinalStatus::Completed);
        assert!(all, "{how:?}: {jobs:?}");
        sleep(SECOND).await;
        let stats = worker.stats();
        assert_eq!((stats.completed, stats.lease_lost, stats.unsettled), (10, 0, 0), "{how:?}");
        assert!(stats.settle_retries >= 20, "{how:?}: they are counted: {stats:?}");
        worker.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// The worker ends, and says which jobs it could not settle. The others of their batch are settled or given back.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_settled_is_told_at_the_end_and_keeps_nothing_from_being_given_back() {
    for how in ALL {
        for grace in [0, 20] {
            let store = store();
            enqueue(&store, 10).await;
            let stuck = Stuck::new([1, 2], how);
            let handler = async |work: Work, _: Context<()>| match work.n {
                0 => {}
                _ => std::future::pending().await,
            };
            let worker = worker(&store, &stuck).handle::<Work>(handler).start().unwrap();
            sleep(SECOND).await;
            let start = Instant::now();
            let stopped = worker.shutdown(grace * SECOND).await.unwrap();
            let told = (stopped.released, stopped.abandoned);
            assert!(start.elapsed() <= (grace + 12) * SECOND, "{how:?}: {:?}", start.elapsed());
            // A broken row may be given up before.
            let abandoned = if how == How::Backend { 1..=2 } else { 2..=2 };
            assert!(told.0 == 8 && abandoned.contains(&told.1), "{how:?}, grace {grace}: {stopped:?}");
            for id in 3..=10 {
                let Some(Record::Live(job)) = store.get(id.into()).await.unwrap() else {
                    panic!("{id} is gone")
                };
                assert_eq!((job.attempts, job.lease), (0, None), "{how:?}: job {id}");
            }
        }
    }
}

/// A thousand jobs that cannot be settled are enough: no more are claimed until some are.
#[tokio::test(start_paused = true)]
async fn no_more_is_claimed_when_hardly_anything_can_be_settled() {
    let store = store();
    let stuck = Stuck::new(1..=5000, How::Pending);
    enqueue(&store, 5000).await;
    let worker =
        worker(&store, &stuck).concurrency(50).lease(3600 * SECOND).handle::<Work>(idle).start().unwrap();
    sleep(600 * SECOND).await;
    let leased = worker.stats().leased;
    assert!((1000..2000).contains(&leased), "{leased} jobs are leased");
    let calls = stuck.calls.swap(0, Ordering::SeqCst);
    assert!(calls < 2000, "{calls} calls in ten minutes");
    stuck.free();
    finished(&store, 5000).await;
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// The store is gone for everything: it is asked in ever longer pauses, however many verdicts wait.
#[tokio::test(start_paused = true)]
async fn an_outage_with_many_verdicts_costs_few_calls() {
    for how in [How::Hangs, How::Unknown, How::Unavailable] {
        let store = store();
        enqueue(&store, 300).await;
        let stuck = Stuck::new(1..=300, how);
        let handler = async |work: Work, _: Context<()>| sleep(SECOND * work.n as u32 / 10).await;
        let worker = worker(&store, &stuck).concurrency(300).lease(3600 * SECOND).handle::<Work>(handler);
        let worker = worker.start().unwrap();
        // Each verdict is tried in three batches at most before it is known that the others fail, too.
        sleep(400 * SECOND).await;
        stuck.calls.store(0, Ordering::SeqCst);
        sleep(600 * SECOND).await;
        let calls = stuck.calls.load(Ordering::SeqCst);
        assert!((10..200).contains(&calls), "{how:?}: {calls} calls in ten minutes");
        stuck.free();
        let start = Instant::now();
        let jobs = finished(&store, 300).await;
        assert!(start.elapsed() < 35 * SECOND, "{how:?}: {:?}", start.elapsed());
        assert!(jobs.iter().all(|job| job.attempts == 1), "{how:?}");
        worker.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// Errors that do not pass: the batch is tried as a whole some times, then each job alone, once.
#[tokio::test(start_paused = true)]
async fn a_batch_is_split_after_five_errors_that_do_not_pass() {
    let (store, mut mock) = (store(), MockStore::new());
    let inner = store.clone();
    mock.expect_dequeue().returning(move |request| inner.dequeue(request).now_or_never().unwrap());
    let sizes: Arc<Mutex<Vec<usize>>> = Arc::default();
    let seen = Arc::clone(&sizes);
    mock.expect_settle().returning(move |items| {
        seen.lock().unwrap().push(items.len());
        Err(StoreError::corrupt("every row"))
    });
    mock.expect_next_available_at().returning(|_| Ok(None));
    mock.expect_wakeups().returning(|_| Ok(Box::pin(futures_util::stream::pending())));
    mock.expect_reclaim().returning(|_| Ok(Vec::new()));
    enqueue(&store, 5).await;
    let worker = Worker::builder(Arc::new(mock)).queue("q").heartbeat_on(HeartbeatOn::Task);
    let worker = worker.handle::<Work>(idle).start().unwrap();
    sleep(60 * SECOND).await;
    assert_eq!(*sizes.lock().unwrap(), [5, 5, 5, 5, 5, 1, 1, 1, 1, 1]);
    assert_eq!(worker.stats().unsettled, 0, "they are left to their leases");
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// The verdict was applied and the answer lost, in a store that hangs: it is concluded, not sent again.
#[tokio::test(start_paused = true)]
async fn verdicts_that_were_applied_before_the_store_hung_are_told_once() {
    struct HangsAfter(AtomicBool);
    #[async_trait]
    impl Around for HangsAfter {
        async fn after(&self, op: Op, _: usize) -> Result<()> {
            if op == Op::Settle && !self.0.swap(true, Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    }
    let store = store();
    enqueue(&store, 10).await;
    let wrapped = Wrapped::new(&store, &Arc::new(HangsAfter(false.into())));
    let worker = Worker::builder(wrapped).queue("q").heartbeat_on(HeartbeatOn::Task).handle::<Work>(idle);
    let worker = worker.start().unwrap();
    let settled = event(&worker, |event| matches!(event, WorkerEvent::Settled { .. }).then_some(()));
    tokio::time::timeout(10 * SECOND, settled).await.unwrap();
    sleep(60 * SECOND).await;
    let stats = worker.stats();
    assert_eq!((stats.completed, stats.lease_lost, stats.unsettled), (10, 0, 0));
    worker.shutdown(Duration::ZERO).await.unwrap();
}
