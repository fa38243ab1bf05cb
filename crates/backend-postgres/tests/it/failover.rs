//! A failover that leaves connections open to a node that is read-only from then on: the store gives them up, and goes on by new ones.
//!
//! The read-only node is a setting of a database, which holds for the sessions that were opened under it.

use std::time::Duration;

use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, SimpleAsyncConnection, TransactionManager,
};
use futures_util::StreamExt;
use leasehold_core::{
    BatchSize, Dequeue, Epoch, HeartbeatOutcome, JobId, LeaseFor, NewJob, Receipt, Result, Store, StoreError,
    TxStore,
};
use leasehold_postgres::PgStore;

/// How many connections are open when the failover comes.
const CONNECTIONS: usize = 4;
/// A bound, not a wait.
const PATIENCE: Duration = Duration::from_secs(20);

/// A database of its own. Sessions that are opened before [`Node::fails_over`] stay read-only.
struct Node {
    admin: AsyncPgConnection,
    name: String,
    url: String,
}

impl Node {
    /// A read-only database with the tables in it.
    async fn read_only() -> Self {
        let server = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
        let name = crate::support::fresh_schema().to_string();
        let mut admin = AsyncPgConnection::establish(&server).await.unwrap();
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let (place, _) = server.rsplit_once('/').unwrap();
        let url = format!("{place}/{name}");
        let store = PgStore::connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        store.pool().close();
        let set = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
        admin.batch_execute(&set).await.unwrap();
        Self { admin, name, url }
    }

    /// From now on a new session reaches a node that takes writes.
    async fn fails_over(&mut self) {
        let set = format!("ALTER DATABASE {} SET default_transaction_read_only = off", self.name);
        self.admin.batch_execute(&set).await.unwrap();
    }

    async fn end(mut self) {
        self.admin.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await.unwrap();
    }
}

fn job() -> NewJob {
    NewJob::builder("q", "k").unique_key(fastrand::u64(..).to_string()).build().unwrap()
}

/// Opens as many connections as the store may have.
async fn fill(store: &PgStore) {
    let held = (0..CONNECTIONS).map(|_| store.now());
    futures_util::future::try_join_all(held).await.unwrap();
}

