//! Enqueue: one script for all the jobs of a shard.

use leasehold_core::{Enqueued, NewJob, Result, StoreError};

use crate::error::Effect;
use crate::fan;
use crate::keys::Shard;
use crate::link::{Link, Places, answered_id, grouped};
use crate::script::scripts;

pub(crate) async fn enqueue(link: &Link, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
    let headers = jobs.iter().map(|job| serde_json::to_string(job.headers())).collect::<Result<Vec<_>, _>>();
    let headers = &headers.map_err(|error| StoreError::backend("enqueue", error))?;
    let first = reserve(link, jobs.len()).await?;
    let shards = jobs.iter().enumerate().map(|(place, job)| (link.layout.shard(job.queue()), place));
    let calls = grouped(shards).into_iter().map(|(shard, places)| async move {
        let answers = accept(link, shard, jobs, headers, (&places, first)).await?;
        Ok((places, answers))
    });
    let answers = fan::answers("enqueue", (String::new(), false), jobs.len(), calls).await?;
    answers.iter().map(|(id, known)| Ok(Enqueued { id: answered_id(id)?, deduplicated: *known })).collect()
}

/// Reserves places in the sequence of all jobs: the one before the first. Where there is one shard, the script does so.
async fn reserve(link: &Link, count: usize) -> Result<u64> {
    if link.layout.count() == 1 {
        return Ok(0);
    }
    let mut command = redis::cmd("INCRBY");
    command.arg(link.layout.prefix.common("sequence")).arg(count);
    // Places that nobody takes do no harm.
    let last: u64 = link.send("enqueue", Effect::Read, &command).await?;
    Ok(last.saturating_sub(count as u64))
}

/// The ids of the jobs that were accepted, or were there already.
async fn accept(
    link: &Link,
    shard: Shard,
    jobs: &[NewJob],
    headers: &[String],
    (places, first): (&[usize], u64),
) -> Result<Vec<(String, bool)>> {
    let queues = Places::new(places.iter().map(|place| jobs[*place].queue()));
    link.run("enqueue", Effect::Write, (&scripts::enqueue, shard), |directory, call| {
        queues.keys(&link.layout, call);
        call.arg(link.layout.count()).arg(shard.index()).arg(places.len());
        for place in places {
            let job = &jobs[*place];
            let max_attempts =
                job.max_attempts().unwrap_or_else(|| directory.policy(job.queue()).max_attempts); // E12
            call.arg(queues.of(job.queue())).arg(first + *place as u64 + 1);
            call.arg(job.kind().as_str()).arg(job.priority());
            call.arg(job.unique_key().map_or("", |key| key.as_str())).arg(job.payload().as_str());
            call.arg(&headers[*place]).arg(max_attempts.get()).schedule(job.schedule());
        }
    })
    .await
}
