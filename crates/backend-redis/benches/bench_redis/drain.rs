//! Draining a queue of jobs with nothing to do.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use tokio::task::JoinSet;

use crate::ground::Ground;
use crate::load::{lane, rate, request};
use crate::{Bench, Rates, Result};

pub(crate) async fn round(bench: &Bench) -> Result<Rates> {
    Ok(Rates { ours: ours(bench).await?, limit: limit(bench).await? })
}

async fn ours(bench: &Bench) -> Result<f64> {
    let jobs = bench.options.sizes.drain;
    let ground = Ground::new(&bench.url).await?;
    ground.fill(jobs).await?;
    let claimed = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..bench.options.lanes {
        let (store, claimed, request) = (ground.store.clone(), Arc::clone(&claimed), request(&["bench"])?);
        tasks.spawn(async move { lane(&store, &request, &claimed, jobs, |_| {}).await });
    }
    let rate = finish(jobs, tasks, start).await?;
    ground.expect(0).await?;
    Ok(rate)
}

async fn limit(bench: &Bench) -> Result<f64> {
    let jobs = bench.options.sizes.drain;
    let ground = Ground::new(&bench.url).await?;
    for _ in 0..jobs / 1000 {
        ground.bare.enqueue(1000).await?;
    }
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..bench.options.lanes {
        tasks.spawn(ground.bare.clone().drain());
    }
    finish(jobs, tasks, start).await
}

async fn finish(jobs: usize, mut tasks: JoinSet<Result<usize>>, start: Instant) -> Result<f64> {
    let mut sum = 0;
    while let Some(drained) = tasks.join_next().await {
        sum += drained??;
    }
    if sum == jobs { Ok(rate(jobs, start)) } else { Err(format!("{sum} of {jobs} jobs were drained").into()) }
}