/// The first call fails, and says that another may succeed. The second does, whatever else was open.
async fn recovers<T>(what: &str, call: impl AsyncFn() -> Result<T>) {
    let error = call().await.err().unwrap_or_else(|| panic!("{what}: the connection was not read-only"));
    assert!(matches!(error, StoreError::Unavailable { .. }), "{what}: {error:?}");
    if let Err(error) = call().await {
        panic!("{what}: not on a new connection: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_goes_on_after_the_first_refusal() {
    let mut node = Node::read_only().await;
    let store = PgStore::builder().pool_size(CONNECTIONS).connect(&node.url).await.unwrap();
    fill(&store).await;
    let heartbeats = store.dedicated().await.unwrap().unwrap();
    heartbeats.now().await.unwrap();
    let in_use = store.pool().get().await.unwrap();
    node.fails_over().await;
    recovers("enqueue", async || store.enqueue(&[job()]).await).await;
    // The other connections were given up with the first.
    for _ in 0..CONNECTIONS {
        store.reclaim(BatchSize::ONE).await.unwrap();
    }
    heartbeats.reclaim(BatchSize::ONE).await.unwrap();
    drop(in_use);
    store.pool().get().await.unwrap().batch_execute("CREATE TABLE mine ()").await.unwrap();
    assert_eq!(store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().len(), 1);
    node.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_gives_up_a_read_only_connection() {
    let mut node = Node::read_only().await;
    let stores: Vec<PgStore> = {
        let open = (0..5).map(|_| PgStore::builder().pool_size(1).connect(&node.url));
        futures_util::future::try_join_all(open).await.unwrap()
    };
    let parent = PgStore::builder().pool_size(1).connect(&node.url).await.unwrap();
    let heartbeats = parent.dedicated().await.unwrap().unwrap();
    heartbeats.now().await.unwrap();
    node.fails_over().await;
    let [a, b, c, d, e] = &stores[..] else { panic!("there are five") };
    recovers("enqueue of one job", async || a.enqueue(&[NewJob::builder("q", "k").build()?]).await).await;
    recovers("dequeue", async || b.dequeue(&Dequeue::new("q", "w")?).await).await;
    recovers("reclaim", async || c.reclaim(BatchSize::ONE).await).await;
    recovers("pause", async || d.pause(&"other".parse()?).await).await;
    recovers("redrive", async || e.redrive(&leasehold_core::Redrive::all(BatchSize::ONE)).await).await;
    let receipt = Receipt { job: JobId::new(1), epoch: Epoch::ZERO };
    let extend = LeaseFor::new(PATIENCE).unwrap();
    recovers("heartbeat", async || heartbeats.heartbeat(&[receipt], extend).await).await;
    let outcomes = heartbeats.heartbeat(&[receipt], extend).await.unwrap();
    assert_eq!(outcomes, [HeartbeatOutcome::Lost]);
    node.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_the_users_is_emptied_of_them_too() {
    let mut node = Node::read_only().await;
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(&node.url);
    let pool = Pool::builder(manager).max_size(CONNECTIONS).build().unwrap();
    let store = PgStore::from_pool(pool.clone());
    fill(&store).await;
    assert_eq!(pool.status().size, CONNECTIONS);
    let in_use = pool.get().await.unwrap();
    node.fails_over().await;
    recovers("enqueue", async || store.enqueue(&[job()]).await).await;
    drop(in_use); // It is back in the pool, and as old as those that were closed.
    for _ in 0..CONNECTIONS {
        store.reclaim(BatchSize::ONE).await.unwrap();
    }
    node.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_gives_up_its_connection_and_the_idle_ones() {
    let mut node = Node::read_only().await;
    let store = PgStore::builder().pool_size(2).connect(&node.url).await.unwrap();
    let held = [store.pool().get().await.unwrap(), store.pool().get().await.unwrap()];
    drop(held);
    node.fails_over().await;
    let transact = async || {
        let mut conn = store.pool().get().await.map_err(|error| StoreError::unavailable("begin", error))?;
        AnsiTransactionManager::begin_transaction(&mut *conn).await.unwrap();
        let answer = store.enqueue_in(&mut conn, &[job()]).await;
        match &answer {
            Ok(_) => AnsiTransactionManager::commit_transaction(&mut *conn).await.unwrap(),
            Err(_) => drop(AnsiTransactionManager::rollback_transaction(&mut *conn).await),
        }
        answer
    };
    recovers("enqueue_in", transact).await;
    transact().await.unwrap();
    assert_eq!(store.dequeue(&Dequeue::new("q", "w").unwrap().limit(5).unwrap()).await.unwrap().len(), 2);
    node.end().await;
}

/// The listener's connection refuses nothing, so it is given up because another was refused.
#[tokio::test(flavor = "multi_thread")]
async fn the_listener_connects_again() {
    let mut node = Node::read_only().await;
    let store = PgStore::builder().pool_size(1).connect(&node.url).await.unwrap();
    let queues = "elsewhere".parse().unwrap();
    let mut hints = store.wakeups(&queues).await.unwrap();
    node.fails_over().await;
    recovers("reclaim", async || store.reclaim(BatchSize::ONE).await).await;
    // What was said meanwhile was missed, so every subscriber is told to look when the listener is back.
    tokio::time::timeout(PATIENCE, hints.next()).await.unwrap().unwrap();
    let other = PgStore::connect(&node.url).await.unwrap();
    other.enqueue(&[NewJob::builder("elsewhere", "k").build().unwrap()]).await.unwrap();
    tokio::time::timeout(PATIENCE, hints.next()).await.unwrap().unwrap();
    node.end().await;
}
