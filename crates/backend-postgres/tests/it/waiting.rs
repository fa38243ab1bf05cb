//! What the server goes on doing for the store: nothing for a future that was dropped, and no wait for a lock without end.

use std::time::{Duration, Instant};

use diesel::sql_types::BigInt;
use diesel_async::{
    AnsiTransactionManager, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager,
};
use futures_util::FutureExt;
use leasehold_core::{BatchSize, Dequeue, Job, Json, NewJob, Prune, SettleOutcome, Store, Verdict};
use leasehold_postgres::{PgStore, Schema, WakeupMode};

/// Much longer than anything here takes: a test that is wrong fails, and does not hang.
const DEADLINE: Duration = Duration::from_secs(30);

/// A store, some jobs that it has leased, and a connection beside it, directly to the server.
struct Scene {
    store: PgStore,
    schema: Schema,
    jobs: Vec<Job>,
    beside: AsyncPgConnection,
}

impl Scene {
    async fn new(variable: &str, wakeups: WakeupMode) -> Self {
        let schema = crate::support::fresh_schema();
        let builder = PgStore::builder().schema(schema.clone()).wakeups(wakeups);
        let store = builder.connect(&crate::support::url(variable)).await.unwrap();
        store.migrate().await.unwrap();
        let new: Vec<NewJob> = (0..5).map(|_| NewJob::builder("q", "k").build().unwrap()).collect();
        store.enqueue(&new).await.unwrap();
        let jobs = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(5).unwrap()).await.unwrap();
        let direct = crate::support::fresh_store(&crate::support::url("LEASEHOLD_TEST_POSTGRES_URL")).await;
        let beside =
            diesel_async::pooled_connection::deadpool::Object::take(direct.pool().get().await.unwrap());
        Self { store, schema, jobs, beside }
    }

    /// Opens a transaction beside the store that has the first job locked.
    async fn lock(&mut self) {
        AnsiTransactionManager::begin_transaction(&mut self.beside).await.unwrap();
        let lock = format!("SELECT FROM {}.job_queue WHERE id = {} FOR UPDATE", self.schema, self.jobs[0].id);
        self.beside.batch_execute(&lock).await.unwrap();
    }

    /// How many other sessions are running a statement on the jobs of this store.
    async fn running(&mut self) -> i64 {
        #[derive(diesel::QueryableByName)]
        struct Sessions {
            #[diesel(sql_type = BigInt)]
            count: i64,
        }
        let schema = &self.schema;
        let sessions = format!(
            "SELECT count(*) FROM pg_stat_activity
             WHERE state = 'active' AND pid <> pg_backend_pid() AND query LIKE '%\"{schema}\".%'"
        );
        diesel::sql_query(sessions).get_result::<Sessions>(&mut self.beside).await.unwrap().count
    }

    async fn wait_until_running(&mut self, expected: i64) {
        let start = Instant::now();
        while self.running().await != expected {
            assert!(start.elapsed() < DEADLINE, "not {expected} sessions are running a statement");
        }
    }
}

