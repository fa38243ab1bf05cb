//! `sql_safe_updates`: the server refuses an UPDATE or DELETE that uses no key.

use std::time::Duration;

use diesel_async::{AnsiTransactionManager, AsyncMysqlConnection, SimpleAsyncConnection, TransactionManager};
use leasehold_core::{
    BatchSize, ConcurrencyLimit, Dequeue, HeartbeatOutcome, Job, Json, LeaseFor, NewJob, Prune, QueueOrder,
    QueuePolicy, RateLimit, Redrive, Schedule, SettleOutcome, Store, TxStore, Verdict,
};
use leasehold_mysql::MysqlStore;
use leasehold_servers::MysqlFlavor;

use crate::support::{BOTH, Fresh, plain, unusual, users_pool};

const SAFE: &str = "SET SESSION sql_safe_updates = 1";
const MANY: BatchSize = BatchSize::MAX;

/// The store's own connections, on a server whose global setting it is; and transactions on a plain connection there.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_writes_on_a_server_that_wants_keys() {
    for flavor in [MysqlFlavor::Mysql, MysqlFlavor::Mariadb] {
        let server = unusual(flavor).await;
        let fresh = Fresh::at(&server.url()).await;
        let store = fresh.store().await;
        write_everything(&store, &fresh).await;
        fresh.drop().await;
    }
}

/// A pool of the user's, whose sessions the store leaves as they are.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_writes_on_a_pool_that_wants_keys() {
    for variable in BOTH {
        let fresh = Fresh::on(variable).await;
        let store = MysqlStore::from_pool(users_pool(&fresh.url, &[SAFE]));
        store.migrate().await.unwrap();
        write_everything(&store, &fresh).await;
        fresh.drop().await;
    }
}

async fn write_everything(store: &MysqlStore, fresh: &Fresh) {
    verdicts(store).await;
    many_endings(store).await;
    reclaims(store, fresh).await;
    history(store).await;
    interventions(store).await;
    policies(store).await;
    transactions(store, fresh).await;
}

fn job(queue: &str) -> NewJob {
    NewJob::builder(queue, "k").build().unwrap()
}

async fn leased(store: &MysqlStore, queue: &str, count: u32) -> Vec<Job> {
    store.enqueue(&vec![job(queue); count as usize]).await.unwrap();
    claim(store, queue, count).await
}

async fn claim(store: &MysqlStore, queue: &str, count: u32) -> Vec<Job> {
    let request = Dequeue::new(queue, "w").unwrap().limit(count).unwrap();
    let jobs = store.dequeue(&request).await.unwrap();
    assert_eq!(jobs.len(), count as usize, "{queue}");
    jobs
}

/// One of each kind.
fn every_verdict() -> Vec<Verdict> {
    let hour = Duration::from_secs(3600);
    vec![
        Verdict::done(),
        Verdict::done_with("other").unwrap(),
        Verdict::retry("failed"),
        Verdict::retry_after("failed", hour).unwrap(),
        Verdict::snooze(hour).unwrap(),
        Verdict::release(),
        Verdict::dead("broken"),
        Verdict::discard("unwanted"),
    ]
}

async fn verdicts(store: &MysqlStore) {
    for verdict in every_verdict() {
        let jobs = leased(store, "one", 1).await;
        settle(store, &[(&jobs[0], verdict)]).await;
        let jobs = leased(store, "many", 3).await;
        settle(store, &jobs.iter().map(|job| (job, Verdict::done())).collect::<Vec<_>>()).await;
        store.prune(&Prune::older_than(Duration::ZERO, MANY).unwrap()).await.unwrap();
        for job in store.jobs(&Default::default()).await.unwrap().items {
            store.discard(job.id, Json::null()).await.unwrap();
        }
    }
    let key = NewJob::builder("keys", "k").unique_key("a").build().unwrap();
    let first = store.enqueue(std::slice::from_ref(&key)).await.unwrap();
    assert_eq!(store.enqueue(&[key.clone(), key]).await.unwrap()[1].id, first[0].id);
    let jobs = claim(store, "keys", 1).await;
    let minute = LeaseFor::new(Duration::from_secs(60)).unwrap();
    let extended = store.heartbeat(&[jobs[0].receipt()], minute).await.unwrap();
    assert!(matches!(extended[..], [HeartbeatOutcome::Extended { .. }]), "{extended:?}");
    settle(store, &[(&jobs[0], Verdict::done())]).await;
}

async fn settle(store: &MysqlStore, items: &[(&Job, Verdict)]) {
    let items: Vec<_> = items.iter().map(|(job, verdict)| (job.receipt(), verdict.clone())).collect();
    let outcomes = store.settle(&items).await.unwrap();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, SettleOutcome::Settled(_))), "{outcomes:?}");
}

/// So many that each is an element of an array.
async fn many_endings(store: &MysqlStore) {
    let jobs = leased(store, "array", 24).await;
    let verdicts = (0..3).flat_map(|round| {
        let more = (0..6).map(move |n| Verdict::dead(format!("{round} {n}")));
        every_verdict().into_iter().take(2).chain(more)
    });
    settle(store, &jobs.iter().zip(verdicts).collect::<Vec<_>>()).await;
}

