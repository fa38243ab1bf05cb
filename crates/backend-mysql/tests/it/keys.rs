//! Unique keys: callers that want one key hold up nobody else, a key is free however its job has left, and rows of keys do not pile up.

use std::time::Duration;

use diesel::sql_types::BigInt;
use diesel_async::{
    AnsiTransactionManager, AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager,
};
use leasehold_core::{
    BatchSize, Dequeue, Enqueued, NewJob, Prune, Redrive, Result, Store, StoreError, TxStore, Verdict,
};
use leasehold_mysql::MysqlStore;
use tokio::task::JoinHandle;

use crate::support::{BOTH, Fresh, plain};

/// Much longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(60);
/// After so long a caller that waits for a transaction is waiting.
const PATIENCE: Duration = Duration::from_millis(250);

fn keyed(queue: &str, key: &str) -> NewJob {
    NewJob::builder(queue, "k").unique_key(key).build().unwrap()
}

fn unkeyed(queue: &str) -> NewJob {
    NewJob::builder(queue, "k").build().unwrap()
}

async fn count(conn: &mut AsyncMysqlConnection, text: &str) -> i64 {
    #[derive(diesel::QueryableByName)]
    struct Count {
        #[diesel(sql_type = BigInt)]
        count: i64,
    }
    diesel::sql_query(text).get_result::<Count>(conn).await.unwrap().count
}

/// Leases the jobs of a queue, and gives them this verdict.
async fn end(store: &MysqlStore, queue: &str, verdict: &Verdict) {
    let jobs = store.dequeue(&Dequeue::new(queue, "w").unwrap().limit(1000).unwrap()).await.unwrap();
    let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), verdict.clone())).collect();
    store.settle(&items).await.unwrap();
}

