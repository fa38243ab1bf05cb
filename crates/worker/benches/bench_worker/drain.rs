//! Draining a queue of jobs with nothing to do: by a worker, and as the limit by the store alone, in lanes that claim and
//! settle.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::{Dequeue, Job, JobKind, Receipt, SettleOutcome, Store, Verdict};
use leasehold_postgres::PgStore;
use leasehold_worker::{Context, Worker};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::ground::Ground;
use crate::measure::Reading;
use crate::{Bench, Result};

/// Lanes, each with a claim and a settlement under way: as in the benchmark of the backend.
const LANES: usize = 4;
/// Jobs per claim and per settlement.
const BATCH: usize = 100;
/// Jobs in the hands of handlers: as many as the lanes have in theirs.
const CONCURRENCY: usize = 2 * LANES * BATCH;

#[derive(Serialize, Deserialize)]
struct Nothing {
    fill: String,
}

impl JobKind for Nothing {
    const KIND: &'static str = "bench";
}

pub(crate) async fn round(bench: &Bench) -> Result<Vec<Reading>> {
    // Whoever comes first finds another server than whoever comes second.
    let (ours, limit) = if fastrand::bool() {
        (side(bench, true).await?, side(bench, false).await?)
    } else {
        let limit = side(bench, false).await?;
        (side(bench, true).await?, limit)
    };
    Ok(vec![Reading { name: "drain", unit: "jobs/s", ours, limit }])
}

async fn side(bench: &Bench, by_worker: bool) -> Result<f64> {
    let jobs = bench.options.sizes.drain;
    let ground = Ground::new(bench, 2 * LANES).await?;
    ground.fill(jobs).await?;
    let start = Instant::now();
    if by_worker {
        worker(&ground, jobs).await?;
    } else {
        lanes(&ground, jobs).await?;
    }
    let rate = jobs as f64 / start.elapsed().as_secs_f64();
    ground.expect_finished(jobs).await?;
    ground.remove().await?;
    Ok(rate)
}

async fn worker(ground: &Ground, jobs: usize) -> Result {
    let handler = async |_: Nothing, _: Context<()>| {};
    let worker = Worker::builder(Arc::new(ground.store.clone())).queue("bench").concurrency(CONCURRENCY);
    let worker = worker.handle::<Nothing>(handler).start()?;
    while worker.stats().completed < jobs as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    worker.shutdown(Duration::ZERO).await?;
    Ok(())
}

async fn lanes(ground: &Ground, jobs: usize) -> Result {
    let claimed = Arc::new(AtomicUsize::new(0));
    let mut lanes = JoinSet::new();
    for _ in 0..LANES {
        lanes.spawn(lane(ground.store.clone(), Arc::clone(&claimed), jobs));
    }
    while let Some(done) = lanes.join_next().await {
        done??;
    }
    Ok(())
}

/// Claims and settles until `target` jobs are claimed by all lanes together: while one batch is settled, the next is
/// claimed.
async fn lane(store: PgStore, claimed: Arc<AtomicUsize>, target: usize) -> Result {
    let request = Dequeue::new("bench", "bench")?.limit(BATCH as u32)?;
    let mut batch: Vec<(Receipt, Verdict)> = Vec::new();
    while claimed.load(Ordering::Relaxed) < target || !batch.is_empty() {
        let (settled, next) =
            tokio::join!(settle_all(&store, batch), claim(&store, &request, &claimed, target));
        settled?;
        batch = next?.iter().map(|job| (job.receipt(), Verdict::done())).collect();
    }
    Ok(())
}

/// Settles all of them, some of them again: a claim that races may have a job locked for a moment.
async fn settle_all(store: &PgStore, mut batch: Vec<(Receipt, Verdict)>) -> Result {
    while !batch.is_empty() {
        let outcomes = store.settle(&batch).await?;
        if outcomes.iter().any(SettleOutcome::is_lost) {
            return Err("a lease was lost".into());
        }
        let pending = batch.into_iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_pending());
        batch = pending.map(|(item, _)| item).collect();
    }
    Ok(())
}

async fn claim(store: &PgStore, request: &Dequeue, claimed: &AtomicUsize, target: usize) -> Result<Vec<Job>> {
    if claimed.load(Ordering::Relaxed) >= target {
        return Ok(Vec::new());
    }
    let jobs = store.dequeue(request).await?;
    claimed.fetch_add(jobs.len(), Ordering::Relaxed);
    Ok(jobs)
}
