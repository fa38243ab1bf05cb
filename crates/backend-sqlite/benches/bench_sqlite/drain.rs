//! Draining a queue of jobs with nothing to do.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use crate::Options;
use crate::Rates;
use crate::ground::Ground;
use crate::load::{lane, rate, request};
use crate::{Result, bare};

pub(crate) async fn round(options: &Options) -> Result<Rates> {
    Ok(Rates { ours: ours(options).await?, limit: limit(options).await? })
}

async fn ours(options: &Options) -> Result<f64> {
    let jobs = options.sizes.drain;
    let ground = Ground::new().await?;
    ground.fill(jobs).await?;
    let (rate, _) = drain(&ground, options.lanes, jobs).await?;
    ground.expect(0, jobs).await?;
    Ok(rate)
}

async fn limit(options: &Options) -> Result<f64> {
    let jobs = options.sizes.drain;
    let ground = Ground::new().await?;
    ground.fill(jobs).await?;
    let mut conn = ground.connection().await?;
    let start = Instant::now();
    let drained = bare::drain(&mut conn)?;
    let rate = rate(drained, start);
    ground.expect(0, jobs).await?;
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
