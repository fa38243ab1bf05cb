//! Enqueue: one script for all the jobs of a shard.

use std::collections::{BTreeMap, HashMap};

use futures_util::future::join_all;
use leasehold_core::{Enqueued, JobId, NewJob, QueueName, Result, StoreError};

use crate::directory::Directory;
use crate::error::Effect;
use crate::keys::Shard;
use crate::link::{BYTES_PER_SCRIPT, JOBS_PER_SCRIPT, Link, Places, TRIES, answered_id, grouped};
use crate::portion::portions;
use crate::script::{Call, schedule_words, scripts};
use crate::{fan, id};

pub(crate) async fn enqueue(link: &Link, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
    let headers = jobs.iter().map(|job| serde_json::to_string(job.headers())).collect::<Result<Vec<_>, _>>();
    let headers = &headers.map_err(|error| StoreError::backend("enqueue", error))?;
    let shards = jobs.iter().enumerate().map(|(place, job)| (link.layout.shard(job.queue()), place));
    let shards = grouped(shards);
    let first = match shards.len() {
        1 => None, // The script takes the numbers itself.
        _ => Some(reserve(link, jobs, &shards).await?),
    };
    let calls = shards.into_iter().map(|(shard, places)| async move {
        let answers = accept(link, shard, jobs, headers, (&places, first)).await?;
        Ok((places, answers))
    });
    let missing = Enqueued { id: JobId::new(0), deduplicated: false };
    fan::answers("enqueue", missing, jobs.len(), calls).await
}

/// Reserves the same numbers in each of these shards, so that the ids of a batch rise (E10): the one before the first. Numbers that nobody
/// takes do no harm.
async fn reserve(link: &Link, jobs: &[NewJob], shards: &BTreeMap<Shard, Vec<usize>>) -> Result<i64> {
    let mut first = link.last_number();
    let mut reserved: BTreeMap<Shard, i64> = BTreeMap::new();
    for _ in 0..TRIES {
        let behind = shards.iter().filter(|(shard, _)| reserved.get(shard) != Some(&first));
        let held = |shard| reserved.get(shard).map(|from| from + jobs.len() as i64);
        let behind: Vec<_> = behind.map(|(shard, places)| (shard, places, held(shard))).collect();
        let calls = behind.into_iter().map(|(shard, places, held)| async move {
            let queues = Places::new(places.iter().map(|place| jobs[*place].queue()));
            let fill = |_: &Directory, call: &mut Call| {
                queues.keys(&link.layout, call);
                call.arg(first).arg(jobs.len());
                call.arg(held.map(|held| held.to_string()).unwrap_or_default());
            };
            let from = link.run("enqueue", Effect::Read, (&scripts::reserve, *shard), fill).await?;
            Ok((*shard, from))
        });
        reserved.extend(join_all(calls).await.into_iter().collect::<Result<Vec<_>>>()?);
        let furthest = reserved.values().copied().max().unwrap_or_default();
        if reserved.values().all(|from| *from == furthest) {
            link.has_given(furthest + jobs.len() as i64);
            return Ok(furthest);
        }
        first = furthest;
    }
    Err(StoreError::unavailable("enqueue", "other callers take numbers all the time"))
}

/// What jobs have in common, mostly: it is sent once for all that share it.
#[derive(PartialEq, Eq, Hash)]
struct Shape<'a> {
    queue: &'a QueueName,
    kind: &'a str,
    priority: i32,
    headers: &'a str,
    max_attempts: Option<u32>,
    schedule: (&'static str, String),
    has_key: bool,
}

/// The shapes of jobs, each once, and which of them each job has.
#[derive(Default)]
struct Shapes<'a> {
    all: Vec<Shape<'a>>,
    of: Vec<usize>,
}

impl<'a> Shapes<'a> {
    fn new(jobs: impl Iterator<Item = (&'a NewJob, &'a String)>) -> Self {
        let mut known: HashMap<Shape<'a>, usize> = HashMap::new();
        let mut of = Vec::new();
        for (job, headers) in jobs {
            let shape = Shape {
                queue: job.queue(),
                kind: job.kind().as_str(),
                priority: job.priority(),
                headers,
                max_attempts: job.max_attempts().map(|attempts| attempts.get()),
                schedule: schedule_words(job.schedule()),
                has_key: job.unique_key().is_some(),
            };
            let next = known.len();
            of.push(*known.entry(shape).or_insert(next));
        }
        let mut all: Vec<_> = known.into_iter().collect();
        all.sort_unstable_by_key(|(_, place)| *place);
        Self { all: all.into_iter().map(|(shape, _)| shape).collect(), of }
    }
}

/// The number before the first, if the script took them; the numbers of the queues; and who was there
/// already, by the place of the job in the call.
type Accepted = (i64, Vec<i64>, Vec<(usize, String)>);

/// How long payloads are kept that were sent ahead, in seconds. Then nobody will enqueue their jobs any more.
const KEPT: u32 = 3600;

