//! Whether queues of tomorrow's jobs cost anything when a claim goes over their prefix.

use std::time::{Duration, Instant};

use leasehold_core::{Dequeue, NewJob, Queues, Store};

use crate::Rates;
use crate::ground::Ground;
use crate::load::{job, rate};
use crate::{Bench, Result};

/// How many queues have jobs for now, and how many jobs each.
const READY: (usize, usize) = (50, 20);
/// How many jobs are claimed in one call.
const LIMIT: u32 = 10;
const TOMORROW: Duration = Duration::from_secs(24 * 60 * 60);

/// Claims over the prefix with many queues of tomorrow's jobs, and as the limit with none.
pub(crate) async fn round(bench: &Bench) -> Result<Rates> {
    let later = 2 * bench.options.sizes.queues;
    Ok(Rates { ours: side(bench, later).await?, limit: side(bench, 0).await? })
}

/// The rate of claims, and of the question when to look again that a worker asks when it is done.
async fn side(bench: &Bench, later: usize) -> Result<f64> {
    let ground = Ground::new(&bench.server, 1).await?;
    let tomorrow = |queue| {
        let queue = format!("bench:{queue}");
        Ok(NewJob::builder(queue.as_str(), "work").delay(TOMORROW).build()?)
    };
    let tomorrow: Vec<NewJob> = (0..later).map(tomorrow).collect::<Result<_>>()?;
    for batch in tomorrow.chunks(10_000) {
        ground.store.enqueue(batch).await?;
    }
    let ready: Vec<NewJob> = (0..READY.0 * READY.1)
        .map(|number| job(&format!("bench:ready:{}", number % READY.0), 0))
        .collect::<Result<_>>()?;
    ground.store.enqueue(&ready).await?;
    ground.settle_down().await?;
    let queues: Queues = "bench:*".parse()?;
    let request = Dequeue { queues: queues.clone(), ..Dequeue::new("bench", "w")?.limit(LIMIT)? };
    let mut claimed = ground.store.dequeue(&request).await?.len();
    let (first, start) = (claimed, Instant::now());
    while claimed < ready.len() {
        let jobs = ground.store.dequeue(&request).await?.len();
        ground.store.next_available_at(&queues).await?;
        if jobs == 0 {
            return Err(format!("{claimed} of {} were claimed", ready.len()).into());
        }
        claimed += jobs;
    }
    let rate = rate(claimed - first, start);
    ground.expect(later + ready.len(), 0).await?;
    ground.remove().await?;
    Ok(rate)
}
