//! Enqueue: one script for all the jobs of a shard.

use std::collections::HashMap;

use leasehold_core::{Enqueued, JobId, NewJob, QueueName, Result, StoreError};

use crate::error::Effect;
use crate::keys::Shard;
use crate::link::{Link, Places, answered_id, grouped};
use crate::script::{schedule_words, scripts};
use crate::{fan, id};

pub(crate) async fn enqueue(link: &Link, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
    let headers = jobs.iter().map(|job| serde_json::to_string(job.headers())).collect::<Result<Vec<_>, _>>();
    let headers = &headers.map_err(|error| StoreError::backend("enqueue", error))?;
    let first = reserve(link, jobs.len()).await?;
    let shards = jobs.iter().enumerate().map(|(place, job)| (link.layout.shard(job.queue()), place));
    let calls = grouped(shards).into_iter().map(|(shard, places)| async move {
        let answers = accept(link, shard, jobs, headers, (&places, first)).await?;
        Ok((places, answers))
    });
    let missing = Enqueued { id: JobId::new(0), deduplicated: false };
    fan::answers("enqueue", missing, jobs.len(), calls).await
}

/// Reserves places in the sequence of all jobs: the one before the first. Where there is one shard, the script does so.
async fn reserve(link: &Link, count: usize) -> Result<Option<i64>> {
    if link.layout.count() == 1 {
        return Ok(None);
    }
    let mut command = redis::cmd("INCRBY");
    command.arg(link.layout.prefix.common("sequence")).arg(count);
    // Places that nobody takes do no harm.
    let last: i64 = link.send("enqueue", Effect::Read, &command).await?;
    Ok(Some(last.saturating_sub(count as i64)))
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

/// The place before the first in the sequence, if the script took them; the numbers of the queues; and who was there
/// already, by the place of the job in the call.
type Accepted = (i64, Vec<i64>, Vec<(usize, String)>);

/// The jobs that were accepted, or were there already.
async fn accept(
    link: &Link,
    shard: Shard,
    jobs: &[NewJob],
    headers: &[String],
    (places, reserved): (&[usize], Option<i64>),
) -> Result<Vec<Enqueued>> {
    let queues = Places::new(places.iter().map(|place| jobs[*place].queue()));
    let shapes = Shapes::new(places.iter().map(|place| (&jobs[*place], &headers[*place])));
    let sequence = |place: usize| reserved.map(|first| first + place as i64 + 1);
    let (before, numbers, known): Accepted = link
        .run("enqueue", Effect::Write, (&scripts::enqueue, shard), |directory, call| {
            queues.keys(&link.layout, call);
            call.arg(link.layout.count()).arg(shard.index()).arg(shapes.all.len()).arg(places.len());
            for shape in &shapes.all {
                let default = || directory.policy(shape.queue).max_attempts.get(); // E12
                call.arg(queues.of(shape.queue)).arg(shape.kind).arg(shape.priority).arg(shape.headers);
                call.arg(shape.max_attempts.unwrap_or_else(default));
                call.arg(shape.schedule.0).arg(&shape.schedule.1).arg(u8::from(shape.has_key));
            }
            for (place, shape) in places.iter().zip(&shapes.of) {
                let job = &jobs[*place];
                call.arg(shape + 1).arg(sequence(*place)).arg(job.unique_key().map(|key| key.as_str()));
                call.arg(job.payload().as_str());
            }
        })
        .await?;
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
