//! One test for each way in which a dispatch loop goes wrong: asleep for ever, awake without end, a slot or a job that
//! nobody has, one that starves another.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::support::wrapped::{Around, Op, Wrapped};
use crate::support::{Pay, Work, enqueue, event, finished, store, worker};
use async_trait::async_trait;
use leasehold_core::{Json, NewJob, Record, Result, Settled, Store, StoreError, TxStore};
use leasehold_memory::MemoryStore;
use leasehold_worker::{Context, HeartbeatOn, QueueOptions, Worker, WorkerBuilder, WorkerEvent};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

/// A store around which a test does one thing.
struct Doing<F>(F);

#[async_trait]
impl<F, Fut> Around for Doing<F>
where
    F: Fn(Op, bool) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<()>> + Send,
{
    async fn before(&self, op: Op, _: usize) -> Result<()> {
        (self.0)(op, false).await
    }

    async fn after(&self, op: Op, _: usize) -> Result<()> {
        (self.0)(op, true).await
    }
}

fn doing<F, Fut>(store: &MemoryStore, around: F) -> WorkerBuilder
where
    F: Fn(Op, bool) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<()>> + Send + 'static,
{
    let around = Arc::new(Doing(around));
    Worker::builder(Wrapped::new(store, &around)).queue("q").heartbeat_on(HeartbeatOn::Task)
}

/// Runs a test on a thread of its own: virtual time that does not pass would never end it.
fn ends<Fut: Future<Output = ()>>(test: impl FnOnce() -> Fut + Send + 'static) {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(test());
        done.send(()).unwrap();
    });
    assert!(ended.recv_timeout(30 * SECOND).is_ok(), "it failed, or the loop does not wait");
}

