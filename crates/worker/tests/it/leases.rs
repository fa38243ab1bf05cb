//! How leases are kept, and how their loss is seen.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::wrapped::{Around, Op, Wrapped};
use crate::support::{Pay, Work, enqueue, event, finished, store, worker};
use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_core::{
    BatchSize, FinalStatus, Json, LeaseFor, NewJob, QueuePolicy, Receipt, ReceiptStatus, Record, Result,
    Schedule, Settled, Store, StoreError, TxStore,
};
use leasehold_memory::MemoryStore;
use leasehold_worker::{Context, HeartbeatOn, Worker, WorkerBuilder, WorkerEvent};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn when_the_store_says_lost_the_token_fires_and_the_late_verdict_is_refused() {
    let store = store();
    enqueue(&store, 1).await;
    let handler = async |_: Work, context: Context<()>| {
        if context.attempt() == 1 {
            context.cancelled().await;
            assert!(context.is_cancelled());
            assert_eq!(context.lease_left(), Duration::ZERO);
        }
    };
    let worker = worker(&store).lease(9 * SECOND).handle::<Work>(handler).start().unwrap();
    let mut events = worker.events();
    sleep(SECOND).await;
    // An administrator takes the job away.
    store.retry_later(1.into(), Schedule::after(60 * SECOND).unwrap()).await.unwrap();
    let lost = event(&worker, |event| match event {
        WorkerEvent::LeaseLost { receipt, .. } => Some(receipt),
        _ => None,
    });
    assert_eq!(lost.await.job, 1.into());
    sleep(10 * SECOND).await;
    let Some(Record::Live(job)) = store.get(1.into()).await.unwrap() else { panic!("the job is gone") };
    assert_eq!((job.attempts, &job.lease), (1, &None), "the late verdict has changed nothing");
    assert_eq!((worker.stats().lease_lost, worker.stats().completed), (1, 0));
    assert_eq!(finished(&store, 1).await[0].attempts, 2);
    worker.shutdown(Duration::ZERO).await.unwrap();
    let mut losses = 0;
    while let Ok(event) = events.try_recv() {
        losses += usize::from(matches!(event, WorkerEvent::LeaseLost { .. }));
    }
    assert_eq!(losses, 1, "told once");
}

