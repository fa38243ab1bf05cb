//! Queues in numbers: stats, what limits see, when to look again, why a job waits.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use leasehold_core::{
    EffectivePolicy, Explanation, Job, JobId, JobState, NextAvailable, Outcome, QueueName, QueueOrder,
    QueueStats, QueueUsage, Queues, Record, Result, StoreError, backend,
};
use redis::{FromRedisValue, ParsingError, Value};

use crate::dequeue::{self, rate_text};
use crate::error::Effect;
use crate::keys::Shard;
use crate::link::{Link, QUEUES_PER_SCRIPT, answered_id, answered_time, grouped};
use crate::row;
use crate::script::scripts;
use crate::{agenda, id, inspect};

/// What the script tells of one queue.
struct Facts {
    now: DateTime<Utc>,
    live: u64,
    leased: u64,
    running: u64,
    spent: u64,
    waiting: u64,
    later: u64,
    retrying: u64,
    dead: u64,
    first_due: Option<DateTime<Utc>>,
    first_lease: Option<DateTime<Utc>>,
    head_due: Option<DateTime<Utc>>,
    bucket: (String, String),
    attempts: HashMap<u32, u64>,
}

/// The same as it comes. The first of the answers is the time.
enum Answer {
    Now(String),
    Queue(Box<Numbers>),
}

type Numbers = (
    (u64, u64, u64, u64),
    (u64, u64, u64, u64),
    (String, String, String),
    ((String, String), HashMap<u32, i64>),
);

impl FromRedisValue for Answer {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        match value {
            Value::Array(values) => {
                type Flat = (u64, u64, u64, u64, u64, u64, u64, u64, String, String, String);
                let mut values = values;
                let rest = values.split_off(values.len().min(11));
                let (a, b, c, d, e, f, g, h, i, j, k) = Flat::from_redis_value(Value::Array(values))?;
                let rest = FromRedisValue::from_redis_value(Value::Array(rest))?;
                Ok(Self::Queue(Box::new(((a, b, c, d), (e, f, g, h), (i, j, k), rest))))
            }
            value => String::from_redis_value(value).map(Self::Now),
        }
    }
}

impl Facts {
    fn new(now: DateTime<Utc>, numbers: Numbers) -> Self {
        let ((live, leased, running, spent), (waiting, later, retrying, dead), times, rest) = numbers;
        let (bucket, attempts) = rest;
        let counted =
            attempts.into_iter().filter_map(|(attempts, count)| Some((attempts, u64::try_from(count).ok()?)));
        Self {
            now,
            live,
            leased,
            running,
            spent,
            waiting,
            later,
            retrying,
            dead,
            first_due: row::time(&times.0),
            first_lease: row::time(&times.1),
            head_due: row::time(&times.2),
            bucket,
            attempts: counted.filter(|(_, count)| *count > 0).collect(),
        }
    }

    fn stats(&self, queue: &QueueName) -> QueueStats {
        let states = [
            (JobState::Running, self.running),
            (JobState::Expired, self.leased.saturating_sub(self.running)),
            (JobState::Exhausted, self.spent),
            (JobState::Scheduled, self.later.saturating_sub(self.retrying)),
            (JobState::Retrying, self.retrying),
            (JobState::Ready, self.waiting.saturating_sub(self.later)),
        ];
        let mut attempts: BTreeMap<u32, u64> =
            self.attempts.iter().map(|(number, count)| (*number, *count)).collect();
        let untried = self.live.saturating_sub(attempts.values().sum());
        attempts.insert(0, untried);
        attempts.retain(|_, count| *count > 0);
        QueueStats {
            states: states.into_iter().filter(|(_, count)| *count > 0).collect(),
            oldest_ready_at: self.first_due.filter(|due| *due <= self.now),
            dead_letters: self.dead,
            attempts,
            ..QueueStats::empty(queue.clone(), self.now)
        }
    }