/// Who wants a key that an open transaction has taken.
#[derive(Debug, Clone, Copy)]
enum Rival {
    /// `enqueue`.
    Alone,
    /// `enqueue` of two jobs.
    Batch,
    /// `enqueue_in` of a transaction at this level.
    In(&'static str),
}

impl Rival {
    fn start(self, store: &MysqlStore, url: &str, key: &str) -> JoinHandle<Result<Vec<Enqueued>>> {
        let (store, url, key) = (store.clone(), url.to_owned(), key.to_owned());
        tokio::spawn(async move {
            let Self::In(level) = self else {
                let other = format!("{key} of the batch");
                let jobs = match self {
                    Self::Batch => vec![keyed("m", &key), keyed("m", &other)],
                    _ => vec![keyed("m", &key)],
                };
                loop {
                    match store.enqueue(&jobs).await {
                        Err(StoreError::Unavailable { .. }) => {}
                        done => return done,
                    }
                }
            };
            let mut conn = plain(&url).await;
            conn.batch_execute(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await.unwrap();
            AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
            let answer = store.enqueue_in(&mut conn, &[keyed("m", &key)]).await;
            AnsiTransactionManager::commit_transaction(&mut conn).await.unwrap();
            answer
        })
    }
}

const RIVALS: [Rival; 4] =
    [Rival::Alone, Rival::Batch, Rival::In("READ COMMITTED"), Rival::In("REPEATABLE READ")];

/// E13, with twelve rivals for three keys in a process whose pool has ten connections. The keys are new, or were taken by jobs that have ended, or
/// their rows were removed a moment ago.
#[tokio::test(flavor = "multi_thread")]
async fn rivals_for_keys_hold_up_nobody_else() {
    for variable in BOTH {
        let fresh = Fresh::on(variable).await;
        let (store, other) = (fresh.store().await, MysqlStore::connect(&fresh.url).await.unwrap());
        for rival in RIVALS {
            for before in ["new", "ended", "swept"] {
                prepare(&fresh, &store, before).await;
                hold_up_nobody(&fresh, [&store, &other], rival).await;
            }
        }
        fresh.drop().await;
    }
}

const KEYS: [&str; 3] = ["A", "K", "Z"];

/// Empties the queues, but for two dead letters. The keys were never taken, or their jobs have ended, or their rows were removed a moment ago.
async fn prepare(fresh: &Fresh, store: &MysqlStore, before: &str) {
    let mut conn = plain(&fresh.url).await;
    conn.batch_execute("DELETE FROM job_queue; DELETE FROM job_history").await.unwrap();
    if before == "new" {
        conn.batch_execute("DELETE FROM job_unique").await.unwrap();
    }
    store.enqueue(&[unkeyed("dead"), keyed("dead", "K")]).await.unwrap();
    end(store, "dead", &Verdict::dead("no")).await;
    if before != "new" {
        store.enqueue(&KEYS.map(|key| keyed("m", key))).await.unwrap();
        end(store, "m", &Verdict::done()).await;
    }
    if before == "swept" {
        conn.batch_execute("DELETE FROM job_unique WHERE queue_name = 'm'").await.unwrap();
    }
}

async fn hold_up_nobody(fresh: &Fresh, stores: [&MysqlStore; 2], rival: Rival) {
    let store = stores[0];
    let mut holder = plain(&fresh.url).await;
    AnsiTransactionManager::begin_transaction(&mut holder).await.unwrap();
    let held = store.enqueue_in(&mut holder, &KEYS.map(|key| keyed("m", key))).await.unwrap();
    let mut rivals: Vec<_> = (0..12).map(|n| rival.start(store, &fresh.url, KEYS[n % 3])).collect();
    assert!(tokio::time::timeout(PATIENCE, &mut rivals[0]).await.is_err(), "it did not wait");
    for store in stores {
        tokio::time::timeout(DEADLINE, others_go_on(store)).await.unwrap();
    }
    let mut beside = plain(&fresh.url).await;
    AnsiTransactionManager::begin_transaction(&mut beside).await.unwrap();
    let jobs = [unkeyed("m"), keyed("l", "last"), keyed("n", "first")];
    let answer = tokio::time::timeout(DEADLINE, store.enqueue_in(&mut beside, &jobs)).await;
    assert_eq!(answer.unwrap().unwrap().len(), 3);
    AnsiTransactionManager::commit_transaction(&mut beside).await.unwrap();
    assert!(rivals.iter().all(|rival| !rival.is_finished()), "they did not wait: {rival:?}");

    AnsiTransactionManager::commit_transaction(&mut holder).await.unwrap();
    for (n, rival) in rivals.into_iter().enumerate() {
        let answer = rival.await.unwrap().unwrap()[0];
        assert!(answer.deduplicated, "{answer:?}");
        assert_eq!(answer.id, held[n % 3].id);
    }
}

/// What callers do that want none of the keys.
async fn others_go_on(store: &MysqlStore) {
    for jobs in [
        vec![unkeyed("m")],
        vec![unkeyed("m"), unkeyed("m")],
        vec![unkeyed("zz")],
        vec![keyed("a", "K")],
        vec![keyed("l", "zz"), keyed("n", "a")],
        vec![keyed("z", "K"), unkeyed("m")],
    ] {
        assert_eq!(store.enqueue(&jobs).await.unwrap().len(), jobs.len());
    }
    let singles = (0..20).map(|n| {
        let (store, job) = (store.clone(), unkeyed(["m", "other"][n % 2]));
        async move { store.enqueue(&[job]).await }
    });
    for answer in futures_util::future::join_all(singles).await {
        assert_eq!(answer.unwrap().len(), 1);
    }
    store.redrive(&Redrive::all(BatchSize::MAX)).await.unwrap();
    end(store, "dead", &Verdict::dead("no")).await;
}

/// A transaction with an old view believes its view only as far as nothing has changed since: a redrive brings a job back under its old id.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_view_knows_of_a_redrive() {
    for variable in BOTH {
        let fresh = Fresh::on(variable).await;
        let store = fresh.store().await;
        let id = store.enqueue(&[keyed("q", "a")]).await.unwrap()[0].id;
        end(&store, "q", &Verdict::dead("no")).await;
        let mut conn = plain(&fresh.url).await;
        AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
        assert_eq!(count(&mut conn, "SELECT COUNT(*) AS count FROM job_queue").await, 0);
        let redriven = store.redrive(&Redrive::all(BatchSize::MAX)).await.unwrap();
        assert_eq!(redriven.jobs, [id]);
        let answer = store.enqueue_in(&mut conn, &[keyed("q", "a")]).await.unwrap()[0];
        assert!(answer.deduplicated && answer.id == id, "{answer:?}");
        AnsiTransactionManager::rollback_transaction(&mut conn).await.unwrap();
        fresh.drop().await;
    }
}

/// Above READ COMMITTED too, a transaction that takes a key which was used before locks no gap: not among the jobs, not among the keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_used_before_locks_no_gap() {
    for variable in BOTH {
        let fresh = Fresh::on(variable).await;
        let store = fresh.store().await;
        store.enqueue(&[keyed("q", "a"), keyed("q", "c")]).await.unwrap();
        end(&store, "q", &Verdict::done()).await;
        let mut conn = plain(&fresh.url).await;
        AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
        let jobs = [keyed("q", "c"), keyed("q", "a"), keyed("q", "e")];
        let answers = store.enqueue_in(&mut conn, &jobs).await.unwrap();
        assert!(answers.iter().all(|answer| !answer.deduplicated), "{answers:?}");
        let others = async {
            for jobs in [vec![unkeyed("q")], vec![keyed("q", "b"), keyed("q", "d"), keyed("q", "f")]] {
                store.enqueue(&jobs).await.unwrap();
            }
        };
        tokio::time::timeout(DEADLINE, others).await.unwrap();
        AnsiTransactionManager::rollback_transaction(&mut conn).await.unwrap();
        fresh.drop().await;
    }
}

