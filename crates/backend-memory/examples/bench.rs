//! How fast the store in memory is, and whether a backlog of a million jobs slows it down.
//!
//! `cargo run --release -p leasehold-memory --example bench [-- --json]`
//!
//! Two stores, one with a small and one with a large backlog, take turns: each round measures the same number of
//! operations on both, so that what disturbs the machine disturbs both. The table shows medians over the rounds.

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use leasehold_core::{Dequeue, NewJob, Result, Store, StoreError, Verdict};
use leasehold_memory::MemoryStore;

const SMALL: usize = 10_000;
const LARGE: usize = 1_000_000;
/// Operations of each kind, in each round, on each store.
const OPERATIONS: usize = 10_000;
const ROUNDS: usize = 15;
const BATCHES: [usize; 2] = [100, 1];
const NAMES: [&str; 3] = ["memory_enqueue", "memory_claim", "memory_settle"];
/// How much slower the large backlog may be.
const LIMIT: f64 = 2.0;

/// Operations per second: enqueue, claim, settle.
type Rates = [f64; 3];

fn main() -> Result<()> {
    let json = std::env::args().any(|argument| argument == "--json");
    let (small, large) = (filled(SMALL)?, filled(LARGE)?);
    if !json {
        println!("{:<16} {:>5} {:>12} {:>12} {:>8}", "per second", "batch", "at 10k", "at 1M", "slower");
    }
    for batch in BATCHES {
        let mut rates: [Vec<Rates>; 2] = Default::default();
        for _ in 0..ROUNDS {
            rates[0].push(round(&small, batch)?);
            rates[1].push(round(&large, batch)?);
        }
        for (operation, name) in NAMES.into_iter().enumerate() {
            let [at_small, at_large] = rates.each_ref().map(|rounds| median(rounds, operation));
            print(json, name, batch, at_small, at_large);
        }
    }
    Ok(())
}

/// A store with a backlog of `jobs`, of a few priorities.
fn filled(jobs: usize) -> Result<MemoryStore> {
    let store = MemoryStore::new();
    let batch = (0..1000).map(new_job).collect::<Result<Vec<_>>>()?;
    for _ in 0..jobs / batch.len() {
        now(store.enqueue(&batch))?;
    }
    Ok(store)
}

/// One round: as many jobs leave the backlog as come, so that it stays as long as it is.
fn round(store: &MemoryStore, batch: usize) -> Result<Rates> {
    let new = (0..batch).map(new_job).collect::<Result<Vec<_>>>()?;
    let request = Dequeue::new("bench", "bench")?.limit(batch as u32)?;
    let rounds = OPERATIONS / batch;

    let start = Instant::now();
    for _ in 0..rounds {
        now(store.enqueue(&new))?;
    }
    let enqueued = rate(start);

    let mut leased = Vec::with_capacity(OPERATIONS);
    let start = Instant::now();
    for _ in 0..rounds {
        leased.push(now(store.dequeue(&request))?);
    }
    let claimed = rate(start);

    let verdicts: Vec<Vec<_>> =
        leased.iter().map(|jobs| jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect()).collect();
    let start = Instant::now();
    for items in &verdicts {
        now(store.settle(items))?;
    }
    Ok([enqueued, claimed, rate(start)])
}

fn new_job(number: usize) -> Result<NewJob> {
    let job = NewJob::builder("bench", "bench").payload(&number).priority((number % 5) as i32);
    Ok(job.build()?)
}

fn rate(start: Instant) -> f64 {
    OPERATIONS as f64 / start.elapsed().as_secs_f64()
}

fn median(rounds: &[Rates], operation: usize) -> f64 {
    let mut rates: Vec<f64> = rounds.iter().map(|rates| rates[operation]).collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn print(json: bool, name: &str, batch: usize, at_small: f64, at_large: f64) {
    let ratio = at_small / at_large;
    if !json {
        println!("{name:<16} {batch:>5} {at_small:>12.0} {at_large:>12.0} {ratio:>7.2}x");
    } else if batch == BATCHES[0] {
        println!(
            r#"{{"name":"{name}","ours":{at_large:.0},"limit":{LIMIT},"ratio":{ratio:.3},"unit":"operations/s"}}"#
        );
    }
}

/// The answer of an operation. In memory none ever waits, so that no runtime is needed.
fn now<T>(operation: impl Future<Output = Result<T>>) -> Result<T> {
    match pin!(operation).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => Err(StoreError::unavailable("bench", "the operation waits")),
    }
}
