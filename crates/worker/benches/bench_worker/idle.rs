//! What an idle worker costs: the statements that the server sees in a poll interval. The limit is one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::JobKind;
use leasehold_worker::{Context, Worker};
use serde::{Deserialize, Serialize};

use crate::ground::Ground;
use crate::measure::Reading;
use crate::{Bench, Result};

const QUEUES: usize = 500;
const POLL: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);
/// All statements but those of the one who asks.
const COUNT: &str = "SELECT coalesce(sum(calls), 0)::text FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'";

#[derive(Serialize, Deserialize)]
struct Never {}

impl JobKind for Never {
    const KIND: &'static str = "never";
}

pub(crate) async fn round(bench: &Bench) -> Result<Vec<Reading>> {
    let ground = Ground::new(bench, 4).await?;
    bench.server.query("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")?;
    let worker =
        Worker::builder(Arc::new(ground.store.clone())).queues((0..QUEUES).map(|n| format!("idle:{n}")));
    let worker = worker.poll_interval(POLL).handle::<Never>(async |_: Never, _: Context<()>| {}).start()?;
    let start = Instant::now();
    while worker.stats().claims == 0 {
        if start.elapsed() > PATIENCE {
            return Err("the worker does not look for jobs".into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // It has looked, and asks now when to look again. From then on it is idle.
    tokio::time::sleep(POLL / 2).await;
    bench.server.query("SELECT pg_stat_statements_reset()")?;
    let intervals = bench.options.sizes.intervals;
    tokio::time::sleep(POLL * intervals).await;
    let calls: f64 = bench.server.query(COUNT)?.ok_or("no count")?.parse()?;
    worker.shutdown(Duration::ZERO).await?;
    ground.remove().await?;
    Ok(vec![Reading {
        name: "idle",
        unit: "statements per poll",
        ours: calls / f64::from(intervals),
        limit: 1.0,
    }])
}
