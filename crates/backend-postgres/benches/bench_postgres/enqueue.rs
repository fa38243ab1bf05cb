//! Enqueueing, one by one and in batches.

use std::time::Instant;

use leasehold_core::Store;

use crate::Rates;
use crate::ground::Ground;
use crate::load::{job, rate};
use crate::pgbench::Script;
use crate::{Bench, Result};

const SINGLE: &str = include_str!("sql/enqueue_single.sql");
const BATCH: &str = include_str!("sql/enqueue_batch.sql");

/// One job at a time by ten tasks.
pub(crate) async fn single(bench: &Bench) -> Result<Rates> {
    let side = Side { tasks: 10, jobs: 1, total: bench.options.sizes.single };
    Ok(Rates { ours: side.ours(bench).await?, limit: side.limit(bench, SINGLE).await? })
}

/// A thousand jobs at a time by two tasks.
pub(crate) async fn batch(bench: &Bench) -> Result<Rates> {
    let side = Side { tasks: 2, jobs: 1000, total: bench.options.sizes.batch };
    Ok(Rates { ours: side.ours(bench).await?, limit: side.limit(bench, BATCH).await? })
}

/// So many tasks enqueue so many jobs at a time, until there are so many in total.
struct Side {
    tasks: usize,
    jobs: usize,
    total: usize,
}

impl Side {
    async fn ours(&self, bench: &Bench) -> Result<f64> {
        let ground = self.ground(bench).await?;
        let jobs = vec![job("bench", 0)?; self.jobs];
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..self.tasks {
            let (store, jobs, runs) = (ground.store.clone(), jobs.clone(), self.runs());
            tasks.spawn(async move {
                for _ in 0..runs {
                    store.enqueue(&jobs).await?;
                }
                Result::Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        let rate = rate(self.total, start);
        ground.expect(self.total, 0).await?;
        ground.remove().await?;
        Ok(rate)
    }

    async fn limit(&self, bench: &Bench, script: &str) -> Result<f64> {
        let ground = self.ground(bench).await?;
        let script = Script { text: ground.sql(script), clients: self.tasks, runs: self.runs() };
        let rate = script.rate(&bench.server)? * self.jobs as f64;
        ground.expect(self.total, 0).await?;
        ground.remove().await?;
        Ok(rate)
    }

    /// With a connection for each task.
    async fn ground(&self, bench: &Bench) -> Result<Ground> {
        let ground = Ground::new(&bench.server, self.tasks).await?;
        ground.settle_down().await?;
        Ok(ground)
    }

    fn runs(&self) -> usize {
        self.total / self.jobs / self.tasks
    }
}