    fn usage(&self, policy: &EffectivePolicy) -> QueueUsage {
        let next_token_at = policy.rate.and_then(|rate| {
            let (of, full_at) = &self.bucket;
            let full_at = row::time(full_at).filter(|_| *of == rate_text(&rate));
            (rate.tokens(full_at, self.now) == 0).then(|| rate.next_token_at(full_at, self.now))
        });
        QueueUsage { leased: self.leased, next_token_at }
    }

    /// See [`Store::next_available_at`](leasehold_core::Store::next_available_at).
    fn next(&self, policy: &EffectivePolicy) -> Option<DateTime<Utc>> {
        if policy.paused {
            return None;
        }
        let soonest = self.first_lease.into_iter().chain((self.spent > 0).then_some(self.now)).min();
        let fifo = policy.order == QueueOrder::Fifo;
        let places =
            if fifo { 1 } else { policy.concurrency_limit.map_or(u64::MAX, |limit| limit.get().into()) };
        if self.leased >= places {
            return soonest;
        }
        let due = if fifo { self.head_due } else { self.first_due };
        let token = self.usage(policy).next_token_at;
        let due = due.map(|due| token.map_or(due, |token| due.max(token)));
        soonest.into_iter().chain(due).min()
    }
}

/// The facts of these queues, each with its policy.
async fn facts(
    link: &Link,
    operation: &'static str,
    queues: &[QueueName],
) -> Result<Vec<(Facts, EffectivePolicy)>> {
    let shards = grouped(queues.iter().enumerate().map(|(place, queue)| (link.layout.shard(queue), place)));
    let asked = shards.into_iter().map(|(shard, places)| async move {
        let mut told = Vec::with_capacity(places.len());
        for chunk in places.chunks(QUEUES_PER_SCRIPT) {
            let names: Vec<_> = chunk.iter().map(|place| &queues[*place]).collect();
            told.extend(chunk.iter().copied().zip(facts_of(link, operation, shard, &names).await?));
        }
        Ok(told)
    });
    let told = join_all(asked).await.into_iter().collect::<Result<Vec<_>>>()?;
    let mut all: Vec<_> = told.into_iter().flatten().collect();
    all.sort_unstable_by_key(|(place, _)| *place);
    Ok(all.into_iter().map(|(_, told)| told).collect())
}

/// The same of queues of one shard.
async fn facts_of(
    link: &Link,
    operation: &'static str,
    shard: Shard,
    queues: &[&QueueName],
) -> Result<Vec<(Facts, EffectivePolicy)>> {
    let answers: Vec<Answer> = link
        .run(operation, Effect::Read, (&scripts::facts, shard), |_, call| {
            for queue in queues {
                call.key(link.layout.queue(queue));
            }
        })
        .await?;
    let mut answers = answers.into_iter();
    let Some(Answer::Now(now)) = answers.next() else {
        return Err(StoreError::corrupt("a script answered without its time"));
    };
    let now = answered_time(&now)?;
    let policies =
        link.known(|directory| queues.iter().map(|queue| directory.policy(queue)).collect::<Vec<_>>());
    let numbers = answers.filter_map(|answer| match answer {
        Answer::Queue(numbers) => Some(*numbers),
        Answer::Now(_) => None,
    });
    Ok(numbers.zip(policies).map(|(numbers, policy)| (Facts::new(now, numbers), policy)).collect())
}

pub(crate) async fn stats(link: &Link, queues: &Queues) -> Result<Vec<QueueStats>> {
    let names = link.select("stats", queues).await?;
    let facts = facts(link, "stats", &names).await?;
    let named = matches!(queues, Queues::Named(_));
    let rows = names.iter().zip(facts).filter(|(_, (facts, _))| named || facts.live + facts.dead > 0); // Q3
    Ok(rows.map(|(name, (facts, _))| facts.stats(name)).collect())
}

