//! Business rows and the queue, in one transaction of the user's: both are there, or neither.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

use diesel::connection::SimpleConnection;
use diesel::sql_types::BigInt;
use diesel::{Connection, RunQueryDsl, SqliteConnection};
use futures_util::FutureExt;
use leasehold_core::{Dequeue, Job, Json, NewJob, Record, Store, StoreError, TxStore, Verdict};
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

async fn scene() -> (SqliteStore, SqliteConnection, support::Directory) {
    let (store, directory) = support::fresh_store().await;
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
            let _settled = store.ack_in(conn, &job.receipt(), Json::null()).now_or_never().unwrap()?;
            Ok(())
        })
    });
    assert!(matches!(&failed, Err(TxError::Store(StoreError::Unavailable { .. }))), "{failed:?}");
    handle(&store, &mut conn, &job).unwrap();
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
