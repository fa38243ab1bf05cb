//! A database whose administrator has set another default isolation level than READ COMMITTED: claims do not fail for it.

use std::time::{Duration, Instant};

use diesel::sql_types::BigInt;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{ConcurrencyLimit, Dequeue, NewJob, QueuePolicy, Queues, Result, Store, StoreError};
use leasehold_postgres::{PgStore, WakeupMode};

const JOBS: usize = 200;
const CLAIMERS: usize = 4;
/// Much longer than anything here takes: a test that is wrong fails, and does not hang.
const DEADLINE: Duration = Duration::from_secs(30);

/// A database of its own, with the tables in it, whose sessions have this isolation level by default.
struct Node {
    admin: AsyncPgConnection,
    name: String,
    url: String,
}

impl Node {
    async fn new(level: &str) -> Self {
        let server = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
        let name = crate::support::fresh_schema().to_string();
        let mut admin = AsyncPgConnection::establish(&server).await.unwrap();
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let set = format!("ALTER DATABASE {name} SET default_transaction_isolation = '{level}'");
        admin.batch_execute(&set).await.unwrap();
        let (place, _) = server.rsplit_once('/').unwrap();
        let url = format!("{place}/{name}");
        let store = PgStore::connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        store.pool().close();
        Self { admin, name, url }
    }

    /// A store on a pool that is not the store's own.
    fn on_a_users_pool(&self) -> PgStore {
        let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(&self.url);
        PgStore::from_pool(Pool::builder(manager).max_size(CLAIMERS).build().unwrap())
    }

    async fn run(&self, sql: &str) {
        let mut conn = AsyncPgConnection::establish(&self.url).await.unwrap();
        conn.batch_execute(sql).await.unwrap();
    }

    async fn end(mut self) {
        self.admin.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await.unwrap();
    }
}

fn jobs(queue: &str, count: usize) -> Vec<NewJob> {
    (0..count).map(|_| NewJob::builder(queue, "k").build().unwrap()).collect()
}

/// Claims one job at a time, until there is none.
async fn claim_all(store: PgStore) -> Result<Vec<i64>> {
    let mut ids = Vec::new();
    loop {
        let jobs = store.dequeue(&Dequeue::new("q", "w")?).await?;
        if jobs.is_empty() {
            return Ok(ids);
        }
        ids.extend(jobs.iter().map(|job| job.id.get()));
    }
}