pub(crate) async fn usage(link: &Link, queue: &QueueName) -> Result<QueueUsage> {
    let facts = facts(link, "usage", std::slice::from_ref(queue)).await?;
    Ok(facts.first().map(|(facts, policy)| facts.usage(policy)).unwrap_or_default())
}

pub(crate) async fn next_available_at(link: &Link, queues: &Queues) -> Result<Option<NextAvailable>> {
    let next = match queues {
        Queues::Named(names) => soonest(link, names).await?,
        Queues::Matching(prefix) => {
            let shards = link.layout.shards().map(|shard| agenda::soonest(link, shard, prefix));
            join_all(shards).await.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().min()
        }
    };
    Ok(next.map(|(at, now)| NextAvailable::new(at, now)))
}

/// When something can happen first in one of these queues, and the time now.
pub(crate) async fn soonest(
    link: &Link,
    queues: &[QueueName],
) -> Result<Option<(DateTime<Utc>, DateTime<Utc>)>> {
    let facts = facts(link, "next_available_at", queues).await?;
    Ok(facts.iter().filter_map(|(facts, policy)| Some((facts.next(policy)?, facts.now))).min())
}

pub(crate) async fn explain(link: &Link, job: JobId) -> Result<Explanation> {
    let job = match inspect::get(link, job).await? {
        None => return Ok(Explanation::Unknown), // Y1
        Some(Record::Finished(job)) => {
            return Ok(match job.outcome {
                Outcome::DeadLetter { error } => Explanation::DeadLetter { at: job.finished_at, error },
                outcome => Explanation::Finished { status: outcome.status(), at: job.finished_at },
            });
        }
        Some(Record::Live(job)) => job,
    };
    let Some((facts, policy)) = facts(link, "explain", std::slice::from_ref(&job.queue)).await?.pop() else {
        return Err(StoreError::corrupt("a script answered nothing"));
    };
    match backend::explain_alone(&job, &policy, facts.now) {
        Some(explanation) => Ok(explanation),
        None => explain_among_others(link, &job, &facts, &policy).await,
    }
}

/// The reasons that the other jobs of the queue give.
async fn explain_among_others(
    link: &Link,
    job: &Job,
    facts: &Facts,
    policy: &EffectivePolicy,
) -> Result<Explanation> {
    let fifo = policy.order == QueueOrder::Fifo;
    if fifo && let Some(first) = first_of_fifo(link, &job.queue).await?.filter(|first| *first != job.id) {
        return Ok(Explanation::WaitsBehind { job: first });
    }
    let usage = facts.usage(policy);
    if let Some(limit) = policy.concurrency_limit.filter(|limit| usage.leased >= u64::from(limit.get())) {
        return Ok(Explanation::ConcurrencyLimit { limit });
    }
    if let Some(until) = usage.next_token_at {
        return Ok(Explanation::RateLimit { until });
    }
    match dequeue::first(link, &job.queue).await? {
        Some(first) if !fifo && first != job.id => Ok(Explanation::WaitsBehind { job: first }),
        _ => Ok(Explanation::Next),
    }
}

/// The leased job with the smallest id, or else the live job with the smallest id.
async fn first_of_fifo(link: &Link, queue: &QueueName) -> Result<Option<JobId>> {
    let base = link.layout.queue(queue);
    let mut pipeline = redis::pipe();
    // More than one is there only if the queue was not always Fifo.
    pipeline.cmd("ZRANGE").arg(format!("{base}:leased")).arg(0).arg(999);
    pipeline.cmd("ZRANGE").arg(format!("{base}:live")).arg(0).arg(0);
    let (leased, live) =
        link.send_all::<(Vec<String>, Vec<String>)>("explain", Effect::Read, &pipeline).await?;
    let leased = leased.iter().filter_map(|member| id::parse(member.get(18..)?)).min();
    match (leased, live.first()) {
        (None, Some(first)) => answered_id(first).map(Some),
        (leased, _) => Ok(leased),
    }
}
