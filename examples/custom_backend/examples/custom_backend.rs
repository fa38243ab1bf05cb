//! A shop on a backend of its own making: orders and jobs in one redb file, paid for and settled in one transaction.
//!
//! The worker is Leasehold's and knows nothing of redb. The first payment of one order fails *after* it was written down:
//! what was written is rolled back with it, and the order is paid once, by the second attempt. In the end the file is closed
//! and opened again, to see what it has kept.
#![allow(clippy::print_stdout, reason = "a program that shows something")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold::prelude::*;
use leasehold::{Backoff, BoxError, HistoryFilter};
use leasehold_example_redb::RedbStore;
use redb::{ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};

/// The shop's own table, in the same file as the jobs: how often and how much was paid, by order.
const PAID: TableDefinition<u64, (u64, u64)> = TableDefinition::new("paid");

#[derive(Serialize, Deserialize)]
struct Pay {
    order: u64,
    cents: u64,
}

impl JobKind for Pay {
    const KIND: &'static str = "pay";
}

/// The payment and the end of the job: both, or neither.
async fn pay(pay: Pay, context: Context<RedbStore>) -> Result<Settled, BoxError> {
    let store = context.state();
    let mut tx = store.begin().await?;
    {
        let mut paid = tx.open_table(PAID)?;
        let (times, cents) = paid.get(pay.order)?.map_or((0, 0), |row| row.value());
        paid.insert(pay.order, (times + 1, cents + pay.cents))?;
    }
    if pay.order == 3 && context.attempt() == 1 {
        println!("   order 3: written down, and then the power fails"); // `tx` is dropped here, and rolled back
        return Err("no power".into());
    }
    let settled = store.ack_in(&mut tx, &context.receipt(), Json::null()).await?;
    tx.commit()?;
    println!("   order {}: {} cents, by attempt {}", pay.order, pay.cents, context.attempt());
    Ok(settled)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("leasehold-shop-{}.redb", std::process::id()));
    println!("Orders and jobs in {}", path.display());
    work(&path).await?;
    println!("\nThe file was closed. Opened again, it has");
    let all_paid_once = look(&path).await?;
    std::fs::remove_file(&path)?;
    if !all_paid_once {
        return Err("an order was not paid exactly once".into());
    }
    println!("\nIs the backend right? cargo test -p leasehold-example-redb --test conformance");
    Ok(())
}

async fn work(path: &Path) -> Result<(), Box<dyn Error>> {
    let store = RedbStore::open(path).map_err(|error| error.to_string())?;
    let soon = Duration::from_millis(50);
    let worker = Worker::builder(Arc::new(store.clone()))
        .state(store.clone())
        .queue("orders")
        .poll_interval(soon) // this backend wakes nobody
        .backoff_of::<Pay>(Backoff::new(soon, 0.0, soon, soon)?)
        .handle_tx::<Pay>(pay)
        .start()?;
    let orders = (1..=5).map(|order| NewJob::of("orders", &Pay { order, cents: order * 100 }).build());
    store.enqueue(&orders.collect::<Result<Vec<_>, _>>()?).await?;

    let mut events = worker.events();
    while worker.stats().completed < 5 {
        tokio::time::timeout(Duration::from_secs(20), events.recv()).await??;
    }
    worker.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// Prints what the file has, and says whether each of five orders was paid once.
async fn look(path: &Path) -> Result<bool, Box<dyn Error>> {
    let store = RedbStore::open(path).map_err(|error| error.to_string())?;
    for job in store.history(&HistoryFilter::default()).await?.items {
        println!(
            "   job {}: {}, {} of {} attempts",
            job.id,
            job.outcome.status(),
            job.attempts,
            job.max_attempts
        );
    }
    let tx = store.database().begin_read()?;
    let mut right = Vec::new();
    for row in tx.open_table(PAID)?.iter()? {
        let (order, paid) = row?;
        let (order, (times, cents)) = (order.value(), paid.value());
        println!("   order {order}: paid {times} time, {cents} cents");
        right.push(times == 1 && cents == order * 100);
    }
    Ok(right == [true; 5])
}