/// A statement that takes a minute is under way, and its future is dropped.
async fn a_dropped_statement_is_cancelled(variable: &str, wakeups: WakeupMode) {
    let mut scene = Scene::new(variable, wakeups).await;
    let schema = scene.schema.clone();
    let slow = format!(
        "CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep(60); RETURN OLD; END $$;
         CREATE TRIGGER slow BEFORE DELETE ON {schema}.job_queue FOR EACH ROW EXECUTE FUNCTION {schema}.slow()"
    );
    scene.beside.batch_execute(&slow).await.unwrap();
    let (store, receipt) = (scene.store.clone(), scene.jobs[0].receipt());
    let mut settling = async move { store.settle(&[(receipt, Verdict::done())]).await }.boxed();
    tokio::select! {
        answer = &mut settling => panic!("the statement is not slow: {answer:?}"),
        () = scene.wait_until_running(1) => {}
    }
    drop(settling);
    scene.wait_until_running(0).await;
    scene.beside.batch_execute(&format!("DROP TRIGGER slow ON {schema}.job_queue")).await.unwrap();
    // Nothing was settled, and the cancellation hits no other statement.
    for job in &scene.jobs {
        let outcomes = scene.store.settle(&[(job.receipt(), Verdict::done())]).await.unwrap();
        assert!(matches!(outcomes[..], [SettleOutcome::Settled(_)]), "{outcomes:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_future_leaves_no_statement_on_the_server() {
    a_dropped_statement_is_cancelled("LEASEHOLD_TEST_POSTGRES_URL", WakeupMode::Notify).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_future_leaves_no_statement_behind_pgbouncer() {
    a_dropped_statement_is_cancelled("LEASEHOLD_TEST_PGBOUNCER_URL", WakeupMode::Local).await;
}

/// Nine of ten futures are dropped at once, at any moment; the statements of the others are not cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_hits_no_other_statement() {
    let scene = Scene::new("LEASEHOLD_TEST_POSTGRES_URL", WakeupMode::Notify).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        let store = scene.store.clone();
        tasks.spawn(async move {
            for round in 0..40 {
                let polls = (task + round) % 10;
                if polls < 9 {
                    let queues = "q".try_into().unwrap();
                    let mut dropped = store.next_available_at(&queues);
                    for _ in 0..polls {
                        if (&mut dropped).now_or_never().is_some() {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                } else {
                    store.now().await.unwrap();
                    store.enqueue(&[NewJob::builder("other", "k").build().unwrap()]).await.unwrap();
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

/// The second line: what has to wait for a lock gives up, is not tried again at once, and can be asked again.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_lock_ends() {
    let mut scene = Scene::new("LEASEHOLD_TEST_POSTGRES_URL", WakeupMode::Notify).await;
    scene.lock().await;
    let (locked, start) = (scene.jobs[0].id, Instant::now());
    let waiting = tokio::time::timeout(DEADLINE, scene.store.discard(locked, Json::null()));
    let error = waiting.await.expect("it waits for the lock without end").unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(start.elapsed() < Duration::from_secs(15), "tried again: {:?}", start.elapsed());
    AnsiTransactionManager::rollback_transaction(&mut scene.beside).await.unwrap();
    scene.store.discard(locked, Json::null()).await.unwrap();
}

/// The lock of any session counts, not only that of a transaction that settles.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_somebody_looks_at_is_pending() {
    let mut scene = Scene::new("LEASEHOLD_TEST_POSTGRES_URL", WakeupMode::Notify).await;
    scene.lock().await;
    let items: Vec<_> = scene.jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect();
    let settling = tokio::time::timeout(DEADLINE, scene.store.settle(&items));
    let outcomes = settling.await.expect("it waits for the lock").unwrap();
    let pending: Vec<bool> = outcomes.iter().map(SettleOutcome::is_pending).collect();
    assert_eq!(pending, [true, false, false, false, false]);
    // A second item with the same receipt has not counted either.
    let outcomes = scene.store.settle(&[items[0].clone(), items[0].clone()]).await.unwrap();
    assert!(outcomes.iter().all(SettleOutcome::is_pending), "{outcomes:?}");
    AnsiTransactionManager::rollback_transaction(&mut scene.beside).await.unwrap();
    let outcomes = scene.store.settle(&items).await.unwrap();
    let settled: Vec<bool> =
        outcomes.iter().map(|outcome| matches!(outcome, SettleOutcome::Settled(_))).collect();
    assert_eq!(settled, [true, false, false, false, false]);
}

/// A prune leaves a key that an open transaction has locked for the next call, and forgets the others at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_prune_waits_for_no_key_that_is_locked() {
    let mut scene = Scene::new("LEASEHOLD_TEST_POSTGRES_URL", WakeupMode::Local).await;
    let schema = scene.schema.clone();
    let keys = format!(
        "INSERT INTO {schema}.job_idempotency (key, kept_until) SELECT n, now() - interval '1 hour' FROM generate_series(1, 3) n"
    );
    scene.beside.batch_execute(&keys).await.unwrap();
    AnsiTransactionManager::begin_transaction(&mut scene.beside).await.unwrap();
    let lock = format!("SELECT FROM {schema}.job_idempotency WHERE key = '2' FOR UPDATE");
    scene.beside.batch_execute(&lock).await.unwrap();
    let prune = Prune::by_retention(BatchSize::MAX);
    let pruned = tokio::time::timeout(DEADLINE, scene.store.prune(&prune)).await.unwrap().unwrap();
    assert_eq!(pruned, 2);
    AnsiTransactionManager::rollback_transaction(&mut scene.beside).await.unwrap();
    assert_eq!(scene.store.prune(&prune).await.unwrap(), 1);
}