/// Sends the payloads ahead if they are too much for one script, which must accept all the jobs or none: how their keys begin, or nothing. The server
/// serves others between them. They belong to no job yet.
async fn send_ahead(link: &Link, shard: Shard, jobs: &[NewJob], places: &[usize]) -> Result<String> {
    let payload = |place: &usize| jobs[*place].payload().as_str();
    if places.iter().map(|place| payload(place).len()).sum::<usize>() <= BYTES_PER_SCRIPT {
        return Ok(String::new());
    }
    // No key of a queue has but one colon.
    let keys = format!("{}:ahead-{:016x}-", link.layout.base(shard), fastrand::u64(..));
    let mut number = 0;
    for portion in portions(places, |place| payload(place).len()) {
        let mut pipeline = redis::pipe();
        for place in portion {
            number += 1;
            let key = format!("{keys}{number}");
            pipeline.hset(&key, "payload", payload(place)).ignore().expire(&key, KEPT.into()).ignore();
        }
        // To send it twice is as good as once.
        if let Err(error) = link.send_all::<()>("enqueue", Effect::Read, &pipeline).await {
            take_back(link, &keys, number).await;
            return Err(error);
        }
    }
    Ok(keys)
}

/// Makes room again. If that cannot be done, it is done by the server after some time.
async fn take_back(link: &Link, keys: &str, count: usize) {
    let numbers: Vec<usize> = (1..=count).collect();
    for numbers in numbers.chunks(JOBS_PER_SCRIPT) {
        let mut command = redis::cmd("UNLINK");
        command.arg(numbers.iter().map(|number| format!("{keys}{number}")).collect::<Vec<_>>());
        if let Err(error) = link.send::<u64>("enqueue", Effect::Read, &command).await {
            tracing::debug!(%error, "payloads of jobs that were not enqueued stay for a while");
            return;
        }
    }
}

/// The jobs that were accepted, or were there already.
async fn accept(
    link: &Link,
    shard: Shard,
    jobs: &[NewJob],
    headers: &[String],
    (places, reserved): (&[usize], Option<i64>),
) -> Result<Vec<Enqueued>> {
    let ahead = send_ahead(link, shard, jobs, places).await?;
    let accepted = accept_all(link, shard, (jobs, headers), (places, reserved), &ahead).await;
    if !ahead.is_empty() && accepted.as_ref().is_err_and(|error| !error.is_unknown()) {
        take_back(link, &ahead, places.len()).await;
    }
    accepted
}

async fn accept_all(
    link: &Link,
    shard: Shard,
    (jobs, headers): (&[NewJob], &[String]),
    (places, reserved): (&[usize], Option<i64>),
    ahead: &str,
) -> Result<Vec<Enqueued>> {
    let queues = Places::new(places.iter().map(|place| jobs[*place].queue()));
    let shapes = Shapes::new(places.iter().map(|place| (&jobs[*place], &headers[*place])));
    let sequence = |place: usize| reserved.map(|first| first + place as i64 + 1);
    let (before, numbers, known): Accepted = link
        .run("enqueue", Effect::Write, (&scripts::enqueue, shard), |directory, call| {
            queues.keys(&link.layout, call);
            call.arg(link.layout.count()).arg(shard.index()).arg(shapes.all.len()).arg(places.len());
            match reserved {
                Some(_) => call.arg(""),
                None => call.arg(link.last_number()),
            };
            call.arg(ahead);
            for shape in &shapes.all {
                let default = || directory.policy(shape.queue).max_attempts.get(); // E12
                call.arg(queues.of(shape.queue)).arg(shape.kind).arg(shape.priority).arg(shape.headers);
                call.arg(shape.max_attempts.unwrap_or_else(default));
                call.arg(shape.schedule.0).arg(&shape.schedule.1).arg(u8::from(shape.has_key));
            }
            for (place, shape) in places.iter().zip(&shapes.of) {
                let job = &jobs[*place];
                call.arg(shape + 1).arg(sequence(*place)).arg(job.unique_key().map(|key| key.as_str()));
                if ahead.is_empty() {
                    call.arg(job.payload().as_str());
                }
            }
        })
        .await?;
    link.has_given(before + places.len() as i64);
    let accepted = places.iter().enumerate().map(|(at, place)| {
        let number =
            numbers.get(queues.of(jobs[*place].queue()).saturating_sub(1)).copied().unwrap_or_default();
        let sequence = sequence(*place).unwrap_or(before + at as i64 + 1);
        Enqueued { id: id::of(sequence, number), deduplicated: false }
    });
    let mut answers: Vec<Enqueued> = accepted.collect();
    for (at, winner) in known {
        if let Some(answer) = at.checked_sub(1).and_then(|at| answers.get_mut(at)) {
            *answer = Enqueued { id: answered_id(&winner)?, deduplicated: true }; // E3, E4
        }
    }
    Ok(answers)
}
