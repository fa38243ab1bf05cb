//! What the server goes on doing for the store: nothing for a future that was dropped, and no wait for a lock without end.

use std::time::{Duration, Instant};

use diesel::sql_types::BigInt;
use diesel_async::{
    AnsiTransactionManager, AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager,
};
use futures_util::FutureExt;
use leasehold_core::{
    Archive, BatchSize, Dequeue, IdempotencyKey, Job, Json, MaxAttempts, NewJob, Prune, QueuePolicy,
    SettleOutcome, Store, TxStore, Verdict,
};
use leasehold_mysql::MysqlStore;

use crate::support::{BOTH, Fresh, plain};

/// Much longer than anything here takes: a test that is wrong fails, and does not hang.
const DEADLINE: Duration = Duration::from_secs(30);

/// A store, some jobs that it has leased, and a connection beside it.
struct Scene {
    fresh: Fresh,
    store: MysqlStore,
    jobs: Vec<Job>,
    beside: AsyncMysqlConnection,
}

impl Scene {
    async fn on(variable: &str) -> Self {
        let fresh = Fresh::on(variable).await;
        let store = fresh.store().await;
        let new: Vec<NewJob> = (0..5).map(|_| NewJob::builder("q", "k").build().unwrap()).collect();
        store.enqueue(&new).await.unwrap();
        let jobs = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(5).unwrap()).await.unwrap();
        let beside = plain(&fresh.url).await;
        Self { fresh, store, jobs, beside }
    }

    /// Opens a transaction beside the store that has the first job locked.
    async fn lock(&mut self) {
        AnsiTransactionManager::begin_transaction(&mut self.beside).await.unwrap();
        let lock = format!("SELECT id FROM job_queue WHERE id = {} FOR UPDATE", self.jobs[0].id);
        self.beside.batch_execute(&lock).await.unwrap();
    }

    async fn unlock(&mut self) {
        AnsiTransactionManager::rollback_transaction(&mut self.beside).await.unwrap();
    }

    /// How many other sessions are running a statement in this database.
    async fn running(&mut self) -> i64 {
        #[derive(diesel::QueryableByName)]
        struct Sessions {
            #[diesel(sql_type = BigInt)]
            count: i64,
        }
        let sessions = "SELECT COUNT(*) AS count FROM information_schema.processlist
                        WHERE db = DATABASE() AND command IN ('Query', 'Execute') AND id <> CONNECTION_ID()";
        diesel::sql_query(sessions).get_result::<Sessions>(&mut self.beside).await.unwrap().count
    }

    async fn wait_until_running(&mut self, expected: i64) {
        let start = Instant::now();
        while self.running().await != expected {
            assert!(start.elapsed() < DEADLINE, "not {expected} sessions are running a statement");
        }
    }
}

fn is_settled(outcome: &SettleOutcome) -> bool {
    matches!(outcome, SettleOutcome::Settled(_))
}

/// A statement that takes a minute is under way, and its future is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_future_leaves_no_statement_on_the_server() {
    for variable in BOTH {
        let mut scene = Scene::on(variable).await;
        let slow = "CREATE TRIGGER slow BEFORE DELETE ON job_queue FOR EACH ROW DO SLEEP(60)";
        scene.beside.batch_execute(slow).await.unwrap();
        let (store, receipt) = (scene.store.clone(), scene.jobs[0].receipt());
        let mut settling = async move { store.settle(&[(receipt, Verdict::done())]).await }.boxed();
        tokio::select! {
            answer = &mut settling => panic!("the statement is not slow: {answer:?}"),
            () = scene.wait_until_running(1) => {}
        }
        drop(settling);
        scene.wait_until_running(0).await;
        scene.beside.batch_execute("DROP TRIGGER slow").await.unwrap();
        // Nothing was settled, and the end of that statement is the end of no other.
        for job in &scene.jobs {
            let outcomes = scene.store.settle(&[(job.receipt(), Verdict::done())]).await.unwrap();
            assert!(outcomes.iter().all(is_settled), "{outcomes:?}");
        }
        scene.fresh.drop().await;
    }
}

