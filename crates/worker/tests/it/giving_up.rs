//! Handlers that the worker gives up: they, and all that they have spawned, are told.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::support::{Work, enqueue, finished, store, worker};
use leasehold_core::{Record, Store};
use leasehold_memory::MemoryStore;
use leasehold_worker::{Context, Worker};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

const SECOND: Duration = Duration::from_secs(1);

/// The tokens that handlers have handed to what they have spawned, by attempt.
type Tokens = Arc<Mutex<Vec<CancellationToken>>>;

fn fired(tokens: &Tokens) -> Vec<bool> {
    tokens.lock().unwrap().iter().map(CancellationToken::is_cancelled).collect()
}

#[tokio::test(start_paused = true)]
async fn a_timeout_fires_the_token() {
    let (store, tokens) = (store(), Tokens::default());
    enqueue(&store, 1).await;
    let handler = async |_: Work, context: Context<Tokens>| {
        context.state().lock().unwrap().push(context.cancellation());
        if context.attempt() == 1 {
            std::future::pending::<()>().await;
        }
    };
    let worker = worker(&store).timeout(SECOND).state(Arc::clone(&tokens)).handle::<Work>(handler);
    let worker = worker.start().unwrap();
    sleep(SECOND / 2).await;
    assert_eq!(fired(&tokens), [false]);
    sleep(SECOND).await;
    assert_eq!(fired(&tokens), [true], "before the next attempt");
    finished(&store, 1).await;
    assert_eq!(fired(&tokens), [true, false], "what a handler that returned has spawned may go on");
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_panic_fires_the_token() {
    let (store, tokens) = (store(), Tokens::default());
    enqueue(&store, 1).await;
    let handler = async |_: Work, context: Context<Tokens>| {
        context.state().lock().unwrap().push(context.cancellation());
        assert!(context.attempt() > 1, "as the test wants");
    };
    let worker = worker(&store).state(Arc::clone(&tokens)).handle::<Work>(handler).start().unwrap();
    finished(&store, 1).await;
    assert_eq!(fired(&tokens), [true, false]);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_drop_at_the_end_of_the_grace_fires_the_token() {
    let (store, tokens) = (store(), Tokens::default());
    enqueue(&store, 1).await;
    let handler = async |_: Work, context: Context<Tokens>| {
        context.state().lock().unwrap().push(context.cancellation());
        std::future::pending::<()>().await;
    };
    let worker = worker(&store).state(Arc::clone(&tokens)).handle::<Work>(handler).start().unwrap();
    sleep(SECOND).await;
    assert_eq!(fired(&tokens), [false]);
    assert_eq!(worker.shutdown(SECOND).await.unwrap().released, 1);
    assert_eq!(fired(&tokens), [true]);
}

/// It cannot be dropped, so it goes on: its job must not be started beside it. Its lease keeps the job from others, and its
/// token tells it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_holds_its_thread_at_the_end_keeps_its_job_and_is_told() {
    let store = MemoryStore::new();
    let (told, seen) = mpsc::channel();
    let told = Arc::new(Mutex::new(told));
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |_: Work, context: Context<()>| {
        let (told, started) = (Arc::clone(&told), started.clone());
        async move {
            started.send(()).unwrap();
            while !context.is_cancelled() {
                std::thread::park_timeout(Duration::from_millis(10));
            }
            told.lock().unwrap().send(()).unwrap();
        }
    };
    let worker = Worker::builder(Arc::new(store.clone())).queue("q").handle::<Work>(handler).start().unwrap();
    enqueue(&store, 1).await;
    starts.recv().await.unwrap();
    let stopped = worker.shutdown(Duration::ZERO).await.unwrap();
    assert_eq!((stopped.released, stopped.abandoned), (0, 1));
    let Some(Record::Live(job)) = store.get(1.into()).await.unwrap() else { panic!("the job is gone") };
    assert_eq!(
        (job.attempts, job.lease.is_some()),
        (1, true),
        "nobody else may start it before its lease has passed"
    );
    tokio::task::spawn_blocking(move || seen.recv_timeout(60 * SECOND).unwrap()).await.unwrap();
}

/// The first `shutdown` waits for its grace, the second for nothing.
#[tokio::test(start_paused = true)]
async fn a_second_shutdown_does_not_wait_whatever_its_grace() {
    let store = store();
    enqueue(&store, 1).await;
    let handler = async |_: Work, _: Context<()>| sleep(3600 * SECOND).await;
    let worker = worker(&store).handle::<Work>(handler).start().unwrap();
    sleep(SECOND).await;
    let first = tokio::spawn({
        let worker = worker.clone();
        async move { worker.shutdown(600 * SECOND).await }
    });
    sleep(10 * SECOND).await;
    let start = Instant::now();
    assert_eq!(worker.shutdown(600 * SECOND).await.unwrap().released, 1);
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
    assert_eq!(first.await.unwrap().unwrap().released, 1);
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_which_attempt_is_the_last() {
    let store = store();
    let job = leasehold_core::NewJob::of("q", &Work { n: 0 }).max_attempts(3).build().unwrap();
    store.enqueue(&[job]).await.unwrap();
    let last: Arc<Mutex<Vec<bool>>> = Arc::default();
    let seen = Arc::clone(&last);
    let handler = move |_: Work, context: Context<()>| {
        seen.lock().unwrap().push(context.is_last_attempt());
        async { Err::<(), _>("no luck") }
    };
    let worker = worker(&store).handle::<Work>(handler).start().unwrap();
    finished(&store, 1).await;
    assert_eq!(*last.lock().unwrap(), [false, false, true]);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// The same job comes back to a worker whose handler has lost its lease and works on: it is not started beside itself.
#[tokio::test(start_paused = true)]
async fn a_job_is_not_started_while_an_earlier_attempt_runs_in_the_same_worker() {
    let store = store();
    enqueue(&store, 1).await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = (Arc::clone(&now), Arc::clone(&most));
    let handler = move |_: Work, context: Context<()>| {
        let (now, most) = seen.clone();
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            if context.attempt() == 1 {
                // It does not look at its token.
                sleep(300 * SECOND).await;
                assert!(context.is_cancelled());
            }
            now.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let worker = worker(&store).handle::<Work>(handler).start().unwrap();
    sleep(SECOND).await;
    // As if the store's clock had gone a lease forward.
    store.retry_later(1.into(), leasehold_core::Schedule::Now).await.unwrap();
    let jobs = finished(&store, 1).await;
    assert_eq!(most.load(Ordering::SeqCst), 1, "at once");
    assert_eq!((jobs[0].attempts, worker.stats().lease_lost), (2, 1), "offers in vain spend no attempt");
    worker.shutdown(Duration::ZERO).await.unwrap();
}
