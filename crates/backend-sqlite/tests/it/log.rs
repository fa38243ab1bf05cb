//! The write-ahead log stays short, whatever reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use diesel::connection::SimpleConnection;
use leasehold_core::{NewJob, Queues, Store};
use leasehold_sqlite::SqliteStore;

/// The log is to be below this at every look.
const BOUND: u64 = 64 << 20;
/// How many jobs of this size are written while others read: much more than the bound.
const WRITES: usize = 200;
const SIZE: usize = 512 << 10;

fn log_of(file: &str) -> u64 {
    std::fs::metadata(format!("{file}-wal")).map_or(0, |log| log.len())
}

fn large() -> NewJob {
    NewJob::builder("large", "k").payload(&"x".repeat(SIZE)).build().unwrap()
}

/// Jobs whose count takes longer than one commit.
async fn many(store: &SqliteStore) {
    let jobs: Vec<_> = (0..10_000).map(|_| NewJob::builder("many", "k").build().unwrap()).collect();
    for _ in 0..3 {
        store.enqueue(&jobs).await.unwrap();
    }
}

/// Four tasks count jobs without a pause, on the two threads that read, so that at every moment one of them reads. SQLite begins its
/// log anew only in a moment in which nothing reads.
#[tokio::test(flavor = "multi_thread")]
async fn readers_that_overlap_do_not_let_the_log_grow() {
    let (store, directory) = crate::support::fresh_store().await;
    many(&store).await;
    let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut pollers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (store, stop, reads) = (store.clone(), Arc::clone(&stop), Arc::clone(&reads));
        pollers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                store.stats(&"many".parse::<Queues>().unwrap()).await.unwrap();
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let (mut largest, large) = (0, [large()]);
    for _ in 0..WRITES {
        store.enqueue(&large).await.unwrap();
        largest = largest.max(log_of(&directory.file()));
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = pollers.join_next().await {
        done.unwrap();
    }
    assert!(largest < BOUND, "the log had {} MiB", largest >> 20);
    assert!(reads.load(Ordering::Relaxed) > 4, "nothing was read meanwhile");
}

/// A transaction that only reads can last as long as its user likes: the log is kept for it, and the store goes on. Once it has ended, the log
/// is cut back.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_transaction_of_the_users_stops_nothing() {
    let (store, directory) = crate::support::fresh_store().await;
    let (all, large, small) = (Queues::all(), [large()], [NewJob::builder("q", "k").build().unwrap()]);
    let mut user = crate::support::plain(&directory.file());
    user.batch_execute("BEGIN; SELECT count(*) FROM job_queue").unwrap();
    for _ in 0..80 {
        store.enqueue(&large).await.unwrap();
        store.stats(&all).await.unwrap();
    }
    assert!(log_of(&directory.file()) > 32 << 20, "a log that somebody reads from was cut back");
    user.batch_execute("ROLLBACK").unwrap();
    let mut writes = 0;
    while log_of(&directory.file()) > 16 << 20 {
        store.enqueue(&small).await.unwrap();
        writes += 1;
        assert!(writes < 100_000, "the log stays long");
    }
}
