//! Enqueueing, one by one and in batches.

use std::time::Instant;

use leasehold_core::Store;
use tokio::task::JoinSet;

use crate::ground::Ground;
use crate::load::{job, rate};
use crate::{Bench, Rates, Result};

/// One job at a time by ten tasks.
pub(crate) async fn single(bench: &Bench) -> Result<Rates> {
    round(bench, Side { tasks: 10, jobs: 1, total: 4 * bench.options.sizes.single }).await
}

/// A thousand jobs at a time by two tasks.
pub(crate) async fn batch(bench: &Bench) -> Result<Rates> {
    round(bench, Side { tasks: 2, jobs: 1000, total: bench.options.sizes.batch }).await
}

async fn round(bench: &Bench, side: Side) -> Result<Rates> {
    Ok(Rates { ours: side.ours(bench).await?, limit: side.limit(bench).await? })
}

/// So many tasks enqueue so many jobs at a time, until there are so many in total.
struct Side {
    tasks: usize,
    jobs: usize,
    total: usize,
}

impl Side {
    fn runs(&self) -> usize {
        self.total / self.jobs / self.tasks
    }

    async fn ours(&self, bench: &Bench) -> Result<f64> {
        let ground = Ground::new(&bench.url).await?;
        let jobs = vec![job("bench", 0)?; self.jobs];
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..self.tasks {
            let (store, jobs, runs) = (ground.store.clone(), jobs.clone(), self.runs());
            tasks.spawn(async move {
                for _ in 0..runs {
                    store.enqueue(&jobs).await?;
                }
                Result::Ok(())
            });
        }
        let rate = self.finish(tasks, start).await?;
        ground.expect(self.total).await?;
        Ok(rate)
    }

    async fn limit(&self, bench: &Bench) -> Result<f64> {
        let ground = Ground::new(&bench.url).await?;
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..self.tasks {
            let (bare, jobs, runs) = (ground.bare.clone(), self.jobs, self.runs());
            tasks.spawn(async move {
                for _ in 0..runs {
                    bare.enqueue(jobs).await?;
                }
                Result::Ok(())
            });
        }
        self.finish(tasks, start).await
    }

    async fn finish(&self, mut tasks: JoinSet<Result>, start: Instant) -> Result<f64> {
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(rate(self.total, start))
    }
}