/// A transactional handler that has committed and is not back yet: its job is settled, and its lease was not lost.
#[tokio::test(start_paused = true)]
async fn a_lease_that_the_handler_itself_has_ended_is_not_lost() {
    let store = store();
    store.enqueue(&[NewJob::of("q", &Pay {}).build().unwrap()]).await.unwrap();
    let handler = async |_: Pay, context: Context<MemoryStore>| {
        let store = context.state();
        let mut tx = store.begin();
        let settled = store.ack_in(&mut tx, &context.receipt(), Json::null()).await?;
        tx.commit()?;
        sleep(30 * SECOND).await;
        assert!(!context.is_cancelled(), "the token has fired");
        Ok::<Settled, StoreError>(settled)
    };
    let worker = Worker::builder(Arc::new(store.clone())).queue("q").heartbeat_on(HeartbeatOn::Task);
    let worker = worker.state(store.clone()).lease(9 * SECOND).handle_tx::<Pay>(handler).start().unwrap();
    event(&worker, |event| matches!(event, WorkerEvent::Settled { .. }).then_some(())).await;
    assert_eq!((worker.stats().lease_lost, worker.stats().completed, worker.stats().panicked), (0, 1, 0));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// Takes its time for claims, and has trouble with heartbeats.
#[derive(Default)]
struct Trouble {
    before_claim: Duration,
    after_claim: Duration,
    heartbeats: Beats,
    after_settle: Duration,
    sent: AtomicUsize,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum Beats {
    #[default]
    Answered,
    Unavailable,
    Hanging,
    Panicking,
    Late(Duration),
}

#[async_trait]
impl Around for Trouble {
    async fn before(&self, op: Op, _: usize) -> Result<()> {
        match op {
            Op::Dequeue => sleep(self.before_claim).await,
            Op::Heartbeat => {
                self.sent.fetch_add(1, Ordering::SeqCst);
                match self.heartbeats {
                    Beats::Answered => {}
                    Beats::Unavailable => return Err(StoreError::unavailable("heartbeat", "no")),
                    Beats::Hanging => std::future::pending().await,
                    Beats::Panicking => panic!("as the test wants"),
                    Beats::Late(by) => sleep(by).await,
                }
            }
            _ => {}
        }
        Ok(())
    }

    async fn after(&self, op: Op, _: usize) -> Result<()> {
        match op {
            Op::Dequeue => sleep(self.after_claim).await,
            Op::Settle => sleep(self.after_settle).await,
            _ => {}
        }
        Ok(())
    }
}

fn troubled(store: &MemoryStore, trouble: &Arc<Trouble>) -> WorkerBuilder {
    Worker::builder(Wrapped::new(store, trouble)).queue("q").heartbeat_on(HeartbeatOn::Task)
}

/// Without heartbeats the token fires before the lease ends in the store, however long the claim took on its way there or
/// back: the time is counted from when it was sent.
#[tokio::test(start_paused = true)]
async fn the_token_fires_in_time_when_heartbeats_fail() {
    for heartbeats in [Beats::Unavailable, Beats::Hanging, Beats::Panicking] {
        for (there, back) in [(0, 0), (4, 0), (0, 4), (3, 3)] {
            let store = store();
            enqueue(&store, 1).await;
            let (before_claim, after_claim) = (there * SECOND, back * SECOND);
            let trouble = Arc::new(Trouble { before_claim, after_claim, heartbeats, ..Trouble::default() });
            let seen: Arc<Mutex<Option<(Instant, Duration)>>> = Arc::default();
            let told = Arc::clone(&seen);
            let handler = move |_: Work, context: Context<()>| {
                let told = Arc::clone(&told);
                async move {
                    let left = context.lease_left();
                    context.cancelled().await;
                    told.lock().unwrap().get_or_insert((Instant::now(), left));
                }
            };
            let start = Instant::now();
            let worker =
                troubled(&store, &trouble).lease(10 * SECOND).handle::<Work>(handler).start().unwrap();
            sleep((there + back) * SECOND + SECOND / 2).await;
            let status = store.receipts(&["1@1".parse().unwrap()]).await.unwrap()[0];
            let ReceiptStatus::Held { until } = status else { panic!("{status:?}") };
            let ends: Duration = (until - store.now().await.unwrap()).to_std().unwrap();
            let ends = Instant::now() + ends;
            sleep(10 * SECOND).await;
            let (fired, left) = seen.lock().unwrap().expect("the token fires");
            assert_eq!(left, (10 - there - back) * SECOND, "there {there} s, back {back} s");
            assert_eq!(fired - start, 10 * SECOND, "there {there} s, back {back} s");
            assert!(fired <= ends, "the store's lease ended before");
            assert!(trouble.sent.load(Ordering::SeqCst) < 60, "heartbeats, again and again");
            assert_eq!(worker.stats().lease_lost, 1);
            worker.shutdown(Duration::ZERO).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lease_left_is_counted_from_the_last_heartbeat() {
    let store = store();
    enqueue(&store, 1).await;
    let trouble = Arc::new(Trouble { heartbeats: Beats::Late(SECOND), ..Trouble::default() });
    let handler = async |_: Work, context: Context<()>| {
        assert_eq!(context.lease_left(), 9 * SECOND);
        sleep(3 * SECOND + SECOND / 2).await; // One was sent after three seconds, and is under way.
        assert_eq!(context.lease_left(), 5 * SECOND + SECOND / 2);
        sleep(SECOND).await; // It was answered, a second after it was sent.
        assert_eq!(context.lease_left(), 7 * SECOND + SECOND / 2);
    };
    let worker = troubled(&store, &trouble).lease(9 * SECOND).handle::<Work>(handler).start().unwrap();
    let jobs = finished(&store, 1).await;
    assert_eq!((jobs[0].attempts, &jobs[0].last_error), (1, &None));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_lease_passed_on_its_way_is_given_back_and_not_started() {
    let store = store();
    enqueue(&store, 1).await;
    let trouble = Arc::new(Trouble { after_claim: 3 * SECOND, ..Trouble::default() });
    let started = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&started);
    let handler = move |_: Work, _: Context<()>| {
        seen.store(true, Ordering::SeqCst);
        async {}
    };
    let worker = troubled(&store, &trouble).lease(2 * SECOND).handle::<Work>(handler).start().unwrap();
    sleep(10 * SECOND).await;
    assert!(!started.load(Ordering::SeqCst));
    worker.shutdown(10 * SECOND).await.unwrap();
    let Some(Record::Live(job)) = store.get(1.into()).await.unwrap() else { panic!("the job is gone") };
    assert_eq!((job.attempts, job.lease), (0, None));
}

/// A heartbeat that reaches the store just after the verdict finds no lease. That is not a loss.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_comes_after_the_verdict_is_no_lost_lease() {
    let store = store();
    enqueue(&store, 1).await;
    let (heartbeats, after_settle) = (Beats::Late(SECOND), 3 * SECOND);
    let trouble = Arc::new(Trouble { heartbeats, after_settle, ..Trouble::default() });
    let handler = async |_: Work, _: Context<()>| sleep(3 * SECOND + SECOND / 2).await;
    let worker = troubled(&store, &trouble).lease(9 * SECOND).handle::<Work>(handler).start().unwrap();
    finished(&store, 1).await;
    sleep(20 * SECOND).await;
    assert_eq!(trouble.sent.load(Ordering::SeqCst), 1, "the test is about one heartbeat");
    assert_eq!((worker.stats().completed, worker.stats().lease_lost), (1, 0));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// A verdict that waits for the store longer than the lease is late, and counts if nobody has taken the job meanwhile.
#[tokio::test(start_paused = true)]
async fn a_late_verdict_that_is_accepted_is_no_lost_lease() {
    struct Down(AtomicBool);
    #[async_trait]
    impl Around for Down {
        async fn before(&self, op: Op, _: usize) -> Result<()> {
            // Nobody reclaims.
            match op == Op::Reclaim || self.0.load(Ordering::SeqCst) && op != Op::Dequeue {
                true => Err(StoreError::unavailable("test", "down")),
                false => Ok(()),
            }
        }
    }
    let store = store();
    enqueue(&store, 1).await;
    let down = Arc::new(Down(true.into()));
    let worker = Worker::builder(Wrapped::new(&store, &down))
        .queue("q")
        .heartbeat_on(HeartbeatOn::Task)
        .lease(5 * SECOND)
        .handle::<Work>(async |_: Work, _: Context<()>| {})
        .start()
        .unwrap();
    sleep(60 * SECOND).await;
    down.0.store(false, Ordering::SeqCst);
    let jobs = finished(&store, 1).await;
    assert_eq!((jobs[0].attempts, jobs[0].outcome.status()), (1, FinalStatus::Completed));
    sleep(SECOND).await;
    assert_eq!((worker.stats().completed, worker.stats().lease_lost), (1, 0));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

// From here on time is real, and so are threads: handlers block, and heartbeats must go on.

const LEASE: Duration = Duration::from_millis(300);

/// Blocks this thread for ten lengths of a lease, and looks whether the lease was kept all the while.
fn block(store: &MemoryStore, context: &Context<()>, busy: bool) -> Result<(), String> {
    let ends = std::time::Instant::now() + 10 * LEASE;
    while std::time::Instant::now() < ends {
        if busy {
            std::hint::black_box((0..1000_u64).sum::<u64>());
        } else {
            std::thread::sleep(LEASE / 10);
        }
        kept(store, context.receipt())?;
    }
    match context.is_cancelled() || context.lease_left().is_zero() {
        true => Err("the token has fired".to_owned()),
        false => Ok(()),
    }
}

/// Whether the lease is live by the store's clock.
fn kept(store: &MemoryStore, receipt: Receipt) -> Result<(), String> {
    let now: DateTime<Utc> = ready(store.now());
    match ready(store.receipts(&[receipt]))[0] {
        ReceiptStatus::Held { until } if until > now => Ok(()),
        status => Err(format!("at {now} the receipt is {status:?}")),
    }
}

/// The memory store never waits.
fn ready<T>(answer: impl Future<Output = Result<T>>) -> T {
    futures_util::FutureExt::now_or_never(answer).unwrap().unwrap()
}

/// The first attempt of each job must be its last.
async fn all_kept(store: &MemoryStore, worker: WorkerBuilder, jobs: u64, busy: bool) {
    enqueue(store, jobs).await;
    let shared = store.clone();
    let handler = move |_: Work, context: Context<()>| {
        let store = shared.clone();
        async move { block(&store, &context, busy) }
    };
    let worker = worker.concurrency(jobs as usize).handle::<Work>(handler).start().unwrap();
    let mut events = worker.events();
    let mut settled = 0;
    while settled < jobs {
        let next = tokio::time::timeout(60 * SECOND, events.recv()).await.unwrap().unwrap();
        settled += u64::from(matches!(next, WorkerEvent::Settled { .. }));
    }
    for job in store.history(&leasehold_core::HistoryFilter::default()).await.unwrap().items {
        assert_eq!((job.attempts, job.last_error), (1, None));
    }
    assert_eq!((worker.stats().completed, worker.stats().lease_lost), (jobs, 0));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

fn real(store: impl Store) -> WorkerBuilder {
    Worker::builder(Arc::new(store)).queue("q").lease(LEASE)
}

#[tokio::test]
async fn a_handler_that_blocks_the_only_thread_keeps_its_lease() {
    let store = MemoryStore::new();
    all_kept(&store, real(store.clone()), 1, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_use_up_all_processors_keep_their_leases() {
    let store = MemoryStore::new();
    all_kept(&store, real(store.clone()), 2, true).await;
}

#[tokio::test]
async fn a_lease_that_the_policy_makes_shorter_is_kept_too() {
    let store = MemoryStore::new();
    let max_lease = Some(LeaseFor::new(LEASE).unwrap());
    let policy = QueuePolicy { max_lease, ..QueuePolicy::default() };
    store.set_policy(&"q".parse().unwrap(), &policy).await.unwrap();
    all_kept(&store, real(store.clone()).lease(60 * SECOND), 1, false).await;
}

/// A connection of its own is a luxury: while it is refused or does not come, heartbeats use the others.
#[tokio::test]
async fn without_a_connection_of_their_own_heartbeats_are_sent_all_the_same() {
    struct Refused(bool);
    #[async_trait]
    impl Around for Refused {
        async fn before(&self, op: Op, _: usize) -> Result<()> {
            match op {
                Op::Dedicated if self.0 => std::future::pending().await,
                Op::Dedicated => Err(StoreError::unavailable("dedicated", "too many connections")),
                _ => Ok(()),
            }
        }
    }
    for hanging in [false, true] {
        let store = MemoryStore::new();
        let wrapped = Wrapped { store: store.clone(), around: Arc::new(Refused(hanging)) };
        all_kept(&store, real(wrapped), 1, false).await;
    }
}

/// Whoever drops the runtime has killed the worker: nobody else may keep its leases alive.
#[test]
fn the_heart_of_a_worker_whose_runtime_is_gone_stops() {
    let store = MemoryStore::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        store.enqueue(&[NewJob::of("q", &Work { n: 0 }).build().unwrap()]).await.unwrap();
        let handler = async |_: Work, context: Context<()>| context.cancelled().await;
        let worker = real(store.clone()).handle::<Work>(handler).start().unwrap();
        event(&worker, |event| matches!(event, WorkerEvent::Leased { .. }).then_some(())).await;
    });
    drop(runtime);
    let ends = std::time::Instant::now() + 100 * LEASE;
    while ready(store.reclaim(BatchSize::ONE)).is_empty() {
        assert!(std::time::Instant::now() < ends, "the lease is still extended");
        std::thread::park_timeout(LEASE / 10);
    }
}
