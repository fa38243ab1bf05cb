//! What becomes of the history: redrive and prune.

use std::collections::BTreeSet;

use leasehold_core::{
    Delay, Direction, FinalStatus, JobId, Prune, PruneAge, QueueName, Record, Redrive, Redriven, Result,
};

use crate::directory::Directory;
use crate::error::Effect;
use crate::inspect::List;
use crate::keys::Shard;
use crate::link::{Link, Places, QUEUES_PER_SCRIPT, grouped};
use crate::script::{micros, scripts};
use crate::{fan, id, row};

/// How many jobs one script may touch.
const BATCH: usize = 1000;

/// Puts dead letters back, by id (X1).
pub(crate) async fn redrive(link: &Link, request: &Redrive) -> Result<Redriven> {
    let limit = request.limit.as_usize();
    let list = List {
        operation: "redrive",
        index: "dead",
        queues: request.queues.clone(),
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
                ids => located(link, "redrive", &ids).await?,
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

async fn located(link: &Link, operation: &'static str, ids: &[JobId]) -> Result<Vec<(QueueName, JobId)>> {
    let queues = link.locate_anew(operation, ids.iter().copied()).await?;
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
    let shards = letters.iter().enumerate().map(|(place, (queue, _))| (link.layout.shard(queue), place));
    let calls = grouped(shards).into_iter().map(|(shard, among)| async move {
        let places = Places::new(among.iter().map(|place| &letters[*place].0));
        let answers: Vec<String> = link
            .run("redrive", Effect::Write, (&scripts::redrive, shard), |_, call| {
                places.keys(&link.layout, call);
                call.arg(among.len());
                for (queue, id) in among.iter().map(|place| &letters[*place]) {
                    call.arg(places.of(queue)).arg(id::text(*id));
                }
            })
            .await?;
        Ok((among, answers))
    });
    let answers = fan::answers("redrive", String::new(), letters.len(), calls).await?;
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
    let mut jobs = located(link, "prune", &ids).await?;
    jobs.retain(|(queue, _)| request.queues.contains(queue));
    let limit = u64::from(request.limit.get());
    let mut forgotten = 0;
    for (shard, jobs) in grouped(jobs.iter().map(|job| (link.layout.shard(&job.0), job))) {
        for chunk in jobs.chunks(BATCH) {
            if forgotten < limit {
                forgotten += prune_some(link, shard, request, chunk, limit - forgotten).await?;
            }
        }
    }
    Ok(forgotten)
}

async fn prune_some(
    link: &Link,
    shard: Shard,
    request: &Prune,
    jobs: &[&(QueueName, JobId)],
    limit: u64,
) -> Result<u64> {
    let places = Places::new(jobs.iter().map(|(queue, _)| queue));
    link.run("prune", Effect::Write, (&scripts::prune_ids, shard), |directory, call| {
        places.keys(&link.layout, call);
        let statuses = statuses(request);
        call.arg(limit).arg(statuses.len()).arg(statuses);
        let aged = jobs.iter().filter_map(|(queue, id)| Some((queue, id, age(request, directory, queue)?)));
        let aged: Vec<_> = aged.collect();
        call.arg(aged.len());
        for (queue, id, age) in aged {
            call.arg(places.of(queue)).arg(id::text(*id)).arg(age);
        }
    })
    .await
}

async fn prune_queues(link: &Link, request: &Prune) -> Result<u64> {
    let queues = link.select("prune", &request.queues).await?;
    let limit = u64::from(request.limit.get());
    let mut forgotten = 0;
    for (shard, queues) in grouped(queues.iter().map(|queue| (link.layout.shard(queue), queue))) {
        for chunk in queues.chunks(QUEUES_PER_SCRIPT) {
            let mut place = (1, String::new());
            while forgotten < limit && place.0 > 0 {
                let (count, queue, from) =
                    prune_from(link, shard, request, (chunk, &place), limit - forgotten).await?;
                forgotten += count;
                place = (queue, from);
            }
        }
    }
    Ok(forgotten)
}

/// How many were forgotten, and where to go on.
async fn prune_from(
    link: &Link,
    shard: Shard,
    request: &Prune,
    (queues, (start, from)): (&[&QueueName], &(usize, String)),
    limit: u64,
) -> Result<(u64, usize, String)> {
    link.run("prune", Effect::Write, (&scripts::prune, shard), |directory, call| {
        let statuses = statuses(request);
        call.arg(limit).arg(BATCH).arg(*start).arg(from).arg(statuses.len()).arg(statuses);
        for queue in queues {
            let age = age(request, directory, queue);
            call.key(link.layout.queue(queue));
            call.arg(age.map_or_else(String::new, |age| age.to_string()));
        }
    })
    .await
}
