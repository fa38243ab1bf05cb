//! Draining a queue of jobs with nothing to do.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use crate::ground::Ground;
use crate::load::{lane, rate, request};
use crate::{Bench, Rates, Result, bare};

pub(crate) async fn round(bench: &Bench) -> Result<Rates> {
    Ok(Rates { ours: ours(bench).await?, limit: limit(bench).await? })
}

async fn ours(bench: &Bench) -> Result<f64> {
    let jobs = bench.options.sizes.drain;
    let ground = Ground::new(&bench.url, 2 * bench.options.lanes).await?;
    ground.fill(jobs).await?;
    let (rate, _) = drain(&ground, bench.options.lanes, jobs).await?;
    ground.expect(0, jobs).await?;
    ground.remove().await?;
    Ok(rate)
}

async fn limit(bench: &Bench) -> Result<f64> {
    let jobs = bench.options.sizes.drain;
    let ground = Ground::new(&bench.url, 1).await?;
    ground.fill(jobs).await?;
    let claimers = bare::clients(&ground.url, bench.options.lanes).await?;
    let settlers = bare::clients(&ground.url, bench.options.lanes).await?;
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (claimer, settler) in claimers.into_iter().zip(settlers) {
        tasks.spawn(bare::drain(claimer, settler));
    }
    while let Some(drained) = tasks.join_next().await {
        drained??;
    }
    let rate = rate(jobs, start);
    ground.expect(0, jobs).await?;
    ground.remove().await?;
    Ok(rate)
}

/// Drains about so many jobs of the queue `bench`, all of them if there are no more. At which rate, and how many.
pub(crate) async fn drain(ground: &Ground, lanes: usize, jobs: usize) -> Result<(f64, usize)> {
    let claimed = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..lanes {
        let (store, claimed, request) = (ground.store.clone(), Arc::clone(&claimed), request(&["bench"])?);
        tasks.spawn(async move { lane(&store, &request, &claimed, jobs, |_| {}).await });
    }
    let mut sum = 0;
    while let Some(settled) = tasks.join_next().await {
        sum += settled??;
    }
    Ok((rate(sum, start), sum))
}
