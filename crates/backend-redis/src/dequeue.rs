//! Dequeue: one script if one shard has all the queues, else a look at each shard first.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_core::{
    Dequeue, EffectivePolicy, Job, JobId, QueueName, QueueOrder, QueuePrefix, Queues, RateLimit, Record,
    Result,
};
use redis::FromRedisValue;

use crate::directory::Directory;
use crate::error::Effect;
use crate::fan;
use crate::keys::Shard;
use crate::link::{Link, QUEUES_PER_SCRIPT, answered_id, grouped, queue_name};
use crate::row::{Row, readable};
use crate::script::{Call, micros, scripts};
use crate::turns::{self, Turns};

/// How many jobs one script may look at to put those of several queues in order.
const SORTED: usize = 100_000;

pub(crate) async fn dequeue(link: &Link, turns: &Turns, request: &Dequeue) -> Result<Vec<Job>> {
    let jobs = match &request.queues {
        Queues::Named(names) => in_order(link, request, names).await?,
        Queues::Matching(prefix) => turns::in_turns(link, turns, request, prefix).await?,
    };
    link.learn_from(jobs.iter().map(|job| (job.id, &job.queue)));
    Ok(jobs)
}

/// The first jobs of all the queues together (D6).
async fn in_order(link: &Link, request: &Dequeue, names: &[QueueName]) -> Result<Vec<Job>> {
    let limit = request.limit.as_usize();
    let size = (SORTED / limit).clamp(1, QUEUES_PER_SCRIPT);
    let shards = grouped(names.iter().map(|name| (link.layout.shard(name), name)));
    let shards = &shards;
    let groups: Vec<(Shard, &[&QueueName])> =
        shards.iter().flat_map(|(shard, names)| names.chunks(size).map(|chunk| (*shard, chunk))).collect();
    if let [(shard, names)] = groups[..] {
        return Claim::named(request, Manner::Order, names.iter().copied(), limit).lease(link, shard).await;
    }
    let looks = groups.iter().enumerate().map(|(group, (shard, names))| async move {
        let look = Claim::named(request, Manner::Peek, names.iter().copied(), limit);
        let ranks: Vec<String> = look.call(link, *shard).await?;
        Ok(ranks.into_iter().map(|rank| (rank, group)).collect())
    });
    let mut ranks = fan::some(looks).await?;
    ranks.sort_unstable();
    ranks.truncate(limit);
    let groups = groups.iter().enumerate().filter_map(|(group, (shard, names))| {
        let share = ranks.iter().filter(|(_, other)| *other == group).count();
        (share > 0).then_some((*shard, *names, share))
    });
    let leases = groups.map(|(shard, names, share)| async move {
        Claim::named(request, Manner::Order, names.iter().copied(), share).lease(link, shard).await
    });
    let mut leased = fan::some(leases).await?;
    leased.sort_by_key(|job| (Reverse(job.priority), job.available_at, job.id)); // D12
    Ok(leased)
}

/// In which manner a script leases.
#[derive(Clone, Copy)]
pub(crate) enum Manner {
    /// In one order of all queues.
    Order,
    /// Not at all: it tells the ranks of the jobs that come first.
    Peek,
    /// In turns, so many rounds.
    Turns { rounds: u32 },
    /// Not at all: it tells how many jobs each queue has to give.
    Look,
}

/// Where a walk over the active queues of a prefix is.
#[derive(Clone, Default)]
pub(crate) struct Walk {
    pub(crate) prefix: String,
    /// The queue that was served last.
    pub(crate) origin: String,
    /// Before that queue, or after it.
    pub(crate) part: String,
    pub(crate) cursor: String,
}

impl Walk {
    /// From the first queue after `last` around to `last` itself.
    pub(crate) fn after(prefix: &QueuePrefix, last: Option<&QueueName>) -> Self {
        let origin = last.map(ToString::to_string).unwrap_or_default();
        Self { prefix: prefix.to_string(), cursor: origin.clone(), origin, part: "after".to_owned() }
    }

    pub(crate) fn is_at_start(&self) -> bool {
        self.part == "after" && self.cursor == self.origin
    }

    /// Goes on where the script has stopped; from the start, if it has found more queues meanwhile.
    pub(crate) fn go_on(&mut self, part: String, cursor: String) {
        (self.part, self.cursor) =
            if part.is_empty() { ("after".to_owned(), self.origin.clone()) } else { (part, cursor) };
    }
}

/// The one policy of a prefix, as it is known when a script is called: what was known before may be out of date.
pub(crate) struct OnePolicy<'a> {
    prefix: &'a QueuePrefix,
    is_gone: AtomicBool,
}

