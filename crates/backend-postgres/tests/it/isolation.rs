//! Transactions at REPEATABLE READ and SERIALIZABLE, beside the heartbeats of the worker.

use std::error::Error;
use std::time::Duration;

use diesel::sql_types::Text;
use diesel_async::pooled_connection::deadpool::Object;
use diesel_async::{
    AnsiTransactionManager, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager,
};
use leasehold_conformance::Isolation;
use leasehold_core::{
    BatchSize, Dequeue, HeartbeatOutcome, Job, Json, LeaseFor, NewJob, Store, StoreError, TxStore,
};
use leasehold_postgres::PgStore;

use crate::support::{fresh_schema, set_level, url};

/// The levels at which a transaction has one snapshot.
const SNAPSHOTS: [Isolation; 2] = [Isolation::RepeatableRead, Isolation::Serializable];

/// A store with leased jobs.
async fn leased(count: u32) -> (PgStore, Vec<Job>) {
    let schema = fresh_schema();
    let builder = PgStore::builder().schema(schema.clone());
    let store = builder.connect(&url("LEASEHOLD_TEST_POSTGRES_URL")).await.unwrap();
    store.migrate().await.unwrap();
    let new: Vec<NewJob> = (0..count).map(|_| NewJob::builder("q", "k").build().unwrap()).collect();
    store.enqueue(&new).await.unwrap();
    let jobs = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(count).unwrap()).await.unwrap();
    // Now the planner knows that the table is small.
    let analyze = format!("VACUUM ANALYZE {schema}.job_queue");
    store.pool().get().await.unwrap().batch_execute(&analyze).await.unwrap();
    (store, jobs)
}

async fn begin(store: &PgStore, level: Isolation) -> Object<AsyncPgConnection> {
    let mut conn = store.pool().get().await.unwrap();
    AnsiTransactionManager::begin_transaction(&mut *conn).await.unwrap();
    conn.batch_execute(&set_level(level)).await.unwrap();
    conn
}

async fn heartbeat(store: &PgStore, job: &Job) -> HeartbeatOutcome {
    let minute = LeaseFor::new(Duration::from_secs(60)).unwrap();
    store.heartbeat(&[job.receipt()], minute).await.unwrap().remove(0)
}

/// Whether the planner may scan a table from end to end.
async fn seqscan(tx: &mut AsyncPgConnection) -> String {
    #[derive(diesel::QueryableByName)]
    struct Setting {
        #[diesel(sql_type = Text)]
        enable_seqscan: String,
    }
    diesel::sql_query("SHOW enable_seqscan").get_result::<Setting>(tx).await.unwrap().enable_seqscan
}

/// What an error and its sources say.
fn words(error: &StoreError) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}

/// An old snapshot is refused, and the error says what to do.
#[tokio::test]
async fn an_old_snapshot_is_refused_with_advice() {
    let (store, jobs) = leased(4).await;
    for (level, jobs) in SNAPSHOTS.into_iter().zip(jobs.chunks(2)) {
        let mut tx = begin(&store, level).await;
        tx.batch_execute("SELECT 1").await.unwrap();
        assert!(matches!(heartbeat(&store, &jobs[0]).await, HeartbeatOutcome::Extended { .. }));
        let refused = store.ack_in(&mut tx, &jobs[0].receipt(), Json::null()).await.unwrap_err();
        assert!(matches!(refused, StoreError::Unavailable { operation: "settle_in", .. }), "{refused:?}");
        assert!(words(&refused).contains("call lock_in as the first statement"), "{}", words(&refused));
        AnsiTransactionManager::rollback_transaction(&mut *tx).await.unwrap();

        let mut tx = begin(&store, level).await;
        tx.batch_execute("SELECT 1").await.unwrap();
        heartbeat(&store, &jobs[1]).await;
        let refused = store.lock_in(&mut tx, jobs[1].receipt()).await.unwrap_err();
        assert!(matches!(refused, StoreError::Unavailable { operation: "lock_in", .. }), "{refused:?}");
        assert!(words(&refused).contains("call lock_in as the first statement"), "{}", words(&refused));
        AnsiTransactionManager::rollback_transaction(&mut *tx).await.unwrap();
    }
}

/// Transactions that lock, and settle, one job each do not fail each other, and the planner's setting is the user's afterwards.
#[tokio::test]
async fn transactions_of_different_jobs_do_not_meet() {
    for level in SNAPSHOTS {
        let (store, jobs) = leased(4).await;
        let mut open = Vec::new();
        for job in &jobs {
            let mut tx = begin(&store, level).await;
            let own = if open.len() % 2 == 0 { "on" } else { "off" };
            tx.batch_execute(&format!("SET LOCAL enable_seqscan = {own}")).await.unwrap();
            store.lock_in(&mut tx, job.receipt()).await.unwrap();
            assert_eq!(seqscan(&mut tx).await, own);
            open.push(tx);
        }
        for (tx, job) in open.iter_mut().zip(&jobs) {
            assert_eq!(heartbeat(&store, job).await, HeartbeatOutcome::Pending);
            let _settled = store.ack_in(tx, &job.receipt(), Json::null()).await.unwrap();
        }
        for mut tx in open {
            AnsiTransactionManager::commit_transaction(&mut *tx).await.unwrap();
        }
        assert!(store.reclaim(BatchSize::MAX).await.unwrap().is_empty());
    }
}
