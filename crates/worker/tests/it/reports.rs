//! What is told is so: numbers, events, metrics, and what a stopped worker says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::wrapped::{Around, Op, Wrapped};
use crate::support::{Pay, Work, enqueue, event, finished, store, worker};
use async_trait::async_trait;
use leasehold_core::{
    Archive, Fate, Json, NewJob, QueuePolicy, Record, Result, RetryAfter, Schedule, Settled, Store,
    StoreError, TxStore, Verdict,
};
use leasehold_memory::MemoryStore;
use leasehold_worker::{Context, HeartbeatOn, Worker, WorkerEvent, WorkerHandle};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

/// Runs this with a recorder of its own, on paused time.
fn recorded(life: impl AsyncFnOnce(&Snapshotter)) {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || runtime.block_on(life(&snapshotter)));
}

/// All gauges, by name and by the values of their labels. Reading them takes them back to zero.
fn gauges(snapshotter: &Snapshotter) -> BTreeMap<String, BTreeMap<String, f64>> {
    let mut gauges: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        if let DebugValue::Gauge(value) = value {
            let labels: Vec<&str> = key.key().labels().map(metrics::Label::value).collect();
            let named = gauges.entry(key.key().name().to_owned()).or_default();
            named.insert(labels.join(","), value.into_inner());
        }
    }
    gauges
}

/// Rooms and kinds that come and go, and a queue that was named: the numbers go back to zero, and there are few series.
#[test]
fn what_is_gone_counts_as_nothing_and_labels_are_as_many_as_the_builder_was_told() {
    recorded(async |snapshotter| {
        let store = store();
        let mut jobs: Vec<NewJob> = (0..300)
            .map(|n| NewJob::of(format!("room:{n}").as_str(), &Work { n }).build().unwrap())
            .collect();
        let kind =
            |n: u64| NewJob::builder("q", format!("kind-{n}").as_str()).max_attempts(1).build().unwrap();
        jobs.extend((0..50).map(kind));
        store.enqueue(&jobs).await.unwrap();
        let worker = Worker::builder(Arc::new(store.clone()))
            .queue("q")
            .queue("room:*")
            .heartbeat_on(HeartbeatOn::Task)
            .concurrency(2)
            .sample_queues(SECOND)
            .handle::<Work>(async |_: Work, _: Context<()>| sleep(SECOND).await)
            .start()
            .unwrap();
        sleep(5 * SECOND).await;
        let ready = &gauges(snapshotter)["leasehold_ready"];
        assert!(ready["room:*"] > 100.0, "{ready:?}");
        finished(&store, 350).await;
        sleep(10 * SECOND).await;
        let gauges = gauges(snapshotter);
        for name in ["leasehold_ready", "leasehold_running", "leasehold_waiting"] {
            let zero = BTreeMap::from([("q".to_owned(), 0.0), ("room:*".to_owned(), 0.0)]);
            assert_eq!(gauges[name], zero, "{name}");
        }
        assert_eq!(gauges["leasehold_dead_letters"]["q"], 50.0);
        worker.shutdown(Duration::ZERO).await.unwrap();
    });
}

#[test]
fn the_number_of_series_does_not_grow_with_what_is_enqueued() {
    let mut series = BTreeSet::new();
    for rooms in [10, 500] {
        let mut count = 0;
        recorded(async |snapshotter| {
            let store = store();
            let job = |n: u64| NewJob::builder(format!("room:{n}").as_str(), format!("kind-{n}").as_str());
            let jobs: Vec<NewJob> = (0..rooms).map(|n| job(n).max_attempts(1).build().unwrap()).collect();
            store.enqueue(&jobs).await.unwrap();
            let worker = Worker::builder(Arc::new(store.clone())).queue("room:*").worker_id("one");
            let worker = worker.heartbeat_on(HeartbeatOn::Task).sample_queues(SECOND).concurrency(100);
            let worker = worker.handle::<Work>(async |_: Work, _: Context<()>| {}).start().unwrap();
            finished(&store, rooms as usize).await;
            sleep(10 * SECOND).await;
            worker.shutdown(Duration::ZERO).await.unwrap();
            count = snapshotter.snapshot().into_vec().len();
        });
        series.insert(count);
    }
    assert_eq!(series.len(), 1, "series with few and with many: {series:?}");
}

