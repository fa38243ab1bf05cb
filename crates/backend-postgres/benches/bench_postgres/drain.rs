//! Draining a queue of jobs with nothing to do.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use leasehold_core::{Archive, QueuePattern, QueuePolicy, Store};

use crate::Rates;
use crate::ground::Ground;
use crate::load::{BATCH, lane, rate, request};
use crate::pgbench::Script;
use crate::{Bench, Result};

const CLAIM: &str = include_str!("sql/claim.sql");
const ARCHIVE: &str = include_str!("sql/archive.sql");
const DELETE: &str = include_str!("sql/delete.sql");

/// Completed jobs go to the history.
pub(crate) async fn with_history(bench: &Bench) -> Result<Rates> {
    Ok(Rates { ours: ours(bench, Archive::All).await?, limit: limit(bench, Archive::All).await? })
}

/// Completed jobs are gone.
pub(crate) async fn dead_only(bench: &Bench) -> Result<Rates> {
    Ok(Rates { ours: ours(bench, Archive::DeadOnly).await?, limit: limit(bench, Archive::DeadOnly).await? })
}

async fn ours(bench: &Bench, archive: Archive) -> Result<f64> {
    let jobs = bench.options.sizes.drain;
    let ground = Ground::new(&bench.server, 2 * bench.options.lanes).await?;
    if archive == Archive::DeadOnly {
        let policy = QueuePolicy { archive: Some(archive), ..QueuePolicy::default() };
        ground.store.set_policy(&"bench".parse::<QueuePattern>()?, &policy).await?;
    }
    ground.fill(jobs).await?;
    let (rate, _) = drain(&ground, bench.options.lanes, jobs).await?;
    finish(ground, archive, jobs).await?;
    Ok(rate)
}

async fn limit(bench: &Bench, archive: Archive) -> Result<f64> {
    let jobs = bench.options.sizes.drain;
    let ground = Ground::new(&bench.server, 1).await?;
    ground.fill(jobs).await?;
    let settle = if archive == Archive::All { ARCHIVE } else { DELETE };
    let clients = bench.options.clients;
    let text = ground.sql(&format!("{CLAIM}{settle}"));
    let rate = Script { text, clients, runs: jobs / BATCH / clients }.rate(&bench.server)? * BATCH as f64;
    finish(ground, archive, jobs).await?;
    Ok(rate)
}

async fn finish(ground: Ground, archive: Archive, jobs: usize) -> Result {
    ground.expect(0, if archive == Archive::All { jobs } else { 0 }).await?;
    ground.remove().await
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
