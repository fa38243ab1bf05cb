//! Enqueue: numbers first, then one script for all the jobs.

use std::collections::BTreeSet;

use leasehold_core::{Enqueued, NewJob, QueueName, Result, StoreError};

use crate::error::Effect;
use crate::id;
use crate::link::{Link, Places, answered_id};
use crate::script::scripts;

pub(crate) async fn enqueue(link: &Link, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
    let queues: Vec<QueueName> =
        jobs.iter().map(NewJob::queue).collect::<BTreeSet<_>>().into_iter().cloned().collect();
    link.register("enqueue", &queues).await?;
    let last = reserve(link, jobs.len()).await?;
    let ids = link.known(|directory| {
        let number = |job: &NewJob| directory.number(job.queue());
        let first = last - jobs.len() as i64 + 1;
        (first..)
            .zip(jobs)
            .map(|(sequence, job)| Some(id::compose(sequence, number(job)?)))
            .collect::<Option<Vec<_>>>()
    });
    let ids = ids.ok_or_else(|| StoreError::corrupt("a queue has lost its number"))?;
    let places = Places::new(&queues);
    let headers = jobs.iter().map(|job| serde_json::to_string(job.headers())).collect::<Result<Vec<_>, _>>();
    let headers = headers.map_err(|error| StoreError::backend("enqueue", error))?;
    let answers: Vec<String> = link
        .run("enqueue", &scripts::enqueue, |directory, call| {
            places.keys(&link.prefix, call);
            call.arg(jobs.len());
            for ((job, id), headers) in jobs.iter().zip(&ids).zip(&headers) {
                let max_attempts =
                    job.max_attempts().unwrap_or_else(|| directory.policy(job.queue()).max_attempts); // E12
                call.arg(places.of(job.queue()))
                    .arg(id::text(*id))
                    .arg(job.kind().as_str())
                    .arg(job.priority());
                call.arg(job.unique_key().map_or("", |key| key.as_str())).arg(job.payload().as_str());
                call.arg(headers).arg(max_attempts.get()).schedule(job.schedule());
            }
        })
        .await?;
    let answer = |(text, own): (&String, _)| {
        let id = answered_id(text)?;
        Ok(Enqueued { id, deduplicated: id != own })
    };
    answers.iter().zip(ids).map(answer).collect()
}

/// Reserves so many places in the sequence of all jobs, and gives the last. Gaps do no harm (E10).
async fn reserve(link: &Link, count: usize) -> Result<i64> {
    let mut pipeline = redis::pipe();
    pipeline.incr(link.prefix.sequence(), count);
    let (last,) = link.send::<(i64,)>("enqueue", Effect::Read, &pipeline).await?;
    Ok(last)
}
