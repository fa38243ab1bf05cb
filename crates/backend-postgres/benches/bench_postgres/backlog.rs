//! Whether the length of the queue costs anything.

use crate::Rates;
use crate::drain::drain;
use crate::ground::Ground;
use crate::{Bench, Result};

/// Drains the front of a long queue, and as the limit that of a short one.
pub(crate) async fn round(bench: &Bench) -> Result<Rates> {
    let [few, many] = bench.options.sizes.backlogs;
    Ok(Rates { ours: behind(bench, many).await?, limit: behind(bench, few).await? })
}

/// The rate with so many jobs behind those that are drained.
async fn behind(bench: &Bench, backlog: usize) -> Result<f64> {
    let (lanes, front) = (bench.options.lanes, bench.options.sizes.front);
    let ground = Ground::new(&bench.server, 2 * lanes).await?;
    ground.fill(front + backlog).await?;
    let (rate, drained) = drain(&ground, lanes, front).await?;
    ground.expect(front + backlog - drained, drained).await?;
    ground.remove().await?;
    Ok(rate)
}
