//! The worker process.

use std::sync::Arc;
use std::time::Duration;

use diesel::sql_types::BigInt;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use leasehold_core::{JobKind, Json, Settled, TxStore};
use leasehold_postgres::{PgStore, Schema, TxError};
use leasehold_worker::{Context, Done, Worker};
use serde::{Deserialize, Serialize};

use super::dying::{Death, Dying, Point};
use super::log;

/// The variable with the orders of a worker process.
pub(crate) const ORDERS: &str = "LEASEHOLD_TEST_WORKER_PROCESS";
/// The test that is the worker process, if there are orders.
pub(crate) const TEST: &str = "processes::child::the_worker_process";
pub(crate) const QUEUE: &str = "work";

/// What a worker process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) name: String,
    pub(crate) concurrency: usize,
    pub(crate) lease: Duration,
    pub(crate) grace: Duration,
    /// Where it dies, when it comes there for the so many-th time.
    pub(crate) death: Option<(Point, u32)>,
}

/// Writes to the ledger and settles its job, in one transaction.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pay;

impl JobKind for Pay {
    const KIND: &'static str = "pay";
}

/// Writes a note, takes a while, and leaves the settling to the worker. Its result is the epoch that it ran under.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) takes: Duration,
}

impl JobKind for Note {
    const KIND: &'static str = "note";
}

/// Writes a note and never ends.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Stuck;

impl JobKind for Stuck {
    const KIND: &'static str = "stuck";
}

/// A worker process, if there are orders for one; otherwise there is nothing to see.
#[test]
fn the_worker_process() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    log::install();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(work(serde_json::from_str(&orders).unwrap()));
}

async fn work(orders: Orders) {
    let schema = Schema::new(orders.schema.as_str()).unwrap();
    let store = PgStore::builder().schema(schema).connect(&orders.url).await.unwrap();
    let death = Arc::new(Death::new(orders.death));
    let dying = Dying { store: store.clone(), schema: orders.schema.clone(), death: Arc::clone(&death) };
    let worker = Worker::builder(Arc::new(dying))
        .state(Desk { store, schema: orders.schema, death })
        .queue(QUEUE)
        .worker_id(orders.name.as_str())
        .concurrency(orders.concurrency)
        .lease(orders.lease)
        .grace(orders.grace)
        .poll_interval(Duration::from_millis(200))
        .handle_tx::<Pay>(pay)
        .handle::<Note>(note)
        .handle::<Stuck>(stuck)
        .start()
        .unwrap();
    worker.run_until_signal().await.unwrap();
}

struct Desk {
    store: PgStore,
    schema: String,
    death: Arc<Death>,
}

impl Desk {
    async fn write(
        &self,
        conn: &mut AsyncPgConnection,
        table: &str,
        context: &Context<Self>,
    ) -> Result<(), TxError> {
        let receipt = context.receipt();
        let insert =
            diesel::sql_query(format!("INSERT INTO {}.{table} (job, epoch) VALUES ($1, $2)", self.schema));
        let insert = insert.bind::<BigInt, _>(receipt.job.get()).bind::<BigInt, _>(receipt.epoch.get());
        insert.execute(conn).await?;
        Ok(())
    }
}

async fn pay(_: Pay, context: Context<Desk>) -> Result<Settled, String> {
    let desk = context.state();
    tokio::time::sleep(Duration::from_micros(fastrand::u64(..10_000))).await;
    desk.death.pass(Point::Started);
    let mut conn = desk.store.pool().get().await.map_err(|error| error.to_string())?;
    let written = conn.transaction(async |conn| {
        desk.write(conn, "ledger", &context).await?;
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..5_000))).await;
        let settled = desk.store.ack_in(conn, &context.receipt(), Json::null()).await?;
        desk.death.pass(Point::Written);
        Ok::<_, TxError>(settled)
    });
    let settled = written.await.map_err(|error| error.to_string())?;
    desk.death.pass(Point::Committed);
    Ok(settled)
}

async fn note(note: Note, context: Context<Desk>) -> Result<Done<i64>, String> {
    write_note(&context).await?;
    tokio::time::sleep(note.takes).await;
    Ok(Done(context.receipt().epoch.get()))
}

async fn stuck(_: Stuck, context: Context<Desk>) -> Result<(), String> {
    write_note(&context).await?;
    std::future::pending().await
}

async fn write_note(context: &Context<Desk>) -> Result<(), String> {
    let desk = context.state();
    let mut conn = desk.store.pool().get().await.map_err(|error| error.to_string())?;
    desk.write(&mut conn, "note", context).await.map_err(|error| error.to_string())
}
