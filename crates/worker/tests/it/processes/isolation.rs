//! Transactional handlers at REPEATABLE READ and SERIALIZABLE, for longer than their lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use diesel_async::{AnsiTransactionManager, SimpleAsyncConnection, TransactionManager};
use leasehold_core::{BatchSize, Json, Settled, Store, TxStore};
use leasehold_postgres::PgStore;
use leasehold_worker::{Context, Worker};

use super::child::{QUEUE, Stuck};
use super::factory::{Factory, PATIENCE, url};

const LEVELS: [&str; 2] =
    ["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"];
const HANDLERS: usize = 8;
/// Long enough for heartbeats to be answered in time on a machine with other work.
const LEASE: Duration = Duration::from_secs(3);

/// Until the heartbeats of this lease were answered five times: for longer than the lease. Nothing takes the job meanwhile.
async fn outlive(context: &Context<PgStore>) {
    let (start, mut left) = (Instant::now(), context.lease_left());
    let mut beats = 0;
    while beats < 5 {
        assert!(start.elapsed() < PATIENCE, "there are no heartbeats");
        assert!(!context.is_cancelled(), "the token has fired");
        let reclaimed = context.state().reclaim(BatchSize::MAX).await.unwrap();
        assert!(reclaimed.is_empty(), "locked jobs were reclaimed: {reclaimed:?}");
        let now = context.lease_left();
        beats += usize::from(now > left);
        left = now;
    }
    assert!(start.elapsed() > LEASE, "this is to last longer than the lease");
}

async fn pay(level: &str, context: Context<PgStore>) -> Result<Settled, String> {
    let store = context.state();
    let mut tx = store.pool().get().await.map_err(|error| error.to_string())?;
    AnsiTransactionManager::begin_transaction(&mut *tx).await.map_err(|error| error.to_string())?;
    tx.batch_execute(level).await.map_err(|error| error.to_string())?;
    store.lock_in(&mut tx, context.receipt()).await.map_err(|error| error.to_string())?;
    // Work of its own, which needs a snapshot.
    tx.batch_execute("SELECT now()").await.map_err(|error| error.to_string())?;
    outlive(&context).await;
    let settled = store.ack_in(&mut tx, &context.receipt(), Json::null()).await;
    let settled = settled.map_err(|error| error.to_string())?;
    AnsiTransactionManager::commit_transaction(&mut *tx).await.map_err(|error| error.to_string())?;
    Ok(settled)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_above_read_committed_settles_after_many_heartbeats() {
    for level in LEVELS {
        let factory = Factory::new(url()).await;
        factory.enqueue(HANDLERS, |_| Stuck).await;
        let builder = PgStore::builder().schema(factory.schema.clone()).pool_size(3 * HANDLERS);
        let store = builder.connect(&factory.url).await.unwrap();
        let handler = move |_: Stuck, context: Context<PgStore>| pay(level, context);
        let worker = Worker::builder(Arc::new(store.clone())).state(store).queue(QUEUE).lease(LEASE);
        let worker = worker.concurrency(HANDLERS).handle_tx::<Stuck>(handler).start().unwrap();
        factory.until("SELECT count(*) FROM {schema}.job_queue", |live| live == 0).await;
        let once =
            "SELECT count(*) FROM {schema}.job_history WHERE lease_epoch = 1 AND status_final = 'completed'";
        assert_eq!(factory.number(once).await, HANDLERS as i64, "{level}");
        assert_eq!(worker.stats().lease_lost, 0, "{level}");
        worker.shutdown(Duration::ZERO).await.unwrap();
    }
}
