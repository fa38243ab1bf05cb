//! Dequeue: one script where one can see all the queues, else a look first.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use leasehold_core::{
    Dequeue, Job, JobId, QueueName, QueueOrder, QueuePrefix, Queues, RateLimit, Record, Result,
};

use crate::directory::Directory;
use crate::error::Effect;
use crate::link::{Link, QUEUES_PER_SCRIPT, answered_id};
use crate::row::{Row, readable};
use crate::script::{Call, micros, scripts};

/// How many prefixes are remembered. More are hardly ever in use at once; those forgotten start again.
const TURNS: usize = 1024;

/// How many jobs one script may look at to put those of several queues in order.
const SORTED: usize = 100_000;

/// Which queue of each prefix was served last (D11). Losing it costs a turn and no promise.
#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<QueuePrefix, QueueName>>);

impl Turns {
    fn last(&self, prefix: &QueuePrefix) -> Option<QueueName> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(prefix).cloned()
    }

    fn served(&self, prefix: &QueuePrefix, queue: QueueName) {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if turns.len() >= TURNS {
            turns.clear();
        }
        turns.insert(prefix.clone(), queue);
    }
}

pub(crate) async fn dequeue(link: &Link, turns: &Turns, request: &Dequeue) -> Result<Vec<Job>> {
    match &request.queues {
        Queues::Named(names) => in_order(link, request, names).await,
        Queues::Matching(prefix) => in_turns(link, turns, request, prefix).await,
    }
}

/// The first jobs of all the queues together (D6).
async fn in_order(link: &Link, request: &Dequeue, names: &[QueueName]) -> Result<Vec<Job>> {
    let limit = request.limit.as_usize();
    let groups: Vec<_> = names.chunks((SORTED / limit).clamp(1, QUEUES_PER_SCRIPT)).collect();
    if let [names] = groups[..] {
        return Ok(lease(link, request, Manner::Order, names, limit)
            .await?
            .into_iter()
            .map(|(_, job)| job)
            .collect());
    }
    let mut ranks = Vec::new();
    for (group, names) in groups.iter().enumerate() {
        let found: Vec<String> = call(link, request, Manner::Peek, names, limit).await?;
        ranks.extend(found.into_iter().map(|rank| (rank, group)));
    }
    ranks.sort_unstable();
    ranks.truncate(limit);
    let mut leased = Vec::new();
    for (group, names) in groups.iter().enumerate() {
        let share = ranks.iter().filter(|(_, other)| *other == group).count();
        if share > 0 {
            leased.extend(
                lease(link, request, Manner::Order, names, share).await?.into_iter().map(|(_, job)| job),
            );
        }
    }
    leased.sort_by_key(|job| (Reverse(job.priority), job.available_at, job.id)); // D12
    Ok(leased)
}

/// One job of each queue, then a second of each, and so on, from where the last call stopped (D11).
async fn in_turns(link: &Link, turns: &Turns, request: &Dequeue, prefix: &QueuePrefix) -> Result<Vec<Job>> {
    let mut queues = link.select("dequeue", &request.queues).await?;
    if let Some(last) = turns.last(prefix) {
        let next = queues.partition_point(|queue| *queue <= last);
        queues.rotate_left(next);
    }
    let mut jobs: Vec<Job> = Vec::new();
    while jobs.len() < request.limit.as_usize() && !queues.is_empty() {
        let rounds = if queues.len() <= QUEUES_PER_SCRIPT { u32::MAX } else { 1 };
        let mut again = Vec::new();
        for chunk in queues.chunks(QUEUES_PER_SCRIPT) {
            let left = request.limit.as_usize() - jobs.len();
            if left == 0 {
                break;
            }
            for (queue, job) in lease(link, request, Manner::Turns { rounds }, chunk, left).await? {
                turns.served(prefix, queue.clone());
                again.push(queue);
                jobs.push(job);
            }
        }
        if rounds > 1 {
            break;
        }
        queues = again;
    }
    Ok(jobs)
}

/// In which manner a script leases.
#[derive(Clone, Copy)]
enum Manner {
    /// In one order of all queues.
    Order,
    /// Not at all: it tells the ranks of the jobs that come first.
    Peek,
    /// In turns, so many rounds.
    Turns { rounds: u32 },
}

/// Leases jobs of these queues, each with its queue, in the order in which they were leased.
async fn lease(
    link: &Link,
    request: &Dequeue,
    manner: Manner,
    queues: &[QueueName],
    limit: usize,
) -> Result<Vec<(QueueName, Job)>> {
    type Leased = Vec<(usize, String, HashMap<String, Vec<u8>>)>;
    let leased: Leased = call(link, request, manner, queues, limit).await?;
    let mut jobs = Vec::with_capacity(leased.len());
    for (place, id, fields) in leased {
        let Some(queue) = queues.get(place - 1) else { continue };
        let row = Row::new(answered_id(&id)?, queue.clone(), fields);
        if let Some(Record::Live(job)) = row.and_then(|row| readable(row.record())) {
            jobs.push((queue.clone(), job));
        }
    }
    Ok(jobs)
}

async fn call<T: redis::FromRedisValue>(
    link: &Link,
    request: &Dequeue,
    manner: Manner,
    queues: &[QueueName],
    limit: usize,
) -> Result<T> {
    link.run("dequeue", Effect::Write, &scripts::dequeue, |directory, call| {
        match manner {
            Manner::Order => call.arg("order").arg(limit).arg(0),
            Manner::Peek => call.arg("peek").arg(limit).arg(0),
            Manner::Turns { rounds } => call.arg("turns").arg(limit).arg(rounds),
        };
        call.arg(request.worker.as_str());
        queues.iter().for_each(|queue| rules(link, directory, request, queue, call));
    })
    .await
}

/// What the script must know of one queue.
fn rules(link: &Link, directory: &Directory, request: &Dequeue, queue: &QueueName, call: &mut Call) {
    let policy = directory.policy(queue);
    let fifo = policy.order == QueueOrder::Fifo;
    let places = match policy.concurrency_limit {
        _ if policy.paused => Some(0), // P1
        _ if fifo => Some(1),          // P4
        limit => limit.map(|limit| limit.get()),
    };
    call.key(link.prefix.queue(queue));
    call.arg(micros(policy.lease_for(request.lease_for).get())).arg(policy.order.as_str());
    call.arg(places.map_or_else(String::new, |places| places.to_string()));
    match policy.rate {
        Some(rate) => call.arg(rate_text(&rate)).arg(rate.per_sec()).arg(rate.burst()),
        None => call.arg("").arg("").arg(""),
    };
}

/// A rate, as its bucket has it: another one starts with a full bucket.
pub(crate) fn rate_text(rate: &RateLimit) -> String {
    format!("{}/{}", rate.per_sec(), rate.burst())
}

/// The job that a queue would give out first, limits aside that are not reached.
pub(crate) async fn first(link: &Link, queue: &QueueName) -> Result<Option<JobId>> {
    let request = Dequeue::new(queue, "explain")?;
    let ranks: Vec<String> = call(link, &request, Manner::Peek, std::slice::from_ref(queue), 1).await?;
    ranks.first().and_then(|rank| rank.get(28..)).map(answered_id).transpose()
}