async fn reclaims(store: &MysqlStore, fresh: &Fresh) {
    let last = NewJob::builder("passed", "k").max_attempts(1).build().unwrap();
    store.enqueue(&[last]).await.unwrap();
    leased(store, "passed", 2).await;
    let mut beside = plain(&fresh.url).await;
    beside.batch_execute("SET SESSION sql_safe_updates = 0").await.unwrap();
    let pass = "UPDATE job_queue SET lease_until = '2020-01-01' WHERE lease_until IS NOT NULL";
    beside.batch_execute(pass).await.unwrap();
    assert_eq!(store.reclaim(MANY).await.unwrap().len(), 2);
    for job in store.jobs(&Default::default()).await.unwrap().items {
        store.discard(job.id, Json::null()).await.unwrap();
    }
}

async fn history(store: &MysqlStore) {
    let keyed = NewJob::builder("dead", "k").unique_key("a").build().unwrap();
    store.enqueue(&[keyed, job("dead"), job("dead")]).await.unwrap();
    let jobs = claim(store, "dead", 3).await;
    settle(store, &jobs.iter().map(|job| (job, Verdict::dead("broken"))).collect::<Vec<_>>()).await;
    let mut all = Redrive::all(MANY);
    all.queues = "dead".parse().unwrap();
    assert_eq!(store.redrive(&all).await.unwrap().jobs.len(), 3);
    let jobs = claim(store, "dead", 3).await;
    settle(store, &jobs.iter().map(|job| (job, Verdict::done())).collect::<Vec<_>>()).await;
    let mut old = Prune::older_than(Duration::ZERO, MANY).unwrap();
    old.ids = Some(vec![jobs[0].id]);
    assert_eq!(store.prune(&old).await.unwrap(), 1);
    old.ids = None;
    assert!(store.prune(&old).await.unwrap() >= 2);
}

async fn interventions(store: &MysqlStore) {
    let later = NewJob::builder("word", "k").delay(Duration::from_secs(3600)).build().unwrap();
    let id = store.enqueue(&[later]).await.unwrap()[0].id;
    store.promote(id).await.unwrap();
    assert_eq!(claim(store, "word", 1).await[0].id, id);
    store.retry_later(id, Schedule::Now).await.unwrap();
    assert_eq!(claim(store, "word", 1).await[0].id, id);
    store.discard(id, Json::null()).await.unwrap();
    assert!(store.get(id).await.unwrap().unwrap().finished().is_some());
}

async fn policies(store: &MysqlStore) {
    let (limit, rate) = (ConcurrencyLimit::new(1).unwrap(), RateLimit::new(0.001, 1).unwrap());
    let pattern = "limited".parse().unwrap();
    for policy in [
        QueuePolicy { concurrency_limit: Some(limit), ..QueuePolicy::default() },
        QueuePolicy { rate: Some(rate), ..QueuePolicy::default() },
        QueuePolicy { order: Some(QueueOrder::Fifo), ..QueuePolicy::default() },
    ] {
        store.set_policy(&pattern, &policy).await.unwrap();
        store.enqueue(&[job("limited"), job("limited")]).await.unwrap();
        for queues in ["limited", "limited*"] {
            let request = Dequeue::new(queues, "w").unwrap().limit(2).unwrap();
            let jobs = store.dequeue(&request).await.unwrap();
            assert_eq!(jobs.len(), usize::from(queues == "limited"), "{queues} {policy:?}");
        }
        for job in store.jobs(&Default::default()).await.unwrap().items {
            store.discard(job.id, Json::null()).await.unwrap();
        }
    }
    store.pause(&pattern).await.unwrap();
    store.resume(&pattern).await.unwrap();
    store.set_policy(&pattern, &QueuePolicy::default()).await.unwrap();
    store.pause(&pattern).await.unwrap();
    store.resume(&pattern).await.unwrap();
    assert!(store.policies().await.unwrap().is_empty());
}

async fn transactions(store: &MysqlStore, fresh: &Fresh) {
    for verdict in every_verdict() {
        let held = leased(store, "transaction", 2).await;
        let mut conn = plain(&fresh.url).await;
        conn.batch_execute(SAFE).await.unwrap();
        in_one(store, &mut conn, &held, verdict).await;
        for job in store.jobs(&Default::default()).await.unwrap().items {
            store.discard(job.id, Json::null()).await.unwrap();
        }
    }
}

async fn in_one(store: &MysqlStore, conn: &mut AsyncMysqlConnection, held: &[Job], verdict: Verdict) {
    AnsiTransactionManager::begin_transaction(conn).await.unwrap();
    store.lock_in(conn, held[0].receipt()).await.unwrap();
    let key = format!("{verdict:?}").parse().unwrap();
    assert!(store.once_in(conn, &key).await.unwrap());
    let keyed = NewJob::builder("transaction", "k").unique_key("a").build().unwrap();
    store.enqueue_in(conn, &[keyed.clone(), job("transaction"), keyed]).await.unwrap();
    store.settle_in(conn, &held[0].receipt(), verdict).await.unwrap().fate();
    store.ack_in(conn, &held[1].receipt(), Json::null()).await.unwrap().fate();
    AnsiTransactionManager::commit_transaction(conn).await.unwrap();
}