impl<'a> OnePolicy<'a> {
    pub(crate) fn new(prefix: &'a QueuePrefix) -> Self {
        Self { prefix, is_gone: AtomicBool::new(false) }
    }

    /// What the script goes by. If the queues have several policies by now, it gives nothing.
    fn of(&self, directory: &Directory) -> EffectivePolicy {
        let policy = directory.policy_of_all(self.prefix);
        self.is_gone.store(policy.is_none(), Ordering::Relaxed);
        policy.unwrap_or_else(|| EffectivePolicy { paused: true, ..EffectivePolicy::default() })
    }

    /// Whether the last call gave nothing because the queues have several policies.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }
}

/// Of which queues a script leases.
pub(crate) enum From<'a> {
    /// These, each at most so many if that is said.
    Named(Vec<(&'a QueueName, Option<usize>)>),
    /// The active ones of a prefix, if one policy holds for all of them.
    Active(Walk, &'a OnePolicy<'a>),
}

/// One call of the script.
pub(crate) struct Claim<'a> {
    pub(crate) request: &'a Dequeue,
    pub(crate) manner: Manner,
    pub(crate) from: From<'a>,
    pub(crate) limit: usize,
}

/// What the script answers: what it has leased or seen, whether that was all, and where to go on.
pub(crate) type Answer<T> = (Vec<T>, bool, String, String);

impl<'a> Claim<'a> {
    pub(crate) fn named(
        request: &'a Dequeue,
        manner: Manner,
        names: impl Iterator<Item = &'a QueueName>,
        limit: usize,
    ) -> Self {
        Self { request, manner, from: From::Named(names.map(|name| (name, None)).collect()), limit }
    }

    /// The jobs that were leased, in the order in which they were.
    pub(crate) async fn lease(&self, link: &Link, shard: Shard) -> Result<Vec<Job>> {
        let (leased, ..): Answer<Leased> = self.call(link, shard).await?;
        jobs(leased)
    }

    pub(crate) async fn call<T: FromRedisValue>(&self, link: &Link, shard: Shard) -> Result<T> {
        let effect = match self.manner {
            Manner::Order | Manner::Turns { .. } => Effect::Write,
            Manner::Peek | Manner::Look => Effect::Read,
        };
        link.run("dequeue", effect, (&scripts::dequeue, shard), |directory, call| {
            match self.manner {
                Manner::Order => call.arg("order").arg(self.limit).arg(0),
                Manner::Peek => call.arg("peek").arg(self.limit).arg(0),
                Manner::Turns { rounds } => call.arg("turns").arg(self.limit).arg(rounds),
                Manner::Look => call.arg("look").arg(self.limit).arg(1),
            };
            call.arg(self.request.worker.as_str());
            match &self.from {
                From::Named(queues) => {
                    for (queue, share) in queues {
                        call.key(link.layout.queue(queue));
                        rules(self.request, &directory.policy(queue), call);
                        call.arg(share.map_or_else(String::new, |share| share.to_string()));
                    }
                }
                From::Active(walk, one) => {
                    call.arg(&walk.prefix).arg(&walk.origin).arg(&walk.part).arg(&walk.cursor);
                    rules(self.request, &one.of(directory), call);
                }
            }
        })
        .await
    }
}

/// The queue, the id and the fields of a job.
pub(crate) type Leased = (String, String, Vec<Option<Vec<u8>>>);

pub(crate) fn jobs(leased: Vec<Leased>) -> Result<Vec<Job>> {
    let mut jobs = Vec::with_capacity(leased.len());
    for (queue, id, fields) in leased {
        let Some(queue) = queue_name(queue) else { continue };
        let row = Row::new(answered_id(&id)?, queue, fields);
        if let Some(Record::Live(job)) = readable(row.record()) {
            jobs.push(job);
        }
    }
    Ok(jobs)
}

/// What the script must know of one queue.
fn rules(request: &Dequeue, policy: &EffectivePolicy, call: &mut Call) {
    let fifo = policy.order == QueueOrder::Fifo;
    let places = match policy.concurrency_limit {
        _ if policy.paused => Some(0), // P1
        _ if fifo => Some(1),          // P4
        limit => limit.map(|limit| limit.get()),
    };
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
    let look = Claim::named(&request, Manner::Peek, std::iter::once(queue), 1);
    let ranks: Vec<String> = look.call(link, link.layout.shard(queue)).await?;
    ranks.first().and_then(|rank| rank.get(28..)).map(answered_id).transpose()
}
