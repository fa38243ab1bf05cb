//! Business rows and the queue, in one transaction of the user's: both are there, or neither.

use std::time::Duration;

use diesel::connection::{AnsiTransactionManager, SimpleConnection, TransactionManager};
use diesel::sql_types::BigInt;
use diesel::{Connection, RunQueryDsl, SqliteConnection};
use futures_util::FutureExt;
use leasehold_core::{
    Dequeue, HeartbeatOutcome, Job, Json, LeaseFor, NewJob, Record, Store, StoreError, TxStore, Verdict,
};
use leasehold_sqlite::{SqliteStore, TxError, transaction};

#[derive(diesel::QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    number: i64,
}

fn orders(conn: &mut SqliteConnection) -> i64 {
    let count = diesel::sql_query("SELECT count(*) AS number FROM orders");
    count.get_result::<Number>(conn).unwrap().number
}

/// What a handler does: its own row, a job that follows, and the verdict.
fn handle(store: &SqliteStore, conn: &mut SqliteConnection, job: &Job) -> Result<(), TxError> {
    conn.immediate_transaction(|conn| {
        diesel::sql_query("INSERT INTO orders VALUES (7)").execute(conn)?;
        let next = [NewJob::builder("next", "k").build().unwrap()];
        store.enqueue_in(conn, &next).now_or_never().unwrap()?;
        let _settled = store.ack_in(conn, &job.receipt(), Json::null()).now_or_never().unwrap()?;
        Ok(())
    })
}

async fn leased(store: &SqliteStore) -> Job {
    store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();
    store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().remove(0)
}

async fn scene() -> (SqliteStore, SqliteConnection, crate::support::Directory) {
    let (store, directory) = crate::support::fresh_store().await;
    let mut conn = store.connection().await.unwrap();
    conn.batch_execute("CREATE TABLE orders (id INTEGER NOT NULL)").unwrap();
    (store, conn, directory)
}

async fn waiting(store: &SqliteStore) -> u64 {
    store.stats(&"next".parse().unwrap()).await.unwrap()[0].live()
}

