//! A producer and a consumer, each a process of its own, on one file.
#![allow(clippy::print_stdout, reason = "a program that shows something")]

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order {
    number: u32,
}

impl JobKind for Order {
    const KIND: &'static str = "order";
}

async fn ship(order: Order, context: Context) {
    let producer = context.headers().get("producer").unwrap_or("nobody");
    println!("   consumer {}: order {} of producer {producer}", std::process::id(), order.number);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    if let Some(url) = std::env::args().nth(1) {
        return produce(&url).await;
    }
    let folder = std::env::temp_dir().join(format!("leasehold-orders-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = consume(&folder).await;
    std::fs::remove_dir_all(&folder)?;
    result
}

/// The other process.
async fn produce(url: &str) -> Result<(), Box<dyn Error>> {
    let store = leasehold::connect(url).await?;
    for number in 1..=5 {
        let order =
            NewJob::of("orders", &Order { number }).header("producer", std::process::id().to_string());
        store.enqueue(&[order.build()?]).await?;
    }
    Ok(())
}

/// This process: starts two producers, and works until all their orders are shipped.
async fn consume(folder: &Path) -> Result<(), Box<dyn Error>> {
    let url = format!("sqlite://{}", folder.join("orders.db").display());
    let store = leasehold::connect(&url).await?;
    let worker = Worker::builder(store)
        .queue("orders")
        .poll_interval(Duration::from_millis(50)) // SQLite wakes nobody in another process
        .handle::<Order>(ship)
        .start()?;
    println!("Two producers, one consumer, one file");
    let start = || Command::new(std::env::current_exe()?).arg(&url).spawn();
    let producers: [_; 2] = [start()?, start()?];
    for mut producer in producers {
        if !producer.wait()?.success() {
            return Err("a producer failed".into());
        }
    }
    for _ in 0..1000 {
        if worker.stats().completed == 10 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stats = worker.stats();
    worker.shutdown(Duration::from_secs(1)).await?;
    println!("   {} orders were shipped", stats.completed);
    if stats.completed == 10 { Ok(()) } else { Err("orders were lost".into()) }
}
