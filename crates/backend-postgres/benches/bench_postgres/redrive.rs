//! Whether the number of dead letters costs anything when some of them are redriven.

use std::time::Instant;

use leasehold_core::{BatchSize, Queues, Redrive, Store};

use crate::Rates;
use crate::ground::Ground;
use crate::load::rate;
use crate::{Bench, Result};

const FILL: &str = include_str!("sql/fill_dead.sql");
/// How many are redriven in one call.
const LIMIT: u32 = 100;
/// How many calls are measured. One goes before them, in which the statement is prepared.
const CALLS: usize = 5;

/// Redrives a few of many dead letters, and as the limit as many of few.
pub(crate) async fn round(bench: &Bench) -> Result<Rates> {
    let [few, many] = bench.options.sizes.dead_letters;
    Ok(Rates { ours: of(bench, many).await?, limit: of(bench, few).await? })
}

/// The rate with so many dead letters, every second one with a unique key.
async fn of(bench: &Bench, dead_letters: usize) -> Result<f64> {
    let ground = Ground::new(&bench.server, 1).await?;
    ground.run(&FILL.replace("{jobs}", &dead_letters.to_string())).await?;
    ground.run("ANALYZE {schema}.job_history").await?;
    ground.settle_down().await?;
    let request = Redrive { queues: Queues::named(["bench"])?, ..Redrive::all(BatchSize::new(LIMIT)?) };
    let mut redriven = ground.store.redrive(&request).await?.jobs.len();
    let (first, start) = (redriven, Instant::now());
    for _ in 0..CALLS {
        redriven += ground.store.redrive(&request).await?.jobs.len();
    }
    let rate = rate(redriven - first, start);
    ground.expect(redriven, dead_letters - redriven).await?;
    if redriven != (CALLS + 1) * LIMIT as usize {
        return Err(format!("{redriven} were redriven").into());
    }
    ground.remove().await?;
    Ok(rate)
}