/// Others are faster again and again, and hints do not come. What is due is still looked for.
#[tokio::test(start_paused = true)]
async fn looks_in_vain_do_not_put_a_source_to_sleep() {
    let store = store();
    let (vain, rivals) = (Arc::new(AtomicUsize::new(0)), store.clone());
    let seen = Arc::clone(&vain);
    let worker = doing(&store, move |op, after| {
        let (seen, rivals) = (Arc::clone(&seen), rivals.clone());
        async move {
            match op {
                Op::Wakeups => return Err(StoreError::unsupported("hints")),
                // Whatever is there when it is asked for is gone when it is claimed, twenty times.
                Op::Dequeue if !after && seen.fetch_add(1, Ordering::SeqCst) < 20 => {
                    rivals.pause(&"q".parse().unwrap()).await?;
                }
                Op::Dequeue if after => rivals.resume(&"q".parse().unwrap()).await?,
                _ => {}
            }
            Ok(())
        }
    });
    let worker = worker.handle::<Work>(async |_: Work, _: Context<()>| {}).start().unwrap();
    sleep(5 * SECOND).await;
    enqueue(&store, 1).await;
    let start = Instant::now();
    finished(&store, 1).await;
    assert!(start.elapsed() < 22 * SECOND, "{:?}", start.elapsed());
    assert!(vain.load(Ordering::SeqCst) > 20, "the test is about looks in vain");
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// The store has no hints, and the poll interval is long.
#[tokio::test(start_paused = true)]
async fn a_worker_that_is_woken_looks_at_once() {
    let store = store();
    let worker = doing(&store, async |op, _| match op {
        Op::Wakeups => Err(StoreError::unsupported("hints")),
        _ => Ok(()),
    });
    let worker = worker.poll_interval(3600 * SECOND).handle::<Work>(async |_: Work, _: Context<()>| {});
    let worker = worker.start().unwrap();
    sleep(SECOND).await;
    enqueue(&store, 1).await;
    sleep(10 * SECOND).await;
    assert_eq!(worker.stats().completed, 0, "the test is about wake");
    worker.wake();
    sleep(SECOND).await;
    assert_eq!(worker.stats().completed, 1);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// A slot becomes free just before a claim under way comes back with less than was asked for: there is nothing to gather
/// slots for any more.
#[test]
fn waiting_for_more_slots_ends() {
    ends(async || {
        let store = store();
        enqueue(&store, 6).await;
        let claims = Arc::new(AtomicUsize::new(0));
        let worker = doing(&store, move |op, after| {
            let second = op == Op::Dequeue && after && claims.fetch_add(1, Ordering::SeqCst) == 1;
            async move {
                if second {
                    sleep(Duration::from_millis(10)).await;
                }
                Ok(())
            }
        });
        let handler = async |work: Work, _: Context<()>| match work.n {
            0 => sleep(Duration::from_millis(10)).await,
            _ => sleep(100 * SECOND).await,
        };
        let worker = worker.concurrency(8).claim_batch(4).poll_interval(50 * SECOND).handle::<Work>(handler);
        let worker = worker.start().unwrap();
        finished(&store, 6).await;
        worker.shutdown(Duration::ZERO).await.unwrap();
    });
}

#[tokio::test(start_paused = true)]
async fn a_span_that_panics_is_a_failed_attempt_and_its_slot_is_free() {
    let store = store();
    enqueue(&store, 3).await;
    let worker = worker(&store)
        .concurrency(1)
        .make_span(|job| {
            assert!(job.attempts > 1, "no span");
            tracing::Span::none()
        })
        .handle::<Work>(async |_: Work, _: Context<()>| {})
        .start()
        .unwrap();
    let jobs = finished(&store, 3).await;
    assert!(jobs.iter().all(|job| job.last_error == Some(Json::error("panicked: no span"))));
    assert_eq!((worker.stats().panicked, worker.stats().running), (3, 0));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_future_that_panics_when_dropped_is_a_failed_attempt_and_its_slot_is_free() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a bomb");
        }
    }
    let store = store();
    enqueue(&store, 2).await;
    let handler = async |_: Work, context: Context<()>| {
        if context.attempt() == 1 {
            let _bomb = Bomb;
            std::future::pending::<()>().await;
        }
    };
    let worker = worker(&store).concurrency(1).timeout(SECOND).handle::<Work>(handler).start().unwrap();
    let jobs = finished(&store, 2).await;
    assert!(jobs.iter().all(|job| job.attempts == 2), "{jobs:?}");
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_grace_that_shutdown_is_given_counts() {
    let store = store();
    enqueue(&store, 1).await;
    let handler = async |_: Work, _: Context<()>| sleep(60 * SECOND).await;
    let worker = worker(&store).grace(SECOND).handle::<Work>(handler).start().unwrap();
    sleep(SECOND).await;
    let stopped = worker.shutdown(120 * SECOND).await.unwrap();
    assert_eq!((stopped.released, worker.stats().completed), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_that_is_not_awaited_stops_the_worker_all_the_same() {
    let store = store();
    enqueue(&store, 1).await;
    let handler = async |_: Work, _: Context<()>| sleep(3600 * SECOND).await;
    let worker = worker(&store).handle::<Work>(handler).start().unwrap();
    sleep(SECOND).await;
    let given_up = tokio::time::timeout(SECOND, worker.shutdown(10 * SECOND)).await;
    assert!(given_up.is_err());
    let start = Instant::now();
    assert_eq!(worker.join().await.unwrap().released, 1);
    assert!(start.elapsed() <= 10 * SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn jobs_that_a_claim_brings_after_the_end_are_given_back() {
    for grace in [Duration::ZERO, 10 * SECOND] {
        let store = store();
        enqueue(&store, 3).await;
        let worker = doing(&store, async |op, after| {
            if op == Op::Dequeue && after {
                sleep(2 * SECOND).await;
            }
            Ok(())
        });
        let worker = worker.handle::<Work>(async |_: Work, _: Context<()>| {}).start().unwrap();
        sleep(SECOND).await;
        worker.shutdown(grace).await.unwrap();
        for id in 1..=3 {
            let Some(Record::Live(job)) = store.get(id.into()).await.unwrap() else { panic!("{id} is gone") };
            assert_eq!((job.attempts, job.lease), (0, None), "job {id}, grace {grace:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_ends_at_the_last_moment_is_heard() {
    let store = store();
    enqueue(&store, 1).await;
    let (go, gone) = oneshot::channel::<()>();
    let gone = Arc::new(Mutex::new(Some(gone)));
    let handler = move |_: Work, _: Context<()>| {
        let gone = gone.lock().unwrap().take();
        async move { gone.unwrap().await.unwrap() }
    };
    let worker = worker(&store).handle::<Work>(handler).start().unwrap();
    sleep(SECOND / 2).await;
    go.send(()).unwrap();
    let stopped = worker.shutdown(Duration::ZERO).await.unwrap();
    assert_eq!((stopped.released, worker.stats().completed), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_does_not_keep_a_worker_from_stopping() {
    for grace in [0, 30] {
        let store = store();
        enqueue(&store, 2).await;
        let worker = doing(&store, async |op, after| {
            if after || matches!(op, Op::Settle | Op::Next | Op::Reclaim) {
                std::future::pending::<()>().await;
            }
            Ok(())
        });
        let worker = worker.handle::<Work>(async |_: Work, _: Context<()>| {}).start().unwrap();
        sleep(SECOND).await;
        let start = Instant::now();
        worker.shutdown(grace * SECOND).await.unwrap();
        assert!(start.elapsed() <= (grace + 11) * SECOND, "{:?}", start.elapsed());
    }
}

/// A handler that does not let go of its thread cannot be stopped; the worker can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_never_waits_does_not_keep_a_worker_from_stopping() {
    let store = MemoryStore::new();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let handler = move |_: Work, _: Context<()>| {
        let released = Arc::clone(&released);
        async move { released.lock().unwrap().recv().unwrap_or_default() }
    };
    let worker = Worker::builder(Arc::new(store.clone())).queue("q").handle::<Work>(handler).start().unwrap();
    let mut events = worker.events(); // Before there is a job: the worker has threads of its own.
    enqueue(&store, 1).await;
    while !matches!(events.recv().await.unwrap(), WorkerEvent::Leased { .. }) {}
    let stopped = tokio::time::timeout(60 * SECOND, worker.shutdown(Duration::ZERO)).await;
    assert!(stopped.is_ok(), "the worker waits for its handler");
    drop(release);
}

/// One source that cannot be read is asked less and less often, whatever the others do.
#[tokio::test(start_paused = true)]
async fn a_source_that_cannot_be_read_holds_up_no_other_and_is_not_asked_without_end() {
    #[derive(Default)]
    struct Broken(AtomicUsize);
    let (store, broken) = (store(), Arc::new(Broken::default()));
    let (mut mock, calls) = (leasehold_core::MockStore::new(), Arc::clone(&broken));
    let inner = store.clone();
    mock.expect_dequeue().returning(move |request| {
        if request.queues.contains(&"broken".parse().unwrap()) {
            calls.0.fetch_add(1, Ordering::SeqCst);
            return Err(StoreError::corrupt("a row"));
        }
        futures_util::FutureExt::now_or_never(inner.dequeue(request)).unwrap()
    });
    let inner = store.clone();
    mock.expect_settle()
        .returning(move |items| futures_util::FutureExt::now_or_never(inner.settle(items)).unwrap());
    mock.expect_next_available_at().returning(|_| Ok(None));
    mock.expect_wakeups().returning(|_| Ok(Box::pin(futures_util::stream::pending())));
    mock.expect_reclaim().returning(|_| Ok(Vec::new()));
    let handler = async |_: Work, _: Context<()>| sleep(Duration::from_millis(100)).await;
    let worker = Worker::builder(Arc::new(mock))
        .queue("q")
        .queue_with("broken", QueueOptions::new())
        .heartbeat_on(HeartbeatOn::Task)
        .concurrency(2)
        .handle::<Work>(handler)
        .start()
        .unwrap();
    enqueue(&store, 1000).await;
    let start = Instant::now();
    finished(&store, 1000).await;
    assert!(start.elapsed() < 60 * SECOND, "{:?}", start.elapsed());
    let asked = broken.0.load(Ordering::SeqCst);
    assert!((5..=30).contains(&asked), "{asked} times in {:?}", start.elapsed());
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn turns_are_in_proportion_to_weights_and_queues_keep_to_their_concurrency() {
    let store = store();
    let jobs = |queue: &str| -> Vec<NewJob> {
        (0..60).map(|n| NewJob::of(queue, &Work { n }).build().unwrap()).collect()
    };
    store.enqueue(&jobs("often")).await.unwrap();
    store.enqueue(&jobs("seldom")).await.unwrap();
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&order);
    let handler = move |_: Work, context: Context<()>| {
        seen.lock().unwrap().push(context.queue().to_string());
        sleep(SECOND)
    };
    let worker = Worker::builder(Arc::new(store.clone()))
        .queue_with("often", QueueOptions::new().weight(3))
        .queue_with("seldom", QueueOptions::new().weight(1))
        .heartbeat_on(HeartbeatOn::Task)
        .concurrency(1)
        .handle::<Work>(handler)
        .start()
        .unwrap();
    finished(&store, 40).await;
    let often = order.lock().unwrap().iter().take(40).filter(|queue| *queue == "often").count();
    assert!((28..=32).contains(&often), "{often} of 40");
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_queue_keeps_to_its_concurrency_while_others_use_the_rest() {
    let store = store();
    for queue in ["narrow", "wide"] {
        let jobs: Vec<NewJob> = (0..30).map(|n| NewJob::of(queue, &Work { n }).build().unwrap()).collect();
        store.enqueue(&jobs).await.unwrap();
    }
    let running: Arc<Mutex<[usize; 2]>> = Arc::default();
    let most: Arc<Mutex<[usize; 2]>> = Arc::default();
    let seen = (Arc::clone(&running), Arc::clone(&most));
    let handler = move |_: Work, context: Context<()>| {
        let (running, most) = seen.clone();
        async move {
            let queue = usize::from(context.queue().as_str() == "wide");
            let now = {
                let mut running = running.lock().unwrap();
                running[queue] += 1;
                running[queue]
            };
            let before = most.lock().unwrap()[queue];
            most.lock().unwrap()[queue] = before.max(now);
            sleep(SECOND).await;
            running.lock().unwrap()[queue] -= 1;
        }
    };
    let worker = Worker::builder(Arc::new(store.clone()))
        .queue_with("narrow", QueueOptions::new().concurrency(2))
        .queue("wide")
        .heartbeat_on(HeartbeatOn::Task)
        .concurrency(8)
        .handle::<Work>(handler)
        .start()
        .unwrap();
    finished(&store, 60).await;
    let most = *most.lock().unwrap();
    assert_eq!(most[0], 2, "narrow");
    assert!(most[1] >= 6, "wide: {}", most[1]);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// Handlers that are faster than the store must not heap up verdicts without bounds.
#[tokio::test(start_paused = true)]
async fn no_more_is_claimed_than_can_be_settled() {
    let store = store();
    enqueue(&store, 5000).await;
    let worker = doing(&store, async |op, after| {
        if op == Op::Settle && !after {
            sleep(4 * SECOND).await;
        }
        Ok(())
    });
    let worker = worker
        .settle_batch(10, Duration::from_millis(1))
        .handle::<Work>(async |_: Work, _: Context<()>| {})
        .start()
        .unwrap();
    sleep(3 * SECOND).await;
    let leased = worker.stats().leased;
    assert!((40..=80).contains(&leased), "{leased} jobs are leased, of which 40 are being settled");
    sleep(20 * SECOND).await;
    assert!(worker.stats().completed >= 160, "{:?}", worker.stats());
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// One bad row in a batch of verdicts is its own misfortune.
#[tokio::test(start_paused = true)]
async fn a_verdict_that_breaks_the_store_holds_up_no_other() {
    let (store, mut mock) = (store(), leasehold_core::MockStore::new());
    let inner = store.clone();
    mock.expect_dequeue()
        .returning(move |request| futures_util::FutureExt::now_or_never(inner.dequeue(request)).unwrap());
    let inner = store.clone();
    mock.expect_settle().returning(move |items| {
        if items.iter().any(|(receipt, _)| receipt.job.get() == 7) {
            return Err(StoreError::corrupt("job 7"));
        }
        futures_util::FutureExt::now_or_never(inner.settle(items)).unwrap()
    });
    mock.expect_next_available_at().returning(|_| Ok(None));
    mock.expect_wakeups().returning(|_| Ok(Box::pin(futures_util::stream::pending())));
    mock.expect_reclaim().returning(|_| Ok(Vec::new()));
    enqueue(&store, 20).await;
    let worker = Worker::builder(Arc::new(mock))
        .queue("q")
        .concurrency(20)
        .heartbeat_on(HeartbeatOn::Task)
        .handle::<Work>(async |_: Work, _: Context<()>| {})
        .start()
        .unwrap();
    let start = Instant::now();
    assert_eq!(finished(&store, 19).await.len(), 19);
    assert!(start.elapsed() < 10 * SECOND, "{:?}", start.elapsed());
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// However many verdicts there are to settle, what transactional handlers did is looked at too.
#[tokio::test(start_paused = true)]
async fn verdicts_do_not_keep_proofs_waiting() {
    let store = store();
    enqueue(&store, 400).await;
    let worker = doing(&store, async |op, after| {
        if op == Op::Settle && !after {
            sleep(SECOND).await;
        }
        Ok(())
    });
    store.enqueue(&[NewJob::of("q", &Pay {}).priority(1).build().unwrap()]).await.unwrap();
    let handler = async |_: Pay, context: Context<MemoryStore>| {
        let store = context.state();
        let mut tx = store.begin();
        let settled = store.ack_in(&mut tx, &context.receipt(), Json::null()).await?;
        tx.commit()?;
        sleep(Duration::from_millis(20)).await;
        Ok::<Settled, StoreError>(settled)
    };
    let worker = worker
        .settle_batch(2, Duration::from_millis(1))
        .state(store.clone())
        .handle::<Work>(async |_: Work, _: Context<MemoryStore>| {})
        .handle_tx::<Pay>(handler)
        .start()
        .unwrap();
    let paid = event(&worker, |event| match event {
        WorkerEvent::Settled { kind, .. } => (kind.as_str() == "pay").then_some(()),
        _ => None,
    });
    let start = Instant::now();
    paid.await;
    assert!(start.elapsed() < 5 * SECOND, "{:?}", start.elapsed());
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_longest_times_are_no_error() {
    let store = store();
    enqueue(&store, 3).await;
    let handler = async |work: Work, _: Context<()>| sleep(SECOND * work.n as u32).await;
    let worker = worker(&store)
        .poll_interval(Duration::MAX)
        .grace(Duration::MAX)
        .timeout(Duration::MAX)
        .settle_batch(3, Duration::MAX)
        .handle::<Work>(handler)
        .start()
        .unwrap();
    finished(&store, 3).await;
    assert_eq!(worker.shutdown(Duration::MAX).await.unwrap().released, 0);
}

/// A proof that is returned before its commit: the commit comes too late, and what it would have done is done once.
#[tokio::test(start_paused = true)]
async fn a_commit_after_the_return_is_refused() {
    let store = store();
    store.enqueue(&[NewJob::of("q", &Pay {}).build().unwrap()]).await.unwrap();
    let late: Arc<Mutex<Option<Result<()>>>> = Arc::default();
    let seen = Arc::clone(&late);
    let shared = store.clone();
    let handler = move |_: Pay, context: Context<()>| {
        let (store, seen) = (shared.clone(), Arc::clone(&seen));
        async move {
            let mut tx = store.begin();
            tx.put(format!("attempt {}", context.attempt()), Json::null())?;
            let settled = store.ack_in(&mut tx, &context.receipt(), Json::null()).await?;
            if context.attempt() > 1 {
                tx.commit()?;
                return Ok(settled);
            }
            tokio::spawn(async move {
                sleep(SECOND).await;
                *seen.lock().unwrap() = Some(tx.commit());
            });
            Ok::<Settled, StoreError>(settled)
        }
    };
    let worker = worker(&store).handle_tx::<Pay>(handler).start().unwrap();
    finished(&store, 1).await;
    sleep(10 * SECOND).await;
    assert!(late.lock().unwrap().take().unwrap().is_err());
    assert_eq!(store.values().into_keys().collect::<Vec<_>>(), ["attempt 2"]);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_shortest_poll_interval_is_no_error() {
    let start = |interval| {
        let worker = worker(&store()).poll_interval(interval);
        worker.handle::<Work>(async |_: Work, _: Context<()>| {}).start()
    };
    assert!(start(Duration::from_micros(999)).is_err());
    start(Duration::from_millis(1)).unwrap().shutdown(Duration::ZERO).await.unwrap();
}
