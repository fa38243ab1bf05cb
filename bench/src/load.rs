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
    let outcomes = store.settle(batch).await?;
    let is_lost = |outcome: &SettleOutcome| !matches!(outcome, SettleOutcome::Settled(_));
    if outcomes.iter().any(is_lost) {
        return Err("a lease was lost".into());
    }
    Ok(outcomes.len())
}
