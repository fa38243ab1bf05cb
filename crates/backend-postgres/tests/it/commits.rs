//! What depends on when a transaction commits.

use diesel::sql_types::BigInt;
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection,
    TransactionManager,
};
use leasehold_core::{Dequeue, JobId, Json, NewJob, QueueOrder, QueuePolicy, Store, TxStore};
use leasehold_postgres::{PgStore, Schema, WakeupMode};
use leasehold_servers::{Postgres, PostgresVersion};

fn job() -> NewJob {
    NewJob::builder("q", "k").build().unwrap()
}

async fn begin(url: &str) -> AsyncPgConnection {
    let mut conn = AsyncPgConnection::establish(url).await.unwrap();
    AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
    conn
}

/// The id of the job that is leased next.
async fn next(store: &PgStore) -> Option<JobId> {
    let job = store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().pop()?;
    drop(store.ack(&job.receipt(), Json::null()).await.unwrap());
    Some(job.id)
}

/// P4: a Fifo queue does not wait for a job whose transaction is open, though its id is the smallest.
#[tokio::test(flavor = "multi_thread")]
async fn a_fifo_queue_goes_by_the_ids_of_what_is_committed() {
    let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let store = crate::support::fresh_store(&url).await;
    let fifo = QueuePolicy { order: Some(QueueOrder::Fifo), ..QueuePolicy::default() };
    store.set_policy(&"q".parse().unwrap(), &fifo).await.unwrap();
    let mut conn = begin(&url).await;
    let first = store.enqueue_in(&mut conn, &[job()]).await.unwrap()[0].id;
    let later = store.enqueue(&[job(), job()]).await.unwrap();
    assert!(first < later[0].id);
    assert_eq!(next(&store).await, Some(later[0].id));
    AnsiTransactionManager::commit_transaction(&mut conn).await.unwrap();
    assert_eq!(next(&store).await, Some(first));
    assert_eq!(next(&store).await, Some(later[1].id));
}

/// How many transactions are prepared.
async fn prepared(conn: &mut AsyncPgConnection) -> i64 {
    #[derive(diesel::QueryableByName)]
    struct Count {
        #[diesel(sql_type = BigInt)]
        count: i64,
    }
    let asked = diesel::sql_query("SELECT count(*) FROM pg_prepared_xacts");
    asked.get_result::<Count>(conn).await.unwrap().count
}

/// Two-phase commit: a transaction with a NOTIFY cannot be prepared, one of a store without them can.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_without_notifications_can_be_prepared() {
    let start = || Postgres::start(PostgresVersion::V15, &[("max_prepared_transactions", "5")]).unwrap();
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    let (url, builder) = (server.url(), PgStore::builder().schema(Schema::default()));
    let notifying = builder.clone().events(true).connect(&url).await.unwrap();
    let local = builder.events(true).wakeups(WakeupMode::Local).connect(&url).await.unwrap();
    notifying.migrate().await.unwrap();
    let mut admin = AsyncPgConnection::establish(&url).await.unwrap();

    let mut conn = begin(&url).await;
    notifying.enqueue_in(&mut conn, &[job()]).await.unwrap();
    let refused = conn.batch_execute("PREPARE TRANSACTION 'notifying'").await.unwrap_err();
    assert!(refused.to_string().contains("LISTEN, UNLISTEN, or NOTIFY"), "{refused}");
    assert_eq!(prepared(&mut admin).await, 0);

    notifying.enqueue(&[job()]).await.unwrap();
    let held = notifying.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().remove(0);
    let mut conn = begin(&url).await;
    let enqueued = local.enqueue_in(&mut conn, &[job()]).await.unwrap()[0].id;
    drop(local.ack_in(&mut conn, &held.receipt(), Json::null()).await.unwrap());
    conn.batch_execute("PREPARE TRANSACTION 'local'").await.unwrap();
    drop(conn);
    assert_eq!(prepared(&mut admin).await, 1);
    assert_eq!(next(&notifying).await, None);
    admin.batch_execute("COMMIT PREPARED 'local'").await.unwrap();
    assert_eq!(next(&notifying).await, Some(enqueued));
    let record = notifying.get(held.id).await.unwrap().unwrap();
    assert!(matches!(record, leasehold_core::Record::Finished(_)), "{record:?}");
}