#[tokio::test(flavor = "multi_thread")]
async fn they_commit_together() {
    let (store, mut conn, _directory) = scene().await;
    let job = leased(&store).await;
    handle(&store, &mut conn, &job).unwrap();
    assert_eq!((orders(&mut conn), waiting(&store).await), (1, 1));
    assert!(matches!(store.get(job.id).await.unwrap(), Some(Record::Finished(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn they_roll_back_together_when_the_lease_is_lost() {
    let (store, mut conn, _directory) = scene().await;
    let job = leased(&store).await;
    store.settle(&[(job.receipt(), Verdict::release())]).await.unwrap();
    let error = handle(&store, &mut conn, &job).unwrap_err();
    assert!(error.is_lease_lost(), "{error}");
    assert_eq!((orders(&mut conn), waiting(&store).await), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn they_roll_back_together_when_the_business_fails() {
    let (store, mut conn, _directory) = scene().await;
    let job = leased(&store).await;
    let failed: Result<(), TxError> = conn.transaction(|conn| {
        let _settled = store.ack_in(conn, &job.receipt(), Json::null()).now_or_never().unwrap()?;
        diesel::sql_query("INSERT INTO orders VALUES (NULL)").execute(conn)?;
        Ok(())
    });
    assert!(matches!(failed, Err(TxError::Database(_))), "{failed:?}");
    assert!(matches!(store.get(job.id).await.unwrap(), Some(Record::Live(live)) if live == job));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_begin_is_refused() {
    let (store, mut conn, _directory) = scene().await;
    let job = leased(&store).await;
    conn.batch_execute("BEGIN IMMEDIATE").unwrap();
    let error = store.ack_in(&mut conn, &job.receipt(), Json::null()).await.unwrap_err();
    assert!(matches!(error, StoreError::NoTransaction { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_too_old_is_unavailable() {
    let (store, mut conn, _directory) = scene().await;
    let job = leased(&store).await;
    let site = store.clone();
    let runtime = tokio::runtime::Handle::current();
    let failed: Result<(), TxError> = tokio::task::block_in_place(|| {
        conn.transaction(|conn| {
            assert_eq!(orders(conn), 0); // The snapshot is taken here,
            runtime.block_on(leased(&site)); // and somebody else writes here.
            let _settled = runtime.block_on(store.ack_in(conn, &job.receipt(), Json::null()))?;
            Ok(())
        })
    });
    assert!(matches!(&failed, Err(TxError::Store(StoreError::Unavailable { .. }))), "{failed:?}");
    handle(&store, &mut conn, &job).unwrap();
}

/// A transaction that begins with a read takes the lock with `lock_in`: a heartbeat can wait, but cannot come between.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_keeps_the_snapshot_new() {
    let (store, mut conn, _directory) = scene().await;
    let job = leased(&store).await;
    AnsiTransactionManager::begin_transaction(&mut conn).unwrap();
    store.lock_in(&mut conn, job.receipt()).await.unwrap();
    assert_eq!(orders(&mut conn), 0);
    let (other, receipt) = (store.clone(), job.receipt());
    let minute = LeaseFor::new(Duration::from_secs(60)).unwrap();
    let beat = tokio::spawn(async move { other.heartbeat(&[receipt], minute).await });
    let _settled = store.ack_in(&mut conn, &job.receipt(), Json::null()).await.unwrap();
    AnsiTransactionManager::commit_transaction(&mut conn).unwrap();
    assert_eq!(beat.await.unwrap().unwrap(), [HeartbeatOutcome::Lost]);
    assert!(matches!(store.get(job.id).await.unwrap(), Some(Record::Finished(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_in_memory_has_no_second_connection() {
    let store = SqliteStore::connect(":memory:").await.unwrap();
    store.migrate().await.unwrap();
    assert!(!store.capabilities().transactions);
    assert!(matches!(store.connection().await, Err(StoreError::Unsupported { .. })));
    let (_, mut conn, _directory) = scene().await;
    let once = leasehold_core::IdempotencyKey::new("once").unwrap();
    let refused = store.once_in(&mut conn, &once).await;
    assert!(matches!(refused, Err(StoreError::Unsupported { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn async_work_is_one_transaction() {
    let (store, mut conn, _directory) = scene().await;
    let job = leased(&store).await;
    let pay = async |conn: &mut SqliteConnection| {
        diesel::sql_query("INSERT INTO orders VALUES (7)").execute(conn)?;
        Ok::<_, TxError>(store.ack_in(conn, &job.receipt(), Json::null()).await?)
    };
    let dropped = transaction(&mut conn, async |conn| {
        let _settled = pay(conn).await?;
        tokio::task::yield_now().await;
        Ok::<_, TxError>(())
    });
    assert!(dropped.now_or_never().is_none()); // Dropped in the middle.
    assert_eq!(orders(&mut conn), 0);
    let _settled = transaction(&mut conn, &pay).await.unwrap();
    assert_eq!(orders(&mut conn), 1);
    let again = transaction(&mut conn, &pay).await.unwrap_err();
    assert!(again.is_lease_lost(), "{again}");
    assert_eq!(orders(&mut conn), 1);
}

/// What a handler may do inside of its transaction: anything, an `await` included.
async fn waits_inside(how: &str, store: &SqliteStore) {
    match how {
        "yield" => tokio::task::yield_now().await,
        "store" => drop(store.stats(&"q".parse().unwrap()).await.unwrap()),
        _ => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
    }
}

/// As many transactions as threads would block every thread, if waiting for the lock did; nothing could end the first one.
async fn more_transactions_than_threads(how: &'static str) {
    let (store, mut conn, _directory) = scene().await;
    let mut tasks = tokio::task::JoinSet::new();
    let start = std::time::Instant::now();
    for _ in 0..5 {
        let store = store.clone();
        let mut conn = store.connection().await.unwrap();
        tasks.spawn(async move {
            transaction(&mut conn, async |conn| {
                diesel::sql_query("INSERT INTO orders VALUES (7)").execute(conn)?;
                waits_inside(how, &store).await;
                store.enqueue_in(conn, &[NewJob::builder("next", "k").build().unwrap()]).await?;
                Ok::<_, TxError>(())
            })
            .await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    assert_eq!((orders(&mut conn), waiting(&store).await), (5, 5));
    // The timeout of a lock is 10 s: whoever blocks a thread for it needs all of them.
    assert!(start.elapsed() < std::time::Duration::from_secs(8), "{how}: {:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_await_inside_of_a_transaction_stops_no_thread() {
    for how in ["yield", "store", "sleep"] {
        more_transactions_than_threads(how).await;
    }
}

#[tokio::test]
async fn an_await_inside_of_a_transaction_does_not_stop_the_only_thread() {
    for how in ["yield", "store", "sleep"] {
        more_transactions_than_threads(how).await;
    }
}

/// The lock is another connection's for longer than the timeout: the transaction fails by then, the runtime goes on meanwhile,
/// and the connection has its own timeout back.
#[tokio::test]
async fn a_lock_that_is_never_free_is_given_up_and_other_tasks_run_meanwhile() {
    let (store, mut holder, _directory) = scene().await;
    let mut conn = store.connection().await.unwrap();
    conn.batch_execute("PRAGMA busy_timeout = 300").unwrap();
    holder.batch_execute("BEGIN IMMEDIATE").unwrap();
    let ticks = tokio::spawn(async {
        let mut ticks = 0;
        loop {
            tokio::task::yield_now().await;
            ticks += 1;
            if ticks == 1000 {
                return;
            }
        }
    });
    let failed: Result<(), TxError> = transaction(&mut conn, async |_| Ok(())).await;
    assert!(failed.is_err());
    assert!(ticks.is_finished(), "the other task did not run");
    let timeout: i64 = diesel::sql_query("SELECT timeout AS number FROM pragma_busy_timeout")
        .get_result::<Number>(&mut conn)
        .unwrap()
        .number;
    assert_eq!(timeout, 300);
    holder.batch_execute("ROLLBACK").unwrap();
    transaction(&mut conn, async |_| Ok::<_, TxError>(())).await.unwrap();
}
