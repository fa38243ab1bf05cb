//! How fast the store in memory is, and whether a backlog of a million jobs slows it down.
//!
//! `cargo xtask bench memory [--json]`
//!
//! Two stores, one with a small and one with a large backlog, take turns: each round measures the same number of
//! operations on both, so that what disturbs the machine disturbs both. The table shows medians over the rounds.
//! A second table shows shapes of a million jobs that a linear search would not survive.

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use leasehold_core::{
    Dequeue, Job, NewJob, NewJobBuilder, QueueOrder, QueuePolicy, Queues, Result, Store, StoreError, Verdict,
};
use leasehold_memory::MemoryStore;

const SMALL: usize = 10_000;
const LARGE: usize = 1_000_000;
/// Operations of each kind, in each round, on each store.
const OPERATIONS: usize = 10_000;
const ROUNDS: usize = 15;
const BATCHES: [usize; 2] = [100, 1];
const NAMES: [&str; 3] = ["memory_enqueue", "memory_claim", "memory_settle"];

/// Operations per second: enqueue, claim, settle.
type Rates = [f64; 3];

/// What is measured: jobs like these, claimed from these queues.
struct Load {
    queues: &'static str,
    job: fn(usize) -> NewJobBuilder,
}

/// One queue, a few priorities.
const PLAIN: Load =
    Load { queues: "bench", job: |n| NewJob::builder("bench", "bench").priority((n % 5) as i32) };
/// Ten thousand queues by their prefix.
const MANY: Load = Load { queues: "q:*", job: |n| NewJob::builder(format!("q:{}", n % 10_000), "bench") };
/// Ten queues among ten thousand.
const FREE: Load = Load { queues: "q:*", job: |n| NewJob::builder(format!("q:free:{}", n % 10), "bench") };

fn main() -> Result<()> {
    let json = std::env::args().any(|argument| argument == "--json");
    compare_backlogs(json)?;
    if !json {
        measure_shapes()?;
    }
    Ok(())
}

fn compare_backlogs(json: bool) -> Result<()> {
    let (small, large) = (MemoryStore::new(), MemoryStore::new());
    fill(&small, SMALL, PLAIN.job)?;
    fill(&large, LARGE, PLAIN.job)?;
    if !json {
        println!("{:<16} {:>5} {:>12} {:>12} {:>8}", "per second", "batch", "at 10k", "at 1M", "1M/10k");
    }
    for batch in BATCHES {
        let mut rates: [Vec<Rates>; 2] = Default::default();
        for _ in 0..ROUNDS {
            rates[0].push(round(&small, batch, &PLAIN)?);
            rates[1].push(round(&large, batch, &PLAIN)?);
        }
        for (operation, name) in NAMES.into_iter().enumerate() {
            let [at_small, at_large] = rates.each_ref().map(|rounds| median(rounds, operation));
            print(json, name, batch, at_small, at_large);
        }
    }
    Ok(())
}

fn measure_shapes() -> Result<()> {
    println!("\n{:<46} {:>10} {:>10} {:>10}", "per second, batch 1", "enqueue", "claim", "settle");
    let later = |n: usize| (PLAIN.job)(n).priority(100).delay(Duration::from_secs(3600));
    let store = MemoryStore::new();
    fill(&store, LARGE, later)?;
    measure("a million scheduled at a higher priority", &store, &PLAIN)?;

    let store = MemoryStore::new();
    fill(&store, LARGE, MANY.job)?;
    measure("a million in ten thousand queues, by prefix", &store, &MANY)?;

    measure("the same, all but ten queues paused or blocked", &blocked()?, &FREE)
}

/// Ten thousand queues: half of them paused, half of them Fifo with a first job that waits.
fn blocked() -> Result<MemoryStore> {
    let store = MemoryStore::new();
    let paused = QueuePolicy { paused: Some(true), ..QueuePolicy::default() };
    let fifo = QueuePolicy { order: Some(QueueOrder::Fifo), ..QueuePolicy::default() };
    now(store.set_policy(&"q:a:*".parse()?, &paused))?;
    now(store.set_policy(&"q:b:*".parse()?, &fifo))?;
    fill(&store, 5_000, |n| NewJob::builder(format!("q:b:{n}"), "bench").delay(Duration::from_secs(3600)))?;
    fill(&store, LARGE / 2, |n| NewJob::builder(format!("q:a:{}", n % 5_000), "bench"))?;
    fill(&store, LARGE / 2, |n| NewJob::builder(format!("q:b:{}", n % 5_000), "bench"))?;
    Ok(store)
}

fn measure(shape: &str, store: &MemoryStore, load: &Load) -> Result<()> {
    let rounds = (0..ROUNDS).map(|_| round(store, 1, load)).collect::<Result<Vec<_>>>()?;
    let [enqueue, claim, settle] = [0, 1, 2].map(|operation| median(&rounds, operation));
    println!("{shape:<46} {enqueue:>10.0} {claim:>10.0} {settle:>10.0}");
    Ok(())
}

/// Puts so many jobs into the store.
fn fill(store: &MemoryStore, jobs: usize, job: fn(usize) -> NewJobBuilder) -> Result<()> {
    for start in (0..jobs).step_by(1000) {
        let batch = (start..start + 1000).map(|n| job(n).build()).collect::<Result<Vec<_>, _>>()?;
        now(store.enqueue(&batch))?;
    }
    Ok(())
}

/// One round: as many jobs leave the backlog as come, so that it stays as long as it is.
fn round(store: &MemoryStore, batch: usize, load: &Load) -> Result<Rates> {
    let new = (0..OPERATIONS).map(|n| (load.job)(n).payload(&n).build()).collect::<Result<Vec<_>, _>>()?;
    let request = Dequeue::new(load.queues.parse::<Queues>()?, "bench")?.limit(batch as u32)?;

    let start = Instant::now();
    for new in new.chunks(batch) {
        now(store.enqueue(new))?;
    }
    let enqueued = rate(start);

    let mut leased = Vec::with_capacity(OPERATIONS);
    let start = Instant::now();
    for _ in 0..OPERATIONS / batch {
        leased.push(now(store.dequeue(&request))?);
    }
    let claimed = rate(start);

    let verdict = |job: &Job| (job.receipt(), Verdict::done());
    let verdicts: Vec<Vec<_>> = leased.iter().map(|jobs| jobs.iter().map(verdict).collect()).collect();
    let start = Instant::now();
    for items in &verdicts {
        now(store.settle(items))?;
    }
    let settled = rate(start);
    assert_eq!(leased.iter().map(Vec::len).sum::<usize>(), OPERATIONS, "every claim finds a job");
    Ok([enqueued, claimed, settled])
}

fn rate(start: Instant) -> f64 {
    OPERATIONS as f64 / start.elapsed().as_secs_f64()
}

fn median(rounds: &[Rates], operation: usize) -> f64 {
    let mut rates: Vec<f64> = rounds.iter().map(|rates| rates[operation]).collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// The small backlog is the limit that the large one is held against: a ratio of 1 means that length costs nothing.
fn print(json: bool, name: &str, batch: usize, at_small: f64, at_large: f64) {
    let ratio = at_large / at_small;
    if !json {
        println!("{name:<16} {batch:>5} {at_small:>12.0} {at_large:>12.0} {ratio:>8.2}");
    } else if batch == BATCHES[0] {
        println!(
            r#"{{"name":"{name}","ours":{at_large:.0},"limit":{at_small:.0},"ratio":{ratio:.3},"unit":"operations/s"}}"#
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
