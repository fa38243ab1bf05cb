//! The one writer: it waits for others and not for ever, and one operation that fails does not hurt the rest of its group.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use diesel::connection::SimpleConnection;
use futures_util::FutureExt;
use futures_util::future::join_all;
use leasehold_core::{JobId, Json, NewJob, Queues, Store, StoreError, TxStore};
use leasehold_sqlite::{SqliteStore, TxError, transaction};

/// How many operations the writer commits together at most.
const GROUP: usize = 256;

fn job(kind: &str) -> NewJob {
    NewJob::builder("q", kind).build().unwrap()
}

async fn live(store: &SqliteStore) -> u64 {
    store.stats(&"q".parse::<Queues>().unwrap()).await.unwrap()[0].live()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_for_too_long_is_unavailable() {
    let (_, directory) = crate::support::fresh_store().await;
    let patience = Duration::from_millis(100);
    let store = SqliteStore::builder().busy_timeout(patience).connect(&directory.file()).await.unwrap();
    let mut other = crate::support::plain(&directory.file());
    other.batch_execute("BEGIN IMMEDIATE").unwrap();
    let start = Instant::now();
    let jobs = [job("k")];
    for answer in join_all((0..20).map(|_| store.enqueue(&jobs))).await {
        let error = answer.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("locked"), "{error:?}");
    }
    assert!((patience..patience * 20).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!(live(&store).await, 0); // Reading goes on all the while.
    other.batch_execute("ROLLBACK").unwrap();
    store.enqueue(&[job("k")]).await.unwrap();
    assert_eq!(live(&store).await, 1); // What was unavailable was not done later.
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_waited_for() {
    let (store, directory) = crate::support::fresh_store().await;
    let mut other = crate::support::plain(&directory.file());
    other.batch_execute("BEGIN IMMEDIATE").unwrap();
    let jobs = [job("k")];
    let mut answers = join_all((0..20).map(|_| store.enqueue(&jobs)));
    assert!((&mut answers).now_or_never().is_none());
    other.batch_execute("COMMIT").unwrap();
    assert!(answers.await.into_iter().all(|answer| answer.is_ok()));
    assert_eq!(live(&store).await, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_fails_leaves_nothing_and_hurts_no_other() {
    let (store, directory) = crate::support::fresh_store().await;
    let mut other = crate::support::plain(&directory.file());
    other
        .batch_execute(
            "CREATE TRIGGER no BEFORE INSERT ON job_queue WHEN NEW.kind = 'bad'
             BEGIN SELECT RAISE(ABORT, 'not this one'); END;
             BEGIN IMMEDIATE",
        )
        .unwrap();
    let (good, bad) = ([job("k"), job("k")], [job("k"), job("bad")]);
    // All of these are one group: they are there by the time that the lock is free.
    let mut group = join_all([store.enqueue(&good), store.enqueue(&bad), store.enqueue(&good)]);
    let mut unknown = store.discard(JobId::new(999), Json::null());
    assert!((&mut group).now_or_never().is_none() && (&mut unknown).now_or_never().is_none());
    other.batch_execute("COMMIT").unwrap();
    let answers = group.await;
    assert!(answers[0].is_ok() && answers[2].is_ok(), "{answers:?}");
    assert!(matches!(&answers[1], Err(StoreError::Backend { .. })), "{answers:?}");
    assert!(matches!(unknown.await, Err(StoreError::NotFound(_))));
    assert_eq!(live(&store).await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_ends_the_transaction_is_told_to_all() {
    let (store, directory) = crate::support::fresh_store().await;
    let mut other = crate::support::plain(&directory.file());
    other
        .batch_execute(
            "CREATE TRIGGER no BEFORE INSERT ON job_queue WHEN NEW.kind = 'bad'
             BEGIN SELECT RAISE(ROLLBACK, 'nothing at all'); END;
             BEGIN IMMEDIATE",
        )
        .unwrap();
    let (good, bad) = ([job("k")], [job("bad")]);
    let mut group = join_all([store.enqueue(&good), store.enqueue(&bad), store.enqueue(&good)]);
    assert!((&mut group).now_or_never().is_none());
    other.batch_execute("COMMIT").unwrap();
    let answers = group.await;
    assert!(matches!(&answers[0], Err(StoreError::Unavailable { .. })), "{answers:?}");
    assert!(matches!(&answers[1], Err(StoreError::Backend { .. })), "{answers:?}");
    assert!(answers[2].is_ok(), "what came after it is done in the next transaction: {answers:?}");
    assert_eq!(live(&store).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_is_gone_changes_nothing_for_others() {
    let (store, directory) = crate::support::fresh_store().await;
    let mut other = crate::support::plain(&directory.file());
    other.batch_execute("BEGIN IMMEDIATE").unwrap();
    let jobs = [job("k")];
    for _ in 0..10 {
        assert!(store.enqueue(&jobs).now_or_never().is_none()); // Sent, and dropped.
    }
    let mut last = store.enqueue(&jobs);
    assert!((&mut last).now_or_never().is_none());
    other.batch_execute("COMMIT").unwrap();
    last.await.unwrap();
    assert_eq!(live(&store).await, 11);
}

/// The lock goes to whoever asks first, which would always be the writer that has just let it go. A transaction is let in
/// after the group that is under way, or the one after it. By chance alone, one in ten is let in later, up to twenty groups. Each
/// round has a store of its own, which has not met anybody else yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_busy_writer_makes_way_for_transactions() {
    let mut waited = Vec::new();
    for _ in 0..40 {
        waited.push(operations_before_a_transaction().await);
    }
    let long = waited.iter().filter(|operations| **operations > 2 * GROUP).count();
    // A busy machine may not have let the transaction ask at the right moment.
    assert!(long <= 1, "transactions were let in after so many operations of others: {waited:?}");
}

/// How many operations a busy writer does while a transaction waits for its turn.
async fn operations_before_a_transaction() -> usize {
    let (store, _directory) = crate::support::fresh_store().await;
    let mut conn = store.connection().await.unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    let mut busy = tokio::task::JoinSet::new();
    for _ in 0..4 * GROUP {
        let (store, done) = (store.clone(), Arc::clone(&done));
        busy.spawn(async move {
            loop {
                store.enqueue(&[job("k")]).await.unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while done.load(Ordering::Relaxed) < 4 * GROUP {
        tokio::task::yield_now().await;
    }
    let before = done.load(Ordering::Relaxed);
    let mine = [job("mine")];
    let enqueued =
        transaction(&mut conn, async |conn| Ok::<_, TxError>(store.enqueue_in(conn, &mine).await?)).await;
    let operations = done.load(Ordering::Relaxed) - before;
    assert!(!enqueued.unwrap()[0].deduplicated);
    busy.shutdown().await;
    operations
}

/// A store can be used with no runtime at all: its threads are its own.
#[test]
fn any_executor_will_do() {
    let directory = crate::support::Directory::new();
    let store = block_on(SqliteStore::connect(&directory.file())).unwrap();
    block_on(store.migrate()).unwrap();
    block_on(store.enqueue(&[job("k")])).unwrap();
    assert_eq!(block_on(live(&store)), 1);
}

/// The smallest executor there is.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        let mut context = std::task::Context::from_waker(&waker);
        if let std::task::Poll::Ready(answer) = future.as_mut().poll(&mut context) {
            return answer;
        }
        std::thread::park();
    }
}