async fn claimers_on_own_connections(level: &str) {
    let node = Node::new(level).await;
    let store = PgStore::builder().pool_size(CLAIMERS).connect(&node.url).await.unwrap();
    store.enqueue(&jobs("q", JOBS)).await.unwrap();
    let mut claimers = tokio::task::JoinSet::new();
    for _ in 0..CLAIMERS {
        claimers.spawn(claim_all(store.clone()));
    }
    let mut leased = Vec::new();
    while let Some(ids) = claimers.join_next().await {
        leased.extend(ids.unwrap().unwrap());
    }
    leased.sort_unstable();
    leased.dedup();
    assert_eq!(leased.len(), JOBS);
    node.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claimers_race_on_a_database_of_repeatable_read() {
    claimers_on_own_connections("repeatable read").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claimers_race_on_a_serializable_database() {
    claimers_on_own_connections("serializable").await;
}

/// The same without a race: a claim at another level than READ COMMITTED is refused by a trigger.
#[tokio::test(flavor = "multi_thread")]
async fn own_connections_are_at_read_committed() {
    let node = Node::new("repeatable read").await;
    node.run(
        "CREATE FUNCTION check_level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF current_setting('transaction_isolation') <> 'read committed' THEN
                 RAISE EXCEPTION 'this is at %', current_setting('transaction_isolation');
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER check_level BEFORE UPDATE ON leasehold.job_queue FOR EACH ROW EXECUTE FUNCTION check_level()",
    )
    .await;
    let store = PgStore::connect(&node.url).await.unwrap();
    let beside = store.dedicated().await.unwrap().unwrap();
    store.enqueue(&jobs("q", 2)).await.unwrap();
    let request = Dequeue::new("q", "w").unwrap();
    assert_eq!(store.dequeue(&request).await.unwrap().len(), 1);
    assert_eq!(beside.dequeue(&request).await.unwrap().len(), 1);
    node.end().await;
}

/// Lets the first claims of a round fail as a serialization failure does. A sequence is not rolled back.
const FAILS: &str = "
    CREATE SEQUENCE claims;
    CREATE TABLE failures AS SELECT 0 AS count;
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN
        IF nextval('claims') <= (SELECT count FROM failures) THEN
            RAISE EXCEPTION 'could not serialize access' USING ERRCODE = 'serialization_failure';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER fail BEFORE UPDATE ON leasehold.job_queue FOR EACH ROW EXECUTE FUNCTION fail()";

fn requests() -> [(&'static str, Dequeue); 4] {
    let of = |queues: Queues| Dequeue { queues, ..Dequeue::new("q", "w").unwrap() };
    [
        ("one queue", of(Queues::named(["q"]).unwrap())),
        ("two queues", of(Queues::named(["p", "q"]).unwrap())),
        ("a queue with a limit", of(Queues::named(["limited"]).unwrap())),
        ("a prefix", of("prefix:*".parse().unwrap())),
    ]
}

async fn a_failed_claim_is_repeated(node: Node, store: PgStore) {
    node.run(FAILS).await;
    let limit =
        QueuePolicy { concurrency_limit: Some(ConcurrencyLimit::new(5).unwrap()), ..QueuePolicy::default() };
    store.set_policy(&"limited".parse().unwrap(), &limit).await.unwrap();
    for (what, request) in requests() {
        for queue in ["q", "limited", "prefix:a"] {
            store.enqueue(&jobs(queue, 2)).await.unwrap();
        }
        node.run("UPDATE failures SET count = 4; ALTER SEQUENCE claims RESTART").await;
        let error = store.dequeue(&request).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { .. }), "{what}: {error:?}");
        node.run("UPDATE failures SET count = 3; ALTER SEQUENCE claims RESTART").await;
        let leased = store.dequeue(&request).await.map(|jobs| jobs.len());
        assert!(matches!(leased, Ok(1)), "{what}: {leased:?}");
        node.run("UPDATE failures SET count = 0").await;
    }
    node.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_on_a_users_pool_is_repeated_three_times() {
    let node = Node::new("repeatable read").await;
    let store = node.on_a_users_pool();
    a_failed_claim_is_repeated(node, store).await;
}

/// As behind PgBouncer: nothing is set on these connections either.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_settings_is_repeated_three_times() {
    let node = Node::new("repeatable read").await;
    let store = PgStore::builder().wakeups(WakeupMode::Local).connect(&node.url).await.unwrap();
    a_failed_claim_is_repeated(node, store).await;
}

/// A real conflict: the row of the limit is changed while a claim waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_waited_for_a_limit_is_repeated() {
    let node = Node::new("repeatable read").await;
    let store = node.on_a_users_pool();
    let limit =
        QueuePolicy { concurrency_limit: Some(ConcurrencyLimit::new(5).unwrap()), ..QueuePolicy::default() };
    store.set_policy(&"limited".parse().unwrap(), &limit).await.unwrap();
    store.enqueue(&jobs("limited", 2)).await.unwrap();
    let request = Dequeue::new("limited", "w").unwrap();
    assert_eq!(store.dequeue(&request).await.unwrap().len(), 1);
    let mut beside = AsyncPgConnection::establish(&node.url).await.unwrap();
    let change = "BEGIN; UPDATE leasehold.job_queue_limit SET version = version + 1";
    beside.batch_execute(change).await.unwrap();
    let claim = tokio::spawn(async move { store.dequeue(&request).await });
    wait_for_a_lock(&mut beside).await;
    beside.batch_execute("COMMIT").await.unwrap();
    assert_eq!(claim.await.unwrap().unwrap().len(), 1);
    node.end().await;
}

/// Returns when a session of this database waits for a lock.
async fn wait_for_a_lock(conn: &mut AsyncPgConnection) {
    #[derive(diesel::QueryableByName)]
    struct Waiting {
        #[diesel(sql_type = BigInt)]
        count: i64,
    }
    let asked = "SELECT pg_stat_clear_snapshot(), count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let start = Instant::now();
    while diesel::sql_query(asked).get_result::<Waiting>(conn).await.unwrap().count == 0 {
        assert!(start.elapsed() < DEADLINE, "no claim waits for the lock");
    }
}
