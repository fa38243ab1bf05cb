//! What a job costs in round trips if it is in one of ten thousand queues, beside what it costs if there is one queue.

use leasehold_core::{Dequeue, NewJob, Store, Verdict};

use crate::ground::Ground;
use crate::load::job;
use crate::{Bench, Rates, Result};

/// As many as a worker of ten slots asks for.
const LIMIT: u32 = 10;
const MANY: usize = 10_000;

/// Jobs per thousand round trips, with many queues and with one.
pub(crate) async fn round(bench: &Bench) -> Result<Rates> {
    let queues = MANY.min(bench.options.sizes.drain / 10);
    Ok(Rates { ours: per_trip(bench, queues).await?, limit: per_trip(bench, 1).await? })
}

/// Takes half of the jobs of so many queues over a prefix, while the other queues lie idle.
async fn per_trip(bench: &Bench, queues: usize) -> Result<f64> {
    let ground = Ground::new(&bench.url).await?;
    let total = bench.options.sizes.drain / 2;
    let names: Vec<String> = (0..queues).map(|number| format!("room:{number:05}")).collect();
    let jobs: Vec<NewJob> =
        (0..total).map(|number| job(&names[number % queues], 0)).collect::<Result<_>>()?;
    for batch in jobs.chunks(1000) {
        ground.store.enqueue(batch).await?;
    }
    let request = Dequeue::new("room:*", "bench")?.limit(LIMIT)?;
    let before = ground.scripts().await?;
    let mut done = 0;
    while done < total / 2 {
        let leased = ground.store.dequeue(&request).await?;
        if leased.len() != LIMIT as usize {
            return Err(format!("a claim brought {} of {LIMIT} jobs", leased.len()).into());
        }
        let verdicts: Vec<_> = leased.iter().map(|job| (job.receipt(), Verdict::done())).collect();
        ground.store.settle(&verdicts).await?;
        done += leased.len();
    }
    let trips = ground.scripts().await? - before;
    ground.expect(total - done).await?;
    Ok(1000.0 * done as f64 / trips as f64)
}
