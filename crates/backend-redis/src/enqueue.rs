//! Enqueue: one script for all the jobs.

use std::collections::BTreeSet;

use leasehold_core::{Enqueued, NewJob, QueueName, Result, StoreError};

use crate::error::Effect;
use crate::link::{Link, Places, TRIES, answered_id};
use crate::script::scripts;

pub(crate) async fn enqueue(link: &Link, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
    let queues: BTreeSet<_> = jobs.iter().map(NewJob::queue).collect();
    let queues: Vec<QueueName> = queues.into_iter().cloned().collect();
    let headers = jobs.iter().map(|job| serde_json::to_string(job.headers())).collect::<Result<Vec<_>, _>>();
    let headers = headers.map_err(|error| StoreError::backend("enqueue", error))?;
    for _ in 0..TRIES {
        // Each time anew: a server that has lost everything has given other numbers to the queues.
        link.register("enqueue", &queues).await?;
        if let Some(answers) = accept(link, jobs, &headers, &Places::new(&queues)).await? {
            let told =
                |(id, known): &(String, bool)| Ok(Enqueued { id: answered_id(id)?, deduplicated: *known });
            return answers.iter().map(told).collect();
        }
    }
    Err(link.behind("enqueue"))
}

/// The ids of the jobs that were accepted, or were there already; `None` if something was not known.
async fn accept(
    link: &Link,
    jobs: &[NewJob],
    headers: &[String],
    places: &Places<'_>,
) -> Result<Option<Vec<(String, bool)>>> {
    link.try_run("enqueue", Effect::Write, &scripts::enqueue, |directory, call| {
        places.keys(&link.prefix, call);
        call.key(link.prefix.sequence()).arg(jobs.len());
        for (job, headers) in jobs.iter().zip(headers) {
            let max_attempts =
                job.max_attempts().unwrap_or_else(|| directory.policy(job.queue()).max_attempts); // E12
            call.arg(places.of(job.queue())).arg(job.kind().as_str()).arg(job.priority());
            // Without a number somebody has just found out that the server lost everything: the version tells.
            call.arg(directory.number(job.queue()).unwrap_or_default());
            call.arg(job.unique_key().map_or("", |key| key.as_str())).arg(job.payload().as_str());
            call.arg(headers).arg(max_attempts.get()).schedule(job.schedule());
        }
    })
    .await
}
