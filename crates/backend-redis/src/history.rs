//! What becomes of the history: redrive and prune.

use std::collections::BTreeSet;

use leasehold_core::{
    Delay, Direction, FinalStatus, JobId, Prune, PruneAge, QueueName, Record, Redrive, Redriven, Result,
};

use crate::directory::Directory;
use crate::error::Effect;
use crate::id;
use crate::inspect::List;
use crate::link::{Link, Places};
use crate::row;
use crate::script::{micros, scripts};

/// How many jobs one script may touch.
const BATCH: usize = 1000;

/// Puts dead letters back, by id (X1).
pub(crate) async fn redrive(link: &Link, request: &Redrive) -> Result<Redriven> {
    let limit = request.limit.as_usize();
    let list = List {
        operation: "redrive",
        index: "dead",
        queues: link.select("redrive", &request.queues).await?,
        direction: Direction::OldestFirst,
    };
    let mut redriven = Redriven::default();
    let mut named = request.ids.as_ref().map(|ids| ids.iter().copied().collect::<BTreeSet<_>>().into_iter());
    let mut after = None;
    while redriven.jobs.len() < limit {
        let wanted = (limit - redriven.jobs.len()).min(BATCH);
        let found = match &mut named {
            Some(ids) => match ids.by_ref().take(wanted).collect::<Vec<_>>() {
                ids if ids.is_empty() => break,
                ids => located(link, &ids).await?,
            },
            None => match list.next(link, after, wanted).await? {
                found if found.is_empty() => break,
                mut found => {
                    found.truncate(wanted);
                    after = found.last().map(|(_, id)| *id);
                    found
                }
            },
        };
        let places = wanted_letters(link, request, found).await?;
        put_back(link, &places, limit, &mut redriven).await?;
    }
    Ok(redriven)
}

async fn located(link: &Link, ids: &[JobId]) -> Result<Vec<(QueueName, JobId)>> {
    let queues = link.locate("redrive", ids.iter().copied()).await?;
    Ok(queues.into_iter().zip(ids).filter_map(|(queue, id)| Some((queue?, *id))).collect())
}

/// Those among the found that the request asks for.
async fn wanted_letters(
    link: &Link,
    request: &Redrive,
    mut found: Vec<(QueueName, JobId)>,
) -> Result<Vec<(QueueName, JobId)>> {
    found.retain(|(queue, _)| request.queues.contains(queue));
    if request.kind.is_none() {
        return Ok(found);
    }
    let rows = link.rows("redrive", &found).await?;
    let matches = |record: &Record| matches!(record, Record::Finished(job) if request.matches(job));
    let records = rows.into_iter().map(|row| row.and_then(|row| row::readable(row.record())));
    Ok(records
        .zip(found)
        .filter(|(record, _)| record.as_ref().is_some_and(matches))
        .map(|(_, place)| place)
        .collect())
}

async fn put_back(
    link: &Link,
    letters: &[(QueueName, JobId)],
    limit: usize,
    redriven: &mut Redriven,
) -> Result<()> {
    if letters.is_empty() {
        return Ok(());
    }
    let places = Places::new(letters.iter().map(|(queue, _)| queue));
    let answers: Vec<String> = link
        .run("redrive", Effect::Write, &scripts::redrive, |_, call| {
            places.keys(&link.prefix, call);
            call.arg(letters.len());
            for (queue, id) in letters {
                call.arg(places.of(queue)).arg(id::text(*id));
            }
        })
        .await?;
    for (answer, (_, id)) in answers.iter().zip(letters) {
        match answer.as_str() {
            "moved" => redriven.jobs.push(*id),
            "conflict" if redriven.conflicts.len() < limit => redriven.conflicts.push(*id), // X4
            _ => {}
        }
    }
    Ok(())
}

/// Forgets finished jobs.
pub(crate) async fn prune(link: &Link, request: &Prune) -> Result<u64> {
    match &request.ids {
        Some(ids) => prune_ids(link, request, ids).await,
        None => prune_queues(link, request).await,
    }
}

/// How old jobs of a queue must be, in microseconds; `None` if they are kept for ever (U3).
fn age(request: &Prune, directory: &Directory, queue: &QueueName) -> Option<u64> {
    let age: Option<Delay> = match request.age {
        PruneAge::OlderThan(age) => Some(age),
        PruneAge::Retention => directory.policy(queue).retention,
    };
    age.map(|age| micros(age.get()))
}

fn statuses(request: &Prune) -> Vec<&'static str> {
    let asked = |status: &FinalStatus| request.statuses.as_ref().is_none_or(|asked| asked.contains(status));
    FinalStatus::ALL.into_iter().filter(asked).map(FinalStatus::as_str).collect()
}

async fn prune_ids(link: &Link, request: &Prune, ids: &[JobId]) -> Result<u64> {
    let ids: Vec<JobId> = ids.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    let mut jobs = located(link, &ids).await?;
    jobs.retain(|(queue, _)| request.queues.contains(queue));
    let limit = u64::from(request.limit.get());
    let mut forgotten = 0;
    for chunk in jobs.chunks(BATCH) {
        if forgotten == limit {
            break;
        }
        let places = Places::new(chunk.iter().map(|(queue, _)| queue));
        forgotten += link
            .run::<u64>("prune", Effect::Write, &scripts::prune_ids, |directory, call| {
                places.keys(&link.prefix, call);
                let statuses = statuses(request);
                call.arg(limit - forgotten).arg(statuses.len()).arg(statuses);
                let aged =
                    chunk.iter().filter_map(|(queue, id)| Some((queue, id, age(request, directory, queue)?)));
                let aged: Vec<_> = aged.collect();
                call.arg(aged.len());
                for (queue, id, age) in aged {
                    call.arg(places.of(queue)).arg(id::text(*id)).arg(age);
                }
            })
            .await?;
    }
    Ok(forgotten)
}

async fn prune_queues(link: &Link, request: &Prune) -> Result<u64> {
    let limit = u64::from(request.limit.get());
    let mut forgotten = 0;
    for queue in with_history(link, request).await? {
        let mut from = String::new();
        while forgotten < limit {
            // Without a retention nothing is asked for, which is told apart from an answer by its emptiness.
            let looks =
                |directory: &Directory| if age(request, directory, &queue).is_some() { BATCH } else { 0 };
            let (count, next): (u64, String) = link
                .run("prune", Effect::Write, &scripts::prune, |directory, call| {
                    call.key(link.prefix.queue(&queue))
                        .arg(limit - forgotten)
                        .arg(looks(directory))
                        .arg(&from);
                    let statuses = statuses(request);
                    call.arg(age(request, directory, &queue).unwrap_or_default());
                    call.arg(statuses.len()).arg(statuses);
                })
                .await?;
            forgotten += count;
            if next.is_empty() {
                break;
            }
            from = next;
        }
    }
    Ok(forgotten)
}

/// The queues asked for that have any history.
async fn with_history(link: &Link, request: &Prune) -> Result<Vec<QueueName>> {
    let mut queues = link.select("prune", &request.queues).await?;
    if queues.is_empty() {
        return Ok(queues);
    }
    let mut pipeline = redis::pipe();
    for queue in &queues {
        pipeline.zcard(format!("{}:ended", link.prefix.queue(queue)));
    }
    let mut counts = link.send::<Vec<u64>>("prune", Effect::Read, &pipeline).await?.into_iter();
    queues.retain(|_| counts.next().is_some_and(|count| count > 0));
    Ok(queues)
}
