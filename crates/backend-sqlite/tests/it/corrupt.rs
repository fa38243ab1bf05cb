//! Rows that this version did not write: they block nothing.

use diesel::connection::SimpleConnection;
use leasehold_core::{
    BatchSize, Dequeue, HistoryFilter, Job, JobFilter, JobId, NewJob, Prune, Redrive, Store, StoreError,
    Verdict,
};
use leasehold_sqlite::SqliteStore;

/// Ways to spoil a row that no constraint refuses.
const SPOILS: [&str; 7] = [
    "headers = '[1]'",
    "kind = 'a' || char(10) || 'b'",
    "created_at = 9223372036854775807",
    "available_at = -9223372036854775808",
    "unique_key = printf('%0300d', 1)",
    "payload = '{'",
    "payload = CAST(x'22ff22' AS TEXT)",
];

/// Spoils one row for each way to do it, with a good one before and after it.
fn spoiled(file: &str, table: &str) -> Vec<i64> {
    let mut conn = crate::support::plain(file);
    let mut bad = Vec::new();
    for (number, spoil) in SPOILS.iter().enumerate() {
        let id = 2 * number + 2;
        let spoil = match table {
            "job_history" => spoil.replace("available_at", "finished_at"),
            _ => (*spoil).to_owned(),
        };
        conn.batch_execute(&format!("UPDATE {table} SET {spoil} WHERE id = {id}")).unwrap();
        bad.push(id as i64);
    }
    bad
}

async fn enqueue(store: &SqliteStore) {
    let jobs: Vec<_> =
        (0..2 * SPOILS.len() + 1).map(|_| NewJob::builder("q", "k").build().unwrap()).collect();
    store.enqueue(&jobs).await.unwrap();
}

fn good(bad: &[i64]) -> Vec<i64> {
    (1..=2 * SPOILS.len() as i64 + 1).filter(|id| !bad.contains(id)).collect()
}

fn ids(jobs: &[Job]) -> Vec<i64> {
    let mut ids: Vec<i64> = jobs.iter().map(|job| job.id.get()).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn live_rows_that_nobody_understands() {
    let (store, directory) = crate::support::fresh_store().await;
    enqueue(&store).await;
    let bad = spoiled(&directory.file(), "job_queue");
    let all = BatchSize::new(100).unwrap();
    assert_eq!(ids(&store.jobs(&JobFilter::default()).await.unwrap().items), good(&bad));
    for id in &bad {
        let error = store.get(JobId::new(*id)).await.unwrap_err();
        assert!(matches!(&error, StoreError::Corrupt { what } if what.contains(&id.to_string())), "{error}");
    }
    let jobs = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(100).unwrap()).await.unwrap();
    assert_eq!(ids(&jobs), good(&bad));
    let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect();
    assert!(store.settle(&items).await.unwrap().iter().all(|outcome| !outcome.is_lost()));
    // What nobody could be told of was leased to nobody: it is taken back as often as it may be tried, and then dead.
    for _ in 0..10 {
        let pass = "UPDATE job_queue SET lease_until = 1 WHERE lease_until IS NOT NULL";
        crate::support::plain(&directory.file()).batch_execute(pass).unwrap();
        store.reclaim(all).await.unwrap();
        store.dequeue(&Dequeue::new("q", "w").unwrap().limit(100).unwrap()).await.unwrap();
    }
    let stats = store.stats(&"q".parse().unwrap()).await.unwrap();
    assert_eq!((stats[0].live(), stats[0].dead_letters), (0, SPOILS.len() as u64));
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_rows_that_nobody_understands() {
    let (store, directory) = crate::support::fresh_store().await;
    enqueue(&store).await;
    let jobs = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(100).unwrap()).await.unwrap();
    let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::dead("no"))).collect();
    store.settle(&items).await.unwrap();
    let bad = spoiled(&directory.file(), "job_history");
    let page = store.history(&HistoryFilter::default()).await.unwrap();
    let listed: Vec<i64> = page.items.iter().map(|job| job.id.get()).collect();
    assert_eq!(listed, good(&bad));
    let all = BatchSize::new(100).unwrap();
    let some = Redrive { ids: Some(listed.iter().map(|id| JobId::new(*id)).collect()), ..Redrive::all(all) };
    assert_eq!(store.redrive(&some).await.unwrap().jobs.len(), listed.len());
    let prune = Prune::older_than(std::time::Duration::ZERO, all).unwrap();
    assert_eq!(store.prune(&prune).await.unwrap(), bad.len() as u64);
}

/// Queues that nobody can name: their jobs are leased by nobody, and hold up no other queue.
#[tokio::test(flavor = "multi_thread")]
async fn queues_that_nobody_can_name() {
    let (store, directory) = crate::support::fresh_store().await;
    let jobs: Vec<_> = (0..60).map(|_| NewJob::builder("q", "k").build().unwrap()).collect();
    store.enqueue(&jobs).await.unwrap();
    store.enqueue(&[NewJob::builder("qz", "k").build().unwrap()]).await.unwrap();
    let mut conn = crate::support::plain(&directory.file());
    conn.batch_execute(
        "UPDATE job_queue SET queue_name = CAST(x'71' || unhex(printf('%02x', 150 + id)) AS TEXT) WHERE id BETWEEN 2 AND 25;
         UPDATE job_queue SET queue_name = CAST(x'7161ff' AS TEXT) || id WHERE id BETWEEN 26 AND 49;
         UPDATE job_queue SET queue_name = 'q' || char(10) || id WHERE id BETWEEN 50 AND 60",
    )
    .unwrap();
    let everything: leasehold_core::Queues = "q*".parse().unwrap();
    assert!(store.next_available_at(&everything).await.unwrap().is_some());
    assert_eq!(store.stats(&everything).await.unwrap().len(), 2);
    let request = Dequeue::new(everything, "w").unwrap().limit(10).unwrap();
    assert_eq!(ids(&store.dequeue(&request).await.unwrap()), [1, 61]);
    conn.batch_execute("UPDATE job_queue SET lease_until = 1, locked_by = 'w', attempts = 5").unwrap();
    let all = BatchSize::new(100).unwrap();
    assert_eq!(store.reclaim(all).await.unwrap().len(), 2);
    assert_eq!(store.redrive(&Redrive::all(all)).await.unwrap().jobs.len(), 61);
}
