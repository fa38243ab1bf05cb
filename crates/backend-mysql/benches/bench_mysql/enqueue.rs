//! Enqueueing, one by one and in batches.

use std::time::Instant;

use leasehold_core::Store;

use crate::ground::Ground;
use crate::load::{job, rate};
use crate::{Bench, Rates, Result, bare};

/// One job at a time by ten tasks.
pub(crate) async fn single(bench: &Bench) -> Result<Rates> {
    let side = Side { tasks: 10, jobs: 1, total: bench.options.sizes.single };
    Ok(Rates { ours: side.ours(bench).await?, limit: side.limit(bench).await? })
}

/// A thousand jobs at a time by two tasks.
pub(crate) async fn batch(bench: &Bench) -> Result<Rates> {
    let side = Side { tasks: 2, jobs: 1000, total: bench.options.sizes.batch };
    Ok(Rates { ours: side.ours(bench).await?, limit: side.limit(bench).await? })
}

/// So many tasks enqueue so many jobs at a time, until there are so many in total.
struct Side {
    tasks: usize,
    jobs: usize,
    total: usize,
}

impl Side {
    async fn ours(&self, bench: &Bench) -> Result<f64> {
        let ground = Ground::new(&bench.url, self.tasks).await?;
        let jobs = vec![job("bench", 0)?; self.jobs];
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..self.tasks {
            let (store, jobs, runs) =
                (ground.store.clone(), jobs.clone(), self.total / self.jobs / self.tasks);
            tasks.spawn(async move {
                for _ in 0..runs {
                    store.enqueue(&jobs).await?;
                }
                Result::Ok(())
            });
        }
        self.finish(ground, tasks, start).await
    }

    async fn limit(&self, bench: &Bench) -> Result<f64> {
        let ground = Ground::new(&bench.url, 1).await?;
        let clients = bare::clients(&ground.url, self.tasks).await?;
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for client in clients {
            tasks.spawn(bare::enqueue(client, self.jobs, self.total / self.jobs / self.tasks));
        }
        self.finish(ground, tasks, start).await
    }

    async fn finish(
        &self,
        ground: Ground,
        mut tasks: tokio::task::JoinSet<Result>,
        start: Instant,
    ) -> Result<f64> {
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        let rate = rate(self.total, start);
        ground.expect(self.total, 0).await?;
        ground.remove().await?;
        Ok(rate)
    }
}
