//! Handlers that leave the worker neither a connection nor a thread: it keeps their leases all the same.

use std::sync::Arc;
use std::time::{Duration, Instant};

use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::Pool;
use leasehold_core::{BatchSize, Store};
use leasehold_postgres::PgStore;
use leasehold_worker::{Context, Worker, WorkerHandle};

use super::child::{QUEUE, Stuck};
use super::factory::{Factory, PATIENCE, url};

/// Long enough for a machine with more to do than it can.
const LEASE: Duration = Duration::from_secs(1);
const HANDLERS: usize = 16;

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_handlers_use_up_costs_no_lease() {
    let factory = Factory::new(url()).await;
    let store =
        PgStore::builder().schema(factory.schema.clone()).pool_size(2).connect(&factory.url).await.unwrap();
    starve(&factory, store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_store_and_handlers_share_costs_no_lease_either() {
    let factory = Factory::new(url()).await;
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(&factory.url);
    let pool = Pool::builder(manager).max_size(2).build().unwrap();
    let store = PgStore::builder().schema(factory.schema.clone()).from_pool(pool);
    starve(&factory, store).await;
}

/// Handlers hold every connection there is for ten leases.
async fn starve(factory: &Factory, store: PgStore) {
    factory.enqueue(HANDLERS, |_| Stuck).await;
    let until = Instant::now() + 10 * LEASE;
    let handler = move |_: Stuck, context: Context<PgStore>| async move {
        let conn = context.state().pool().get().await.map_err(|error| error.to_string())?;
        tokio::time::sleep_until(until.into()).await;
        drop(conn);
        Ok::<_, String>(())
    };
    let worker =
        Worker::builder(Arc::new(store.clone())).state(store).queue(QUEUE).lease(LEASE).concurrency(HANDLERS);
    let worker = worker.handle::<Stuck>(handler).start().unwrap();
    nobody_loses_a_lease(factory, &worker).await;
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[test]
fn handlers_that_block_every_thread_cost_no_lease() {
    let own = tokio::runtime::Runtime::new().unwrap();
    let hogged = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let factory = own.block_on(Factory::new(url()));
    own.block_on(factory.enqueue(HANDLERS, |_| Stuck));
    let until = Instant::now() + 10 * LEASE;
    let handler = move |_: Stuck, _: Context<()>| async move {
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    };
    let start = async {
        let store = PgStore::builder().schema(factory.schema.clone()).connect(&factory.url).await.unwrap();
        let worker = Worker::builder(Arc::new(store)).queue(QUEUE).lease(LEASE).concurrency(HANDLERS);
        worker.handle::<Stuck>(handler).start().unwrap()
    };
    let worker = hogged.block_on(start);
    own.block_on(nobody_loses_a_lease(&factory, &worker));
    hogged.block_on(worker.shutdown(Duration::ZERO)).unwrap();
}

/// Takes away every lease that has passed, until all jobs are done: there must be none.
async fn nobody_loses_a_lease(factory: &Factory, worker: &WorkerHandle) {
    let leased = "SELECT count(*) FROM {schema}.job_queue WHERE lease_until IS NOT NULL";
    factory.until(leased, |leased| leased == HANDLERS as i64).await;
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "the handlers do not end: {:?}", worker.stats());
        let reclaimed = factory.store.reclaim(BatchSize::new(100).unwrap()).await.unwrap();
        assert!(reclaimed.is_empty(), "leases were lost: {reclaimed:?}");
        if factory.number("SELECT count(*) FROM {schema}.job_queue").await == 0 {
            break;
        }
        assert_eq!(worker.stats().lease_lost, 0, "the worker believes that it lost leases");
        tokio::time::sleep(LEASE / 10).await;
    }
    let once =
        "SELECT count(*) FROM {schema}.job_history WHERE lease_epoch = 1 AND status_final = 'completed'";
    assert_eq!(factory.number(once).await, HANDLERS as i64);
}