#[test]
fn two_workers_of_one_process_have_gauges_of_their_own() {
    recorded(async |snapshotter| {
        let (one, two) = (store(), store());
        enqueue(&one, 3).await;
        enqueue(&two, 1).await;
        let start = |store: &MemoryStore, name: &str| {
            let handler = async |_: Work, _: Context<()>| sleep(60 * SECOND).await;
            worker(store).worker_id(name).handle::<Work>(handler).start().unwrap()
        };
        let workers = [start(&one, "one"), start(&two, "two")];
        sleep(SECOND).await;
        let running = BTreeMap::from([("one".to_owned(), 3.0), ("two".to_owned(), 1.0)]);
        assert_eq!(gauges(snapshotter)["leasehold_in_flight"], running);
        for worker in workers {
            worker.shutdown(Duration::ZERO).await.unwrap();
        }
    });
}

fn settled_so_far(worker: &WorkerHandle) -> (u64, u64) {
    (worker.stats().completed, worker.stats().lease_lost)
}

/// The handler's transaction is rolled back, and somebody takes the job away: the proof proves nothing.
#[tokio::test(start_paused = true)]
async fn the_proof_of_a_transaction_that_was_rolled_back_completes_nothing() {
    let store = store();
    store.enqueue(&[NewJob::of("q", &Pay {}).build().unwrap()]).await.unwrap();
    let handler = async |_: Pay, context: Context<MemoryStore>| {
        let store = context.state();
        if context.attempt() > 1 {
            std::future::pending::<()>().await;
        }
        let mut tx = store.begin();
        let settled = store.ack_in(&mut tx, &context.receipt(), Json::null()).await?;
        drop(tx);
        store.retry_later(context.id(), Schedule::after(3600 * SECOND)?).await?;
        Ok::<Settled, StoreError>(settled)
    };
    let worker = worker(&store).state(store.clone()).handle_tx::<Pay>(handler).start().unwrap();
    sleep(60 * SECOND).await;
    assert_eq!(settled_so_far(&worker), (0, 1));
    assert!(matches!(store.get(1.into()).await.unwrap(), Some(Record::Live(_))));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// What the proof says is told, and not what can be guessed from the job.
#[tokio::test(start_paused = true)]
async fn the_proof_of_a_handler_tells_what_became_of_its_job() {
    let store = store();
    store.enqueue(&[NewJob::of("q", &Pay {}).build().unwrap()]).await.unwrap();
    let handler = async |_: Pay, context: Context<MemoryStore>| {
        let (store, mut tx) = (context.state(), context.state().begin());
        let after = RetryAfter::Delay(leasehold_core::Delay::new(600 * SECOND)?);
        let verdict = Verdict::Retry { error: Json::error("later"), after };
        let settled = store.settle_in(&mut tx, &context.receipt(), verdict).await?;
        tx.commit()?;
        Ok::<Settled, StoreError>(settled)
    };
    let worker = worker(&store).state(store.clone()).handle_tx::<Pay>(handler).start().unwrap();
    let told = event(&worker, |event| match event {
        WorkerEvent::Settled { fate, .. } => Some(fate),
        _ => None,
    });
    let Fate::Retrying { available_at } = told.await else { panic!("it is retried") };
    let Some(Record::Live(job)) = store.get(1.into()).await.unwrap() else { panic!("the job is gone") };
    assert_eq!(job.available_at, available_at);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_plain_handler_that_settles_its_job_itself_has_not_lost_its_lease() {
    let store = store();
    enqueue(&store, 1).await;
    let handler = async |_: Work, context: Context<()>| {
        context.store().ack(&context.receipt(), Json::null()).await.map(drop)
    };
    let worker = worker(&store).handle::<Work>(handler).start().unwrap();
    finished(&store, 1).await;
    sleep(SECOND).await;
    assert_eq!(settled_so_far(&worker), (1, 0));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// Loses the answers to verdicts, after they were applied.
struct Forgetful(AtomicBool);

#[async_trait]
impl Around for Forgetful {
    async fn after(&self, op: Op, _: usize) -> Result<()> {
        match op == Op::Settle && self.0.swap(false, Ordering::SeqCst) {
            true => Err(StoreError::unknown("settle", "the answer was lost")),
            false => Ok(()),
        }
    }
}

/// In a queue that keeps no history the store cannot say what became of the job. The worker knows what it asked for.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_no_lost_lease_where_no_history_is_kept() {
    let store = store();
    let policy = QueuePolicy { archive: Some(Archive::DeadOnly), ..QueuePolicy::default() };
    store.set_policy(&"q".parse().unwrap(), &policy).await.unwrap();
    enqueue(&store, 2).await;
    let handler = async |work: Work, _: Context<()>| match work.n {
        0 => Verdict::done(),
        _ => Verdict::discard("not wanted"),
    };
    let forgetful = Arc::new(Forgetful(true.into()));
    let worker = Worker::builder(Wrapped::new(&store, &forgetful)).queue("q").heartbeat_on(HeartbeatOn::Task);
    let worker = worker.handle::<Work>(handler).start().unwrap();
    sleep(60 * SECOND).await;
    let stats = worker.stats();
    assert_eq!((stats.completed, stats.discarded, stats.lease_lost), (1, 1, 0));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// The same queue, but no answer was lost: the job was taken away before the verdict was sent. That is a lost lease.
#[tokio::test(start_paused = true)]
async fn a_job_that_was_taken_away_is_a_lost_lease_where_no_history_is_kept() {
    for verdict in [Verdict::done(), Verdict::discard("not wanted")] {
        let store = store();
        let policy = QueuePolicy { archive: Some(Archive::DeadOnly), ..QueuePolicy::default() };
        store.set_policy(&"q".parse().unwrap(), &policy).await.unwrap();
        enqueue(&store, 1).await;
        let handler = async |_: Work, context: Context<Verdict>| {
            sleep(2 * SECOND).await;
            context.state().clone()
        };
        let worker = worker(&store).state(verdict.clone()).handle::<Work>(handler).start().unwrap();
        sleep(SECOND).await;
        store.discard(1.into(), Json::null()).await.unwrap();
        sleep(2 * SECOND).await;
        let stats = worker.stats();
        let told = (stats.completed, stats.discarded, stats.lease_lost);
        assert_eq!(told, (0, 0, 1), "{verdict:?}");
        worker.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// Jobs that are given back before their handlers start were not leased as far as the user can see.
#[tokio::test(start_paused = true)]
async fn a_job_that_is_not_started_is_not_told_as_leased() {
    struct Slow;
    #[async_trait]
    impl Around for Slow {
        async fn after(&self, op: Op, _: usize) -> Result<()> {
            if op == Op::Dequeue {
                sleep(3 * SECOND).await;
            }
            Ok(())
        }
    }
    let store = store();
    enqueue(&store, 1).await;
    let worker = Worker::builder(Wrapped::new(&store, &Arc::new(Slow))).queue("q").lease(2 * SECOND);
    let worker = worker.heartbeat_on(HeartbeatOn::Task).handle::<Work>(async |_: Work, _: Context<()>| {});
    let worker = worker.start().unwrap();
    let mut events = worker.events();
    sleep(SECOND).await;
    assert_eq!(worker.stats().claims, 1, "a claim counts when it is sent");
    sleep(60 * SECOND).await;
    assert_eq!(worker.stats().leased, 0);
    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        told.push(event);
    }
    assert!(!told.iter().any(|event| matches!(event, WorkerEvent::Leased { .. })), "{told:?}");
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// Verdicts that are under way when the worker ends and the store does not answer are told.
#[tokio::test(start_paused = true)]
async fn verdicts_that_are_lost_at_the_end_are_abandoned() {
    struct Hangs;
    #[async_trait]
    impl Around for Hangs {
        async fn before(&self, op: Op, _: usize) -> Result<()> {
            if op == Op::Settle {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    }
    for grace in [0, 10] {
        let store = store();
        enqueue(&store, 5).await;
        let handler = async |work: Work, _: Context<()>| match work.n {
            0..3 => {}
            _ => std::future::pending().await,
        };
        let worker = Worker::builder(Wrapped::new(&store, &Arc::new(Hangs))).queue("q");
        let worker = worker.heartbeat_on(HeartbeatOn::Task).handle::<Work>(handler).start().unwrap();
        sleep(SECOND).await;
        let stopped = worker.shutdown(grace * SECOND).await.unwrap();
        assert_eq!((stopped.released, stopped.abandoned), (0, 5), "with a grace of {grace} s");
    }
}

/// An error is told with its causes: in `last_error` of a job that a layer has refused, as in the log.
#[tokio::test(start_paused = true)]
async fn an_error_is_told_with_its_causes() {
    #[derive(Debug, thiserror::Error)]
    #[error("no entry")]
    struct Refused(#[source] std::num::ParseIntError);
    let store = store();
    store.enqueue(&[NewJob::of("q", &Work { n: 0 }).max_attempts(1).build().unwrap()]).await.unwrap();
    let refuse = tower::util::MapResultLayer::new(|_: std::result::Result<_, leasehold_core::BoxError>| {
        let cause = "x".parse::<u32>().unwrap_err();
        Err::<leasehold_worker::Ending, leasehold_core::BoxError>(Box::new(Refused(cause)))
    });
    let handler = async |_: Work, _: Context<()>| {};
    let worker = worker(&store).handle::<Work>(handler).layer(refuse).start().unwrap();
    let jobs = finished(&store, 1).await;
    let told = Json::error("no entry: invalid digit found in string");
    assert_eq!(jobs[0].last_error, Some(told));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// Counts the questions that follow a refused verdict.
#[tokio::test(start_paused = true)]
async fn a_verdict_that_was_refused_is_asked_about_once() {
    #[derive(Default)]
    struct Counting(Mutex<Vec<Op>>);
    #[async_trait]
    impl Around for Counting {
        async fn before(&self, op: Op, _: usize) -> Result<()> {
            self.0.lock().unwrap().push(op);
            Ok(())
        }
    }
    let store = store();
    enqueue(&store, 1).await;
    let counting = Arc::new(Counting::default());
    let handler = async |_: Work, context: Context<MemoryStore>| {
        context.state().retry_later(context.id(), Schedule::after(3600 * SECOND)?).await
    };
    let worker = Worker::builder(Wrapped::new(&store, &counting)).queue("q").state(store.clone());
    let worker = worker.heartbeat_on(HeartbeatOn::Task).handle::<Work>(handler).start().unwrap();
    sleep(60 * SECOND).await;
    let count = |wanted| counting.0.lock().unwrap().iter().filter(|op| **op == wanted).count();
    assert_eq!((count(Op::Settle), count(Op::Receipts)), (1, 1));
    assert_eq!(settled_so_far(&worker), (0, 1));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_shows_its_numbers_and_a_context_its_job() {
    let store = store();
    enqueue(&store, 1).await;
    let shown: Arc<Mutex<String>> = Arc::default();
    let handler = async |_: Work, context: Context<Arc<Mutex<String>>>| {
        *context.state().lock().unwrap() = format!("{context:?}");
    };
    let worker = worker(&store).state(Arc::clone(&shown)).handle::<Work>(handler).start().unwrap();
    finished(&store, 1).await;
    assert_eq!(*shown.lock().unwrap(), "Context { job: JobId(1), .. }");
    let shown = format!("{worker:?}");
    assert_eq!(shown, format!("WorkerHandle {{ stats: {:?}, .. }}", worker.stats()));
    worker.shutdown(Duration::ZERO).await.unwrap();
}