/// By hand, too: what ends a job need not know of keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_free_when_its_job_is_gone() {
    for variable in BOTH {
        let fresh = Fresh::on(variable).await;
        let store = fresh.store().await;
        let mut conn = plain(&fresh.url).await;
        let old = store.enqueue(&[keyed("q", "a")]).await.unwrap()[0].id;
        // The server gives the numbers from the first again: the row of the key then names a job that has another key.
        for text in ["DELETE FROM job_queue", "TRUNCATE job_queue"] {
            conn.batch_execute(text).await.unwrap();
            store.enqueue(&[keyed("q", "b")]).await.unwrap();
            let answer = store.enqueue(&[keyed("q", "a")]).await.unwrap()[0];
            assert!(!answer.deduplicated, "{answer:?} after {old}");
            let again = store.enqueue(&[keyed("q", "a")]).await.unwrap()[0];
            assert!(again.deduplicated && again.id == answer.id, "{again:?}");
        }
        fresh.drop().await;
    }
}

/// A program that does not know the table of keys would enqueue duplicates.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_with_keys_of_older_programs_are_refused() {
    for variable in BOTH {
        let fresh = Fresh::on(variable).await;
        let store = fresh.store().await;
        let mut conn = plain(&fresh.url).await;
        let insert = |key: &str| {
            format!(
                "INSERT INTO job_queue (queue_name, kind, priority, unique_key, payload, headers, max_attempts, available_at,
                                        created_at, updated_at)
                 VALUES ('q', 'k', 0, {key}, '1', '{{}}', 5, '2020-01-01', '2020-01-01', '2020-01-01')"
            )
        };
        let refused = conn.batch_execute(&insert("'a'")).await.unwrap_err().to_string();
        assert!(refused.contains("job_queue_keys_need_version_4"), "{refused}");
        conn.batch_execute(&insert("NULL")).await.unwrap();
        assert_eq!(store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().len(), 1);
        fresh.drop().await;
    }
}

/// `prune` removes the rows of keys whose jobs have ended, page by page, and no others.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_keys_do_not_pile_up() {
    for variable in BOTH {
        let fresh = Fresh::on(variable).await;
        let store = fresh.store().await;
        let mut conn = plain(&fresh.url).await;
        let rows = "SELECT COUNT(*) AS count FROM job_unique";
        let jobs =
            |queue: &str| -> Vec<NewJob> { (0..300).map(|n| keyed(queue, &format!("k{n}"))).collect() };
        let live = store.enqueue(&jobs("live")).await.unwrap();
        for queue in ["done", "more"] {
            store.enqueue(&jobs(queue)).await.unwrap();
            end(&store, queue, &Verdict::done()).await;
        }
        assert_eq!(count(&mut conn, rows).await, 900);
        // One that a transaction has locked is left alone.
        let mut holder = plain(&fresh.url).await;
        AnsiTransactionManager::begin_transaction(&mut holder).await.unwrap();
        store.enqueue_in(&mut holder, &[keyed("more", "k7")]).await.unwrap();
        let prune = Prune::older_than(Duration::from_secs(3600), BatchSize::MAX).unwrap();
        for _ in 0..20 {
            assert_eq!(store.prune(&prune).await.unwrap(), 0, "no job is that old");
        }
        assert_eq!(count(&mut conn, rows).await, 301);
        AnsiTransactionManager::rollback_transaction(&mut holder).await.unwrap();
        for _ in 0..20 {
            store.prune(&prune).await.unwrap();
        }
        assert_eq!(count(&mut conn, rows).await, 300);
        let again = store.enqueue(&jobs("live")).await.unwrap();
        assert!(again.iter().zip(&live).all(|(again, first)| again.deduplicated && again.id == first.id));
        fresh.drop().await;
    }
}
