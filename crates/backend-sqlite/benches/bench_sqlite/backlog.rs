//! Whether the length of the queue costs anything.

use crate::Options;
use crate::Rates;
use crate::Result;
use crate::drain::drain;
use crate::ground::Ground;

/// Drains the front of a long queue, and as the limit that of a short one.
pub(crate) async fn round(options: &Options) -> Result<Rates> {
    let [few, many] = options.sizes.backlogs;
    Ok(Rates { ours: behind(options, many).await?, limit: behind(options, few).await? })
}

/// The rate with so many jobs behind those that are drained.
async fn behind(options: &Options, backlog: usize) -> Result<f64> {
    let front = options.sizes.front;
    let ground = Ground::new().await?;
    ground.fill(front + backlog).await?;
    let (rate, drained) = drain(&ground, options.lanes, front).await?;
    ground.expect(front + backlog - drained, drained).await?;
    Ok(rate)
}
