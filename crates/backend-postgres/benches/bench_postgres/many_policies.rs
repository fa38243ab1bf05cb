//! Whether a policy costs anything when a batch goes to many queues.

use std::time::Instant;

use leasehold_core::{MaxAttempts, NewJob, QueuePolicy, Store};

use crate::Rates;
use crate::ground::Ground;
use crate::load::{job, rate};
use crate::{Bench, Result};

/// How many batches are measured. One goes before them, in which the statement is prepared.
const BATCHES: usize = 3;

/// With a policy for a queue that is not among them, and as the limit with none.
pub(crate) async fn round(bench: &Bench) -> Result<Rates> {
    Ok(Rates { ours: side(bench, true).await?, limit: side(bench, false).await? })
}

/// The rate of batches in which each job has a queue of its own.
async fn side(bench: &Bench, with_policy: bool) -> Result<f64> {
    let queues = bench.options.sizes.queues;
    let ground = Ground::new(&bench.server, 1).await?;
    if with_policy {
        let policy = QueuePolicy { max_attempts: Some(MaxAttempts::new(3)?), ..QueuePolicy::default() };
        ground.store.set_policy(&"other".parse()?, &policy).await?;
    }
    let jobs: Vec<NewJob> =
        (0..queues).map(|queue| job(&format!("bench:{queue}"), 0)).collect::<Result<_>>()?;
    ground.store.enqueue(&jobs).await?;
    ground.settle_down().await?;
    let start = Instant::now();
    for _ in 0..BATCHES {
        ground.store.enqueue(&jobs).await?;
    }
    let rate = rate(BATCHES * queues, start);
    ground.expect((BATCHES + 1) * queues, 0).await?;
    ground.remove().await?;
    Ok(rate)
}