/// Most futures are dropped, at any moment; the statements of the others are not ended.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_statement_is_the_end_of_no_other() {
    for variable in BOTH {
        let scene = Scene::on(variable).await;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8 {
            let store = scene.store.clone();
            tasks.spawn(async move {
                for round in 0..30 {
                    let polls = (task + round) % 6;
                    if polls == 5 {
                        store.now().await.unwrap();
                        store.enqueue(&[NewJob::builder("other", "k").build().unwrap()]).await.unwrap();
                        continue;
                    }
                    let mut dropped = store.policies();
                    for _ in 0..polls {
                        if (&mut dropped).now_or_never().is_some() {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        scene.fresh.drop().await;
    }
}

/// The second line: what has to wait for a lock gives up, is not tried again at once, and can be asked again.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_lock_ends() {
    for variable in BOTH {
        let mut scene = Scene::on(variable).await;
        scene.lock().await;
        let (locked, start) = (scene.jobs[0].id, Instant::now());
        let waiting = tokio::time::timeout(DEADLINE, scene.store.discard(locked, Json::null()));
        let error = waiting.await.expect("it waits for the lock without end").unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert!(start.elapsed() < Duration::from_secs(15), "tried again: {:?}", start.elapsed());
        scene.unlock().await;
        scene.store.discard(locked, Json::null()).await.unwrap();
        scene.fresh.drop().await;
    }
}

/// More operations wait for one locked row than the store has connections, and nobody waits for them any more: others go on at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_keeps_no_connection() {
    for variable in BOTH {
        let mut scene = Scene::on(variable).await;
        let store = MysqlStore::builder().pool_size(3).connect(&scene.fresh.url).await.unwrap();
        let new: Vec<NewJob> = (0..9).map(|_| NewJob::builder("other", "k").build().unwrap()).collect();
        store.enqueue(&new).await.unwrap();
        scene.lock().await;
        let id = scene.jobs[0].id;
        for _ in 0..9 {
            let mut waiting: Vec<_> = (0..9)
                .map(|_| {
                    let store = store.clone();
                    async move { store.discard(id, Json::null()).await }.boxed()
                })
                .collect();
            let start = Instant::now();
            while scene.running().await < 3 {
                for future in &mut waiting {
                    assert!(
                        future.now_or_never().is_none() && start.elapsed() < DEADLINE,
                        "it does not wait"
                    );
                }
            }
            drop(waiting);
            let claimed = store.dequeue(&Dequeue::new("other", "w").unwrap()).await.unwrap();
            assert_eq!(claimed.len(), 1);
        }
        scene.wait_until_running(0).await;
        scene.unlock().await;
        store.discard(id, Json::null()).await.unwrap();
        scene.fresh.drop().await;
    }
}

/// The lock of any session counts, not only that of a transaction that settles.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_somebody_looks_at_is_pending() {
    for variable in BOTH {
        let mut scene = Scene::on(variable).await;
        scene.lock().await;
        let items: Vec<_> = scene.jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect();
        let settling = tokio::time::timeout(DEADLINE, scene.store.settle(&items));
        let outcomes = settling.await.expect("it waits for the lock").unwrap();
        let pending: Vec<bool> = outcomes.iter().map(SettleOutcome::is_pending).collect();
        assert_eq!(pending, [true, false, false, false, false]);
        // A second item with the same receipt has not counted either.
        let outcomes = scene.store.settle(&[items[0].clone(), items[0].clone()]).await.unwrap();
        assert!(outcomes.iter().all(SettleOutcome::is_pending), "{outcomes:?}");
        scene.unlock().await;
        let outcomes = scene.store.settle(&items).await.unwrap();
        let settled: Vec<bool> = outcomes.iter().map(is_settled).collect();
        assert_eq!(settled, [true, false, false, false, false]);
        scene.fresh.drop().await;
    }
}

/// An open transaction that was answered false has the key locked: a prune leaves it for the next call, and forgets the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_prune_waits_for_no_key_that_is_locked() {
    for variable in BOTH {
        let mut scene = Scene::on(variable).await;
        let keys = "INSERT INTO job_idempotency (idempotency_key, created_at, kept_until)
                    VALUES ('1', '2020-01-01', '2020-01-02'), ('2', '2020-01-01', '2020-01-02'), ('3', '2020-01-01', '2020-01-02')";
        scene.beside.batch_execute(keys).await.unwrap();
        AnsiTransactionManager::begin_transaction(&mut scene.beside).await.unwrap();
        let key = IdempotencyKey::new("2").unwrap();
        assert!(!scene.store.once_in(&mut scene.beside, &key).await.unwrap());
        let prune = Prune::by_retention(BatchSize::MAX);
        let pruned = tokio::time::timeout(DEADLINE, scene.store.prune(&prune)).await.unwrap().unwrap();
        assert_eq!(pruned, 2);
        scene.unlock().await;
        assert_eq!(scene.store.prune(&prune).await.unwrap(), 1);
        scene.fresh.drop().await;
    }
}

const READ_COMMITTED: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED";
const REPEATABLE_READ: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ";

impl Scene {
    async fn begin(&mut self, level: &str) {
        self.beside.batch_execute(level).await.unwrap();
        AnsiTransactionManager::begin_transaction(&mut self.beside).await.unwrap();
    }

    /// One of the calls of a transaction.
    async fn call(&mut self, call: u32) {
        let (store, conn) = (&self.store, &mut self.beside);
        let receipt = self.jobs[0].receipt();
        let plain = NewJob::builder("q", "k").build().unwrap();
        let keyed = NewJob::builder("q", "k").unique_key("a").build().unwrap();
        match call {
            0 => store.settle_in(conn, &receipt, Verdict::done()).await.map(drop),
            1 => store.settle_in(conn, &receipt, Verdict::retry("failed")).await.map(drop),
            2 => store.settle_in(conn, &receipt, Verdict::dead("broken")).await.map(drop),
            3 => store.enqueue_in(conn, &[plain]).await.map(drop),
            4 => store.enqueue_in(conn, &[plain, keyed]).await.map(drop),
            5 => store.once_in(conn, &IdempotencyKey::new("once").unwrap()).await.map(drop),
            _ => store.lock_in(conn, receipt).await,
        }
        .unwrap();
    }
}

/// An operator can stop a queue whatever a user's transaction has done and not committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_waits_for_no_transaction() {
    for variable in BOTH {
        for level in [READ_COMMITTED, REPEATABLE_READ] {
            let mut scene = Scene::on(variable).await;
            let pattern = "q".parse().unwrap();
            let policy =
                QueuePolicy { max_attempts: Some(MaxAttempts::new(7).unwrap()), ..QueuePolicy::default() };
            for call in 0..7 {
                scene.begin(level).await;
                scene.call(call).await;
                let paused = tokio::time::timeout(DEADLINE, scene.store.pause(&pattern)).await.unwrap();
                assert!(paused.is_ok(), "{level}: pause waits for call {call}: {paused:?}");
                let set =
                    tokio::time::timeout(DEADLINE, scene.store.set_policy(&pattern, &policy)).await.unwrap();
                assert!(set.is_ok(), "{level}: set_policy waits for call {call}: {set:?}");
                scene.unlock().await;
                scene.store.set_policy(&pattern, &QueuePolicy::default()).await.unwrap();
            }
            scene.fresh.drop().await;
        }
    }
}

