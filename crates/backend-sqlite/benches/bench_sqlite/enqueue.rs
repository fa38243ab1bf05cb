//! Enqueueing, one by one and in batches.

use std::time::Instant;

use leasehold_core::Store;

use crate::Options;
use crate::Rates;
use crate::ground::Ground;
use crate::load::{job, rate};
use crate::{Result, bare};

/// One job at a time by ten tasks.
pub(crate) async fn single(options: &Options) -> Result<Rates> {
    let side = Side { tasks: 10, jobs: 1, total: options.sizes.single };
    Ok(Rates { ours: side.ours().await?, limit: side.limit().await? })
}

/// A thousand jobs at a time by two tasks.
pub(crate) async fn batch(options: &Options) -> Result<Rates> {
    let side = Side { tasks: 2, jobs: 1000, total: options.sizes.batch };
    Ok(Rates { ours: side.ours().await?, limit: side.limit().await? })
}

/// So many tasks enqueue so many jobs at a time, until there are so many in total.
struct Side {
    tasks: usize,
    jobs: usize,
    total: usize,
}

impl Side {
    async fn ours(&self) -> Result<f64> {
        let ground = Ground::new().await?;
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
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        let rate = rate(self.total, start);
        ground.expect(self.total, 0).await?;
        Ok(rate)
    }

    /// One after the other: there is one lock, and others would only wait for it.
    async fn limit(&self) -> Result<f64> {
        let ground = Ground::new().await?;
        let mut conn = ground.connection().await?;
        let start = Instant::now();
        for _ in 0..self.total / self.jobs {
            bare::commit(&mut conn, |conn| bare::enqueue(conn, self.jobs))?;
        }
        let rate = rate(self.total, start);
        ground.expect(self.total, 0).await?;
        Ok(rate)
    }
}
