//! Limits over all workers: at most so many jobs of a queue at once, and at most so many per second. They are kept in the
//! store, so that any number of processes share them.
#![allow(clippy::print_stdout, reason = "a program that shows something")]

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold::prelude::*;
use leasehold::{ConcurrencyLimit, Explanation, QueuePolicy, RateLimit};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Call {}

impl JobKind for Call {
    const KIND: &'static str = "call";
}

/// How many calls are under way, and how many were at most.
#[derive(Default)]
struct Line(Mutex<(usize, usize)>);

impl Line {
    fn count(&self, by: isize) {
        let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        line.0 = line.0.saturating_add_signed(by);
        line.1 = line.1.max(line.0);
    }
}

async fn call(_: Call, context: Context<Arc<Line>>) {
    context.state().count(1);
    tokio::time::sleep(Duration::from_millis(20)).await;
    context.state().count(-1);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("Without limits: two workers with ten slots each");
    work(QueuePolicy::default(), 40).await?;

    println!("\nAt most three at once, over both workers");
    let three = QueuePolicy { concurrency_limit: Some(ConcurrencyLimit::new(3)?), ..QueuePolicy::default() };
    let most = work(three, 40).await?;
    if most > 3 {
        return Err(format!("{most} calls at once").into());
    }

    println!("\nAt most fifty per second, ten of them at a stroke");
    let start = Instant::now();
    let rate = QueuePolicy { rate: Some(RateLimit::new(50.0, 10)?), ..QueuePolicy::default() };
    work(rate, 40).await?;
    if start.elapsed() < Duration::from_millis(550) {
        return Err(format!("40 calls in {:?}", start.elapsed()).into());
    }

    println!("\nWhy is this job not running?");
    let store = leasehold::connect("memory:").await?;
    store.pause(&"calls".try_into()?).await?;
    let job = store.enqueue(&[NewJob::of("calls", &Call {}).build()?]).await?[0].id;
    match store.explain(job).await? {
        Explanation::Paused => println!("   its queue is paused"),
        other => return Err(format!("{other:?}").into()),
    }
    Ok(())
}

/// Two workers on one queue with this policy. How many calls there were at once.
async fn work(policy: QueuePolicy, calls: usize) -> Result<usize, Box<dyn Error>> {
    let store = leasehold::connect("memory:").await?;
    store.set_policy(&"calls".try_into()?, &policy).await?;
    let jobs: Vec<NewJob> =
        (0..calls).map(|_| NewJob::of("calls", &Call {}).build()).collect::<Result<_, _>>()?;
    store.enqueue(&jobs).await?;
    let line = Arc::new(Line::default());
    let start = Instant::now();
    let worker = || {
        Worker::builder(store.clone())
            .state(line.clone())
            .queue("calls")
            .concurrency(10)
            .handle::<Call>(call)
            .start()
    };
    let workers = [worker()?, worker()?];
    while workers.iter().map(|worker| worker.stats().completed).sum::<u64>() < calls as u64 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let took = start.elapsed();
    for worker in &workers {
        worker.shutdown(Duration::from_secs(1)).await?;
    }
    let most = line.0.lock().unwrap_or_else(PoisonError::into_inner).1;
    println!("   {calls} calls in {took:.0?}, up to {most} at once");
    Ok(most)
}
