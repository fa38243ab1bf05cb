//! Transactions above READ COMMITTED, beside the heartbeats of the worker.

use std::error::Error;
use std::time::Duration;

use diesel_async::{AnsiTransactionManager, AsyncMysqlConnection, SimpleAsyncConnection, TransactionManager};
use leasehold_core::{Dequeue, HeartbeatOutcome, Job, Json, LeaseFor, NewJob, Store, StoreError, TxStore};
use leasehold_mysql::MysqlStore;

use crate::support::{Fresh, MARIADB, plain};

const LEVELS: [&str; 2] =
    ["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"];

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

async fn leased(store: &MysqlStore) -> Job {
    store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();
    store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().remove(0)
}

async fn heartbeat(store: &MysqlStore, job: &Job) -> HeartbeatOutcome {
    let minute = LeaseFor::new(Duration::from_secs(60)).unwrap();
    store.heartbeat(&[job.receipt()], minute).await.unwrap().remove(0)
}

/// A transaction on a connection of the user's, with `innodb_snapshot_isolation`, which is the default from MariaDB 11.6 on.
async fn begin(fresh: &Fresh, level: &str) -> AsyncMysqlConnection {
    let mut conn = plain(&fresh.url).await;
    conn.batch_execute("SET SESSION innodb_snapshot_isolation = ON").await.unwrap();
    conn.batch_execute(level).await.unwrap();
    AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
    conn
}

/// MariaDB refuses to write a row that was changed after the snapshot, and the error says what to do. With lock_in as the first
/// statement the job is settled.
#[tokio::test]
async fn an_old_snapshot_is_refused_with_advice_and_lock_in_prevents_it() {
    let fresh = Fresh::on(MARIADB).await;
    let store = fresh.store().await;
    let read = "SELECT COUNT(*) FROM job_history";
    for level in LEVELS {
        let job = leased(&store).await;
        let mut tx = begin(&fresh, level).await;
        tx.batch_execute(read).await.unwrap();
        assert!(matches!(heartbeat(&store, &job).await, HeartbeatOutcome::Extended { .. }));
        let refused = store.ack_in(&mut tx, &job.receipt(), Json::null()).await.unwrap_err();
        assert!(matches!(refused, StoreError::Unavailable { operation: "settle_in", .. }), "{refused:?}");
        assert!(words(&refused).contains("call lock_in as the first statement"), "{}", words(&refused));
        drop(tx);

        let mut tx = begin(&fresh, level).await;
        store.lock_in(&mut tx, job.receipt()).await.unwrap();
        tx.batch_execute(read).await.unwrap();
        for _ in 0..3 {
            assert_eq!(heartbeat(&store, &job).await, HeartbeatOutcome::Pending);
        }
        let _settled = store.ack_in(&mut tx, &job.receipt(), Json::null()).await.unwrap();
        AnsiTransactionManager::commit_transaction(&mut tx).await.unwrap();
    }
    fresh.drop().await;
}
