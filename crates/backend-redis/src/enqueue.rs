//! Enqueue: numbers first, then one script for all the jobs.

use std::collections::BTreeSet;

use leasehold_core::{Enqueued, JobId, NewJob, QueueName, Result, StoreError};

use crate::error::Effect;
use crate::id;
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
        let ids = ids(link, jobs).await?;
        if let Some(answers) = accept(link, jobs, &ids, &headers, &Places::new(&queues)).await? {
            return answers.iter().zip(ids).map(|(answer, own)| told(answer, own)).collect();
        }
    }
    Err(link.behind("enqueue"))
}

/// The ids that the jobs will have, unless there is one with the same unique key.
async fn ids(link: &Link, jobs: &[NewJob]) -> Result<Vec<JobId>> {
    let last = reserve(link, jobs.len()).await?;
    let sequence = last - jobs.len() as i64 + 1..;
    let ids = link.known(|directory| {
        let id =
            |(sequence, job): (i64, &NewJob)| Some(id::compose(sequence, directory.number(job.queue())?));
        sequence.zip(jobs).map(id).collect::<Option<Vec<_>>>()
    });
    ids.ok_or_else(|| StoreError::unavailable("enqueue", "a queue has lost its number"))
}

/// The ids of the jobs that were accepted, or were there already; `None` if something was not known.
async fn accept(
    link: &Link,
    jobs: &[NewJob],
    ids: &[JobId],
    headers: &[String],
    places: &Places<'_>,
) -> Result<Option<Vec<String>>> {
    link.try_run("enqueue", Effect::Write, &scripts::enqueue, |directory, call| {
        places.keys(&link.prefix, call);
        call.arg(jobs.len());
        for ((job, id), headers) in jobs.iter().zip(ids).zip(headers) {
            let max_attempts =
                job.max_attempts().unwrap_or_else(|| directory.policy(job.queue()).max_attempts); // E12
            call.arg(places.of(job.queue())).arg(id::text(*id)).arg(job.kind().as_str()).arg(job.priority());
            call.arg(job.unique_key().map_or("", |key| key.as_str())).arg(job.payload().as_str());
            call.arg(headers).arg(max_attempts.get()).schedule(job.schedule());
        }
    })
    .await
}

fn told(answer: &str, own: JobId) -> Result<Enqueued> {
    let id = answered_id(answer)?;
    Ok(Enqueued { id, deduplicated: id != own })
}

/// Reserves so many places in the sequence of all jobs, and gives the last. Gaps do no harm (E10).
async fn reserve(link: &Link, count: usize) -> Result<i64> {
    let mut pipeline = redis::pipe();
    pipeline.incr(link.prefix.sequence(), count);
    let (last,) = link.send::<(i64,)>("enqueue", Effect::Read, &pipeline).await?;
    Ok(last)
}
