//! Ids that come back: after a switch-over by logical replication the sequence starts anew, and live jobs get the ids of finished ones. One
//! such job blocks nothing, and nothing of the history is lost.

use diesel_async::{AnsiTransactionManager, SimpleAsyncConnection, TransactionManager};
use leasehold_core::{
    BatchSize, Dequeue, HistoryFilter, Intervention, Job, NewJob, Outcome, Redrive, Store, TxStore, Verdict,
};
use leasehold_postgres::{PgStore, Schema};

/// A store whose first jobs are in the history, those with even ids as dead letters, and whose sequence starts anew.
async fn switched_over(finished: usize) -> (PgStore, Schema) {
    let (schema, url) = (crate::support::fresh_schema(), crate::support::url("LEASEHOLD_TEST_POSTGRES_URL"));
    let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    enqueue(&store, finished).await;
    let verdicts: Vec<_> = claim(&store, finished)
        .await
        .iter()
        .map(|job| {
            let is_dead = job.id.get() % 2 == 0;
            (job.receipt(), if is_dead { Verdict::dead("old") } else { Verdict::done() })
        })
        .collect();
    assert!(store.settle(&verdicts).await.unwrap().iter().all(|outcome| !outcome.is_lost()));
    run(&store, &format!("ALTER TABLE {schema}.job_queue ALTER COLUMN id RESTART WITH 1")).await;
    (store, schema)
}

async fn enqueue(store: &PgStore, count: usize) {
    let jobs: Vec<_> = (0..count).map(|_| NewJob::builder("q", "k").build().unwrap()).collect();
    store.enqueue(&jobs).await.unwrap();
}

async fn claim(store: &PgStore, count: usize) -> Vec<Job> {
    let request = Dequeue::new("q", "w").unwrap().limit(count as u32).unwrap();
    let jobs = store.dequeue(&request).await.unwrap();
    assert_eq!(jobs.len(), count);
    jobs
}

async fn run(store: &PgStore, text: &str) {
    store.pool().get().await.unwrap().batch_execute(text).await.unwrap();
}

/// How many finished jobs there are, and how many of them are dead letters.
async fn finished(store: &PgStore) -> (usize, usize) {
    let history = store.history(&HistoryFilter::default()).await.unwrap().items;
    let dead = history.iter().filter(|job| matches!(job.outcome, Outcome::DeadLetter { .. })).count();
    (history.len(), dead)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_counts_and_the_history_keeps_both() {
    let (store, _schema) = switched_over(4).await;
    enqueue(&store, 3).await;
    let jobs = claim(&store, 3).await;
    assert_eq!(jobs[0].id.get(), 1, "the id came back");
    for batch in [&jobs[..1], &jobs[1..]] {
        let verdicts: Vec<_> = batch.iter().map(|job| (job.receipt(), Verdict::done())).collect();
        assert!(store.settle(&verdicts).await.unwrap().iter().all(|outcome| !outcome.is_lost()));
    }
    assert_eq!(finished(&store).await, (7, 2));
    // No id comes back from now on.
    enqueue(&store, 1).await;
    assert!(claim(&store, 1).await[0].id.get() > 1_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reclaim_stops_at_no_id() {
    let (store, schema) = switched_over(2).await;
    enqueue(&store, 3).await;
    claim(&store, 3).await;
    run(
        &store,
        &format!(
            "UPDATE {schema}.job_queue SET lease_until = now() - interval '1 s',
                 attempts = CASE WHEN id = 1 THEN max_attempts ELSE attempts END"
        ),
    )
    .await;
    assert_eq!(store.reclaim(BatchSize::new(100).unwrap()).await.unwrap().len(), 3);
    assert_eq!(finished(&store).await, (3, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_can_be_run_again() {
    let (store, _schema) = switched_over(1).await;
    enqueue(&store, 1).await;
    let job = &claim(&store, 1).await[0];
    let mut conn = store.pool().get().await.unwrap();
    AnsiTransactionManager::begin_transaction(&mut *conn).await.unwrap();
    let error = store.settle_in(&mut conn, &job.receipt(), Verdict::done()).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    AnsiTransactionManager::rollback_transaction(&mut *conn).await.unwrap();
    AnsiTransactionManager::begin_transaction(&mut *conn).await.unwrap();
    let _settled: leasehold_core::Settled =
        store.settle_in(&mut conn, &job.receipt(), Verdict::done()).await.unwrap();
    AnsiTransactionManager::commit_transaction(&mut *conn).await.unwrap();
    assert_eq!(finished(&store).await, (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_can_discard_and_redrive() {
    let (store, _schema) = switched_over(4).await;
    enqueue(&store, 3).await;
    let id = store.jobs(&Default::default()).await.unwrap().items[0].id;
    store.intervene(id, &Intervention::Discard { reason: leasehold_core::Json::null() }).await.unwrap();
    assert_eq!(finished(&store).await, (5, 2));
    let redriven = store.redrive(&Redrive::all(BatchSize::new(10).unwrap())).await.unwrap();
    assert_eq!(redriven.jobs.len(), 2);
}

/// Ids of live jobs come back, too, if the sequence is set back while they are there.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_of_a_live_job_is_not_given_to_another() {
    let (store, schema) = switched_over(1).await;
    enqueue(&store, 30).await;
    run(&store, &format!("ALTER TABLE {schema}.job_queue ALTER COLUMN id RESTART WITH 1")).await;
    enqueue(&store, 1).await;
    enqueue(&store, 30).await;
    assert_eq!(claim(&store, 61).await.len(), 61);
}

/// `count_again()`, which the guide says to call after a switch-over, moves the sequence on.
#[tokio::test(flavor = "multi_thread")]
async fn counting_again_moves_the_ids_on() {
    let (store, schema) = switched_over(3).await;
    run(&store, &format!("SELECT {schema}.count_again()")).await;
    enqueue(&store, 1).await;
    assert!(claim(&store, 1).await[0].id.get() > 3);
}
