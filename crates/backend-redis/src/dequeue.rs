//! Dequeue: one script if one shard has all the queues, else a look at each shard first.

use std::cmp::Reverse;
use std::collections::HashMap;
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
use crate::link::{
    BYTES_PER_SCRIPT, JOBS_PER_SCRIPT, Link, QUEUES_PER_SCRIPT, answered_id, grouped, queue_name,
};
use crate::row::{Row, readable};
use crate::script::{Call, micros, scripts};
use crate::turns::{self, Turns};

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
    let shards = grouped(names.iter().map(|name| (link.layout.shard(name), name)));
    let mut groups: Vec<(Shard, &[&QueueName])> = Vec::new();
    for (shard, names) in &shards {
        groups.extend(names.chunks(QUEUES_PER_SCRIPT).map(|chunk| (*shard, chunk)));
    }
    if let [(shard, names)] = groups[..] {
        let claim = Claim::named(request, Manner::Order, names.iter().copied(), limit);
        return Ok(claim.lease(link, shard).await?.jobs);
    }
    let mut leased = Leases::default();
    let mut fruitless = 0;
    while leased.count < limit && fruitless < FRUITLESS {
        let wanted = (limit - leased.count).min(LOOKED);
        let Some(step) = leased.or_what_is_held(first_of(link, request, &groups, wanted).await)? else {
            break;
        };
        fruitless = if step.count == 0 { fruitless + 1 } else { 0 };
        if leased.add(step) {
            break;
        }
    }
    Ok(leased.jobs)
}

/// The first jobs of all these groups of queues. All groups are looked at first.
async fn first_of(
    link: &Link,
    request: &Dequeue,
    groups: &[(Shard, &[&QueueName])],
    limit: usize,
) -> Result<Leases> {
    let looks = groups.iter().enumerate().map(|(group, (shard, names))| async move {
        let look = Claim::named(request, Manner::Peek, names.iter().copied(), limit);
        let ranks: Vec<String> = look.call(link, *shard).await?;
        Ok(ranks.into_iter().map(|rank| (rank, group)).collect())
    });
    let mut ranks = fan::some(looks).await?;
    let are_all = ranks.len() < limit;
    ranks.sort_unstable();
    ranks.truncate(limit);
    let groups = groups.iter().enumerate().filter_map(|(group, (shard, names))| {
        let share = ranks.iter().filter(|(_, other)| *other == group).count();
        (share > 0).then_some((*shard, *names, share))
    });
    let leases = groups.map(|(shard, names, share)| async move {
        let claim = Claim::named(request, Manner::Order, names.iter().copied(), share);
        Ok(vec![claim.lease(link, shard).await?])
    });
    let mut leased = Leases::default();
    for some in fan::some(leases).await? {
        leased.add(some);
    }
    leased.jobs.sort_by_key(|job| (Reverse(job.priority), job.available_at, job.id)); // D12
    leased.are_all = are_all && leased.count == ranks.len();
    Ok(leased)
}

/// How many jobs are looked at in one step, where several scripts share them.
pub(crate) const LOOKED: usize = 2000;

/// How often a claim looks again although others were faster each time.
pub(crate) const FRUITLESS: u32 = 3;

/// What a claim has leased so far.
#[derive(Default)]
pub(crate) struct Leases {
    /// Those that can be read.
    pub(crate) jobs: Vec<Job>,
    /// How many there are, readable or not.
    pub(crate) count: usize,
    /// Whether there was nothing else to lease.
    pub(crate) are_all: bool,
}

impl Leases {
    /// Adds those of the next step. Whether there is nothing else to lease.
    pub(crate) fn add(&mut self, step: Self) -> bool {
        self.jobs.extend(step.jobs);
        self.count += step.count;
        self.are_all = step.are_all;
        self.are_all
    }

    /// The next step; nothing if it has failed, and something is leased that the caller must be told of.
    ///
    /// # Errors
    /// It has failed, and nothing is leased.
    pub(crate) fn or_what_is_held<T>(&self, step: Result<T>) -> Result<Option<T>> {
        match step {
            Err(error) if self.count > 0 => {
                tracing::warn!(%error, "a claim is answered with what it has leased until now");
                Ok(None)
            }
            step => step.map(Some),
        }
    }
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

/// Where to go on if a script has leased as much as it may: after what it has leased.
pub(crate) const FULL: &str = "full";

impl<'a> Claim<'a> {
    pub(crate) fn named(
        request: &'a Dequeue,
        manner: Manner,
        names: impl Iterator<Item = &'a QueueName>,
        limit: usize,
    ) -> Self {
        Self { request, manner, from: From::Named(names.map(|name| (name, None)).collect()), limit }
    }

    /// Leases, in as many scripts as it takes: the jobs in the order in which they were leased.
    pub(crate) async fn lease(mut self, link: &Link, shard: Shard) -> Result<Leases> {
        let mut leased = Leases::default();
        loop {
            let answer = self.call::<Answer<Leased>>(link, shard).await;
            let Some((found, _, part, _)) = leased.or_what_is_held(answer)? else { return Ok(leased) };
            self.limit = self.limit.saturating_sub(found.len());
            if let From::Named(queues) = &mut self.from {
                take_off(queues, &found);
            }
            let are_all = part != FULL;
            if leased.add(Leases { count: found.len(), jobs: jobs(found)?, are_all }) || self.limit == 0 {
                return Ok(leased);
            }
        }
    }

    pub(crate) async fn call<T: FromRedisValue>(&self, link: &Link, shard: Shard) -> Result<T> {
        let effect = match self.manner {
            Manner::Order | Manner::Turns { .. } => Effect::Write,
            Manner::Peek | Manner::Look => Effect::Read,
        };
        let most = if effect == Effect::Read { LOOKED } else { JOBS_PER_SCRIPT };
        let limit = self.limit.min(most);
        link.run("dequeue", effect, (&scripts::dequeue, shard), |directory, call| {
            match self.manner {
                Manner::Order => call.arg("order").arg(limit).arg(BYTES_PER_SCRIPT).arg(0),
                Manner::Peek => call.arg("peek").arg(limit).arg(BYTES_PER_SCRIPT).arg(0),
                Manner::Turns { rounds } => call.arg("turns").arg(limit).arg(BYTES_PER_SCRIPT).arg(rounds),
                Manner::Look => call.arg("look").arg(limit).arg(BYTES_PER_SCRIPT).arg(1),
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

/// Takes what was leased off the shares of the queues.
fn take_off(queues: &mut [(&QueueName, Option<usize>)], leased: &[Leased]) {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    leased.iter().for_each(|(queue, ..)| *counts.entry(queue).or_default() += 1);
    for (queue, share) in queues {
        let count = counts.get(queue.as_str()).copied().unwrap_or_default();
        *share = share.map(|share| share.saturating_sub(count));
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
