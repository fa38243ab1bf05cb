//! The jobs, and what both sides do with them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use leasehold_core::{Dequeue, Job, NewJob, Queues, Receipt, SettleOutcome, Store, Verdict};

use crate::Result;

/// Jobs per claim and per settlement.
pub const BATCH: usize = 100;

/// So many claims in a row that bring nothing while something is left: then something is wrong.
const EMPTY: usize = 1000;

/// A JSON document of 100 bytes.
pub fn payload() -> String {
    format!(r#"{{"fill":"{}"}}"#, "x".repeat(89))
}

/// A job with such a payload.
pub fn job(queue: &str, priority: i32) -> Result<NewJob> {
    let payload = serde_json::json!({ "fill": "x".repeat(89) });
    Ok(NewJob::builder(queue, "bench").payload(&payload).priority(priority).build()?)
}

/// A claim of a batch from these queues.
pub fn request(queues: &[&str]) -> Result<Dequeue> {
    Ok(Dequeue::new(Queues::named(queues.iter().copied())?, "bench")?.limit(BATCH as u32)?)
}

/// Jobs per second.
pub fn rate(jobs: usize, start: Instant) -> f64 {
    jobs as f64 / start.elapsed().as_secs_f64()
}

/// Claims and settles until `target` jobs are claimed by all lanes together: while one batch is settled, the next is
/// claimed. How many jobs this lane has settled.
pub async fn lane(
    store: &dyn Store,
    request: &Dequeue,
    claimed: &AtomicUsize,
    target: usize,
    settled: impl Fn(usize) + Send,
) -> Result<usize> {
    let (mut batch, mut sum, mut empty) = (Vec::new(), 0, 0);
    while claimed.load(Ordering::Relaxed) < target || !batch.is_empty() {
        let (count, next) = tokio::join!(settle(store, &batch), claim(store, request, claimed, target));
        let count = count?;
        batch = next?.iter().map(|job| (job.receipt(), Verdict::done())).collect();
        sum += count;
        settled(count);
        empty = if batch.is_empty() { empty + 1 } else { 0 };
        if empty > EMPTY {
            return Err("there are jobs left, but claims bring none".into());
        }
    }
    Ok(sum)
}

/// So often a verdict on a job that is locked is given again.
const AGAIN: usize = 1000;

async fn claim(
    store: &dyn Store,
    request: &Dequeue,
    claimed: &AtomicUsize,
    target: usize,
) -> Result<Vec<Job>> {
    if claimed.load(Ordering::Relaxed) >= target {
        return Ok(Vec::new());
    }
    let jobs = store.dequeue(request).await?;
    claimed.fetch_add(jobs.len(), Ordering::Relaxed);
    Ok(jobs)
}

async fn settle(store: &dyn Store, batch: &[(Receipt, Verdict)]) -> Result<usize> {
    settle_all(store, batch.to_vec()).await?;
    Ok(batch.len())
}

/// Settles all of them, some of them again: a claim that races may have a job locked for a moment.
pub async fn settle_all(store: &dyn Store, mut batch: Vec<(Receipt, Verdict)>) -> Result<()> {
    for _ in 0..AGAIN {
        let outcomes = store.settle(&batch).await?;
        if outcomes.iter().any(SettleOutcome::is_lost) {
            return Err("a lease was lost".into());
        }
        let pending = batch.into_iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_pending());
        batch = pending.map(|(item, _)| item).collect();
        if batch.is_empty() {
            return Ok(());
        }
    }
    Err("a job stays locked".into())
}
