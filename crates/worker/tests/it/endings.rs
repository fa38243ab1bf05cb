//! Every way in which a handler can end, and what becomes of its job.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Work, enqueue, finished, store, worker};
use leasehold_core::{
    Backoff, FinalStatus, Json, NewJob, Outcome, Record, Settled, Store, StoreError, TxStore, Verdict,
};
use leasehold_memory::MemoryStore;
use leasehold_worker::{Context, Done};

#[tokio::test(start_paused = true)]
async fn what_a_handler_returns_is_kept() {
    let store = store();
    enqueue(&store, 1).await;
    let handler = async |work: Work, _: Context<()>| Done(format!("did {}", work.n));
    let worker = worker(&store).handle::<Work>(handler).start().unwrap();
    let jobs = finished(&store, 1).await;
    assert_eq!(jobs[0].outcome, Outcome::Completed { result: Json::new("did 0").unwrap() });
    assert_eq!(worker.stats().completed, 1);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_error_is_tried_again_until_the_attempts_are_spent() {
    let store = store();
    enqueue(&store, 1).await;
    let handler = async |_: Work, _: Context<()>| Err::<(), _>("no luck");
    let worker = worker(&store).handle::<Work>(handler).start().unwrap();
    let jobs = finished(&store, 1).await;
    assert_eq!(jobs[0].outcome, Outcome::DeadLetter { error: Json::error("no luck") });
    assert_eq!(jobs[0].attempts, 5);
    let stats = worker.stats();
    assert_eq!((stats.retried, stats.dead_lettered), (4, 1));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failed_attempt_and_stops_nothing_else() {
    let store = store();
    enqueue(&store, 3).await;
    let handler = async |work: Work, context: Context<()>| {
        assert!(work.n != 1 || context.attempt() > 1, "job {} breaks", work.n);
    };
    let worker = worker(&store).handle::<Work>(handler).start().unwrap();
    let jobs = finished(&store, 3).await;
    assert!(jobs.iter().all(|job| job.outcome.status() == FinalStatus::Completed));
    let broken = jobs.iter().find(|job| job.attempts == 2).unwrap();
    assert_eq!(broken.last_error, Some(Json::error("panicked: job 1 breaks")));
    assert_eq!(worker.stats().panicked, 1);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_takes_too_long_is_a_failed_attempt() {
    let store = store();
    enqueue(&store, 1).await;
    let handler = async |_: Work, context: Context<()>| {
        if context.attempt() == 1 {
            std::future::pending::<()>().await;
        }
    };
    let worker =
        worker(&store).handle::<Work>(handler).timeout_of::<Work>(Duration::from_secs(5)).start().unwrap();
    let jobs = finished(&store, 1).await;
    assert_eq!(jobs[0].last_error, Some(Json::error("timed out after 5s")));
    assert_eq!((jobs[0].attempts, worker.stats().timed_out), (2, 1));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn jobs_that_nobody_can_handle_become_dead_letters_and_hold_up_nobody() {
    let store = store();
    let unknown = NewJob::builder("q", "mystery").max_attempts(2).build().unwrap();
    let undecodable = NewJob::builder("q", "work").payload("not work").max_attempts(2).build().unwrap();
    store.enqueue(&[unknown, undecodable]).await.unwrap();
    enqueue(&store, 1).await;
    let worker = worker(&store).handle::<Work>(async |_: Work, _: Context<()>| {}).start().unwrap();
    let jobs = finished(&store, 3).await;
    let mut ends: Vec<_> =
        jobs.iter().map(|job| (job.id.get(), job.outcome.status(), job.attempts)).collect();
    ends.sort_unstable();
    use FinalStatus::{Completed, DeadLetter};
    assert_eq!(ends, [(1, DeadLetter, 2), (2, DeadLetter, 2), (3, Completed, 1)]);
    let stats = worker.stats();
    assert_eq!((stats.unknown_kind, stats.undecodable), (2, 2));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_fallback_takes_what_has_no_handler() {
    let store = store();
    store.enqueue(&[NewJob::builder("q", "mystery").build().unwrap()]).await.unwrap();
    let fallback = async |context: Context<()>| Verdict::discard(format!("what is {}?", context.job().kind));
    let worker = worker(&store).fallback(fallback).start().unwrap();
    let jobs = finished(&store, 1).await;
    assert_eq!(jobs[0].outcome, Outcome::Discarded { reason: Json::new("what is mystery?").unwrap() });
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_kind_may_have_a_backoff_of_its_own() {
    let store = store();
    enqueue(&store, 1).await;
    let (base, max) = (Duration::from_secs(500), Duration::from_secs(500));
    let backoff = Backoff::new(base, 0.0, base, max).unwrap();
    let handler = async |_: Work, _: Context<()>| Err::<(), _>("no luck");
    let worker = worker(&store).handle::<Work>(handler).backoff_of::<Work>(backoff).start().unwrap();
    let start = tokio::time::Instant::now();
    finished(&store, 1).await;
    assert!(start.elapsed() >= 4 * base, "{:?}", start.elapsed());
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// What transactional handlers share.
struct App {
    store: MemoryStore,
    runs: AtomicUsize,
}

fn app(store: &MemoryStore) -> App {
    App { store: store.clone(), runs: AtomicUsize::new(0) }
}

async fn pay(work: Work, context: Context<Arc<App>>) -> Result<Settled, StoreError> {
    let app = context.state();
    let mut tx = app.store.begin();
    tx.put(format!("paid {}", work.n), Json::new(&context.attempt())?)?;
    let settled = app.store.ack_in(&mut tx, &context.receipt(), Json::null()).await?;
    match app.runs.fetch_add(1, Ordering::SeqCst) {
        0 => {} // The commit is forgotten.
        _ => tx.commit()?,
    }
    Ok(settled)
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_commit_is_seen_and_tried_again_at_once() {
    let store = store();
    enqueue(&store, 1).await;
    let app = Arc::new(app(&store));
    let worker = worker(&store).state(app).handle_tx::<Work>(pay).start().unwrap();
    let start = tokio::time::Instant::now();
    let jobs = finished(&store, 1).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!((jobs[0].attempts, jobs[0].outcome.status()), (2, FinalStatus::Completed));
    assert_eq!(store.value("paid 0"), Some(Json::new(&2).unwrap()));
    assert_eq!(worker.stats().not_committed, 1);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_error_after_the_commit_changes_nothing() {
    let store = store();
    enqueue(&store, 1).await;
    let handler = async |_: Work, context: Context<Arc<App>>| {
        let app = context.state();
        app.runs.fetch_add(1, Ordering::SeqCst);
        let mut tx = app.store.begin();
        let settled = app.store.ack_in(&mut tx, &context.receipt(), Json::null()).await?;
        tx.commit()?;
        // As if the answer to the commit had been lost.
        Err::<Settled, _>(StoreError::unknown("commit", format!("{settled:?}")))
    };
    let app = Arc::new(app(&store));
    let worker = worker(&store).state(Arc::clone(&app)).handle_tx::<Work>(handler).start().unwrap();
    finished(&store, 1).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(app.runs.load(Ordering::SeqCst), 1);
    let stats = worker.stats();
    assert_eq!((stats.completed, stats.lease_lost, stats.retried), (1, 0, 0));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_error_before_the_commit_is_a_failed_attempt() {
    let store = store();
    enqueue(&store, 1).await;
    let handler = async |_: Work, context: Context<Arc<App>>| {
        let app = context.state();
        let mut tx = app.store.begin();
        tx.put("paid", Json::null())?;
        let settled = app.store.ack_in(&mut tx, &context.receipt(), Json::null()).await?;
        if context.attempt() == 1 {
            return Err(StoreError::conflict("not today"));
        }
        tx.commit()?;
        Ok(settled)
    };
    let worker = worker(&store).state(Arc::new(app(&store))).handle_tx::<Work>(handler).start().unwrap();
    let jobs = finished(&store, 1).await;
    assert_eq!((jobs[0].attempts, worker.stats().retried), (2, 1));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_gives_back_what_is_still_running() {
    let store = store();
    enqueue(&store, 4).await;
    let handler = async |work: Work, context: Context<()>| match work.n {
        0 => tokio::time::sleep(Duration::from_secs(5)).await,
        _ => context.cancelled().await,
    };
    let worker = worker(&store).concurrency(2).handle::<Work>(handler).start().unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let stopped = worker.shutdown(Duration::from_secs(10)).await.unwrap();
    assert_eq!((stopped.released, stopped.abandoned), (1, 0));
    assert_eq!(finished(&store, 1).await.len(), 1);
    for id in 2..=4 {
        let Some(Record::Live(job)) = store.get(id.into()).await.unwrap() else { panic!("job {id} is gone") };
        assert_eq!((job.attempts, job.lease), (0, None), "job {id}");
    }
}

/// So that a file can be closed, or opened by somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_has_stopped_has_let_go_of_its_store() {
    for _ in 0..50 {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let worker = leasehold_worker::Worker::builder(Arc::clone(&store))
            .queue("q")
            .queue("other:*")
            .handle::<Work>(async |_: Work, _: Context<()>| {})
            .start()
            .unwrap();
        worker.shutdown(Duration::from_secs(5)).await.unwrap();
        assert_eq!(Arc::strong_count(&store), 1);
    }
}