/// At READ COMMITTED a policy that was set before the call counts, also if the transaction has begun before.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_was_set_before_the_call_is_obeyed() {
    for variable in BOTH {
        let mut scene = Scene::on(variable).await;
        scene.begin(READ_COMMITTED).await;
        scene.call(0).await;
        let policy = QueuePolicy {
            archive: Some(Archive::DeadOnly),
            max_attempts: Some(MaxAttempts::new(7).unwrap()),
            ..QueuePolicy::default()
        };
        scene.store.set_policy(&"q".parse().unwrap(), &policy).await.unwrap();
        let (store, conn) = (&scene.store, &mut scene.beside);
        let _settled = store.ack_in(conn, &scene.jobs[1].receipt(), Json::null()).await.unwrap();
        let new = [NewJob::builder("q", "k").build().unwrap()];
        let new = store.enqueue_in(conn, &new).await.unwrap().remove(0).id;
        AnsiTransactionManager::commit_transaction(conn).await.unwrap();
        assert!(store.get(scene.jobs[0].id).await.unwrap().unwrap().finished().is_some());
        assert!(store.get(scene.jobs[1].id).await.unwrap().is_none(), "it is kept against the policy");
        let new = store.get(new).await.unwrap().unwrap();
        assert_eq!(new.live().unwrap().max_attempts.get(), 7);
        scene.fresh.drop().await;
    }
}

/// A transaction that was answered "deduplicated" has the job locked that has the key. A verdict for that job does not wait for it (S14).
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_key_a_transaction_has_met_is_pending() {
    for variable in BOTH {
        for level in [READ_COMMITTED, REPEATABLE_READ] {
            for is_newer in [false, true] {
                let mut scene = Scene::on(variable).await;
                let keyed = [NewJob::builder("keyed", "k").unique_key("a").build().unwrap()];
                scene.begin(level).await;
                if is_newer {
                    scene.beside.batch_execute("SELECT COUNT(*) FROM job_history").await.unwrap();
                }
                scene.store.enqueue(&keyed).await.unwrap();
                let request = Dequeue::new("keyed", "w").unwrap();
                let job = scene.store.dequeue(&request).await.unwrap().remove(0);
                let met = scene.store.enqueue_in(&mut scene.beside, &keyed).await.unwrap();
                assert!(met[0].deduplicated && met[0].id == job.id, "{met:?}");
                let items: Vec<_> =
                    [&job, &scene.jobs[0]].map(|job| (job.receipt(), Verdict::done())).to_vec();
                let settling = tokio::time::timeout(DEADLINE, scene.store.settle(&items)).await.unwrap();
                let outcomes = settling.expect("it has waited for the lock, and has given up");
                assert!(outcomes[0].is_pending() && is_settled(&outcomes[1]), "{level}: {outcomes:?}");
                scene.unlock().await;
                assert!(is_settled(&scene.store.settle(&items[..1]).await.unwrap()[0]));
                scene.fresh.drop().await;
            }
        }
    }
}
