//! When something can happen first in the queues of a prefix, without looking at those where nothing can.

use chrono::{DateTime, Utc};
use leasehold_core::{QueueName, QueuePrefix, Result};

use crate::error::Effect;
use crate::facts;
use crate::keys::Shard;
use crate::link::{Link, queue_name};
use crate::script::scripts;

/// How many queues of each index are asked for at once.
const PAGE: usize = 200;

/// How many names are looked up at once.
const NAMES: usize = 1000;

/// Active queues; then queues with a time in microseconds before which nothing happens there: those with jobs for later, and
/// those with leases.
type Page = (Vec<String>, Vec<(String, f64)>, Vec<(String, f64)>);

/// When something can happen first in the queues of one shard, and the time now.
pub(crate) async fn soonest(
    link: &Link,
    shard: Shard,
    prefix: &QueuePrefix,
) -> Result<Option<(DateTime<Utc>, DateTime<Utc>)>> {
    let (mut best, mut after, mut from) = (None, String::new(), 0);
    loop {
        let (active, later, leases): Page = link
            .run("next_available_at", Effect::Read, (&scripts::agenda, shard), |_, call| {
                call.arg(prefix.as_str()).arg(&after).arg(from).arg(PAGE);
            })
            .await?;
        let more_active = active.len() == PAGE;
        after = active.last().cloned().unwrap_or(after);
        let timed = later.iter().chain(&leases).map(|(name, _)| name.clone());
        let queues = candidates(link, prefix, active.into_iter().chain(timed));
        if !queues.is_empty() {
            let found = facts::soonest(link, &queues).await?;
            best = best.into_iter().chain(found).min();
        }
        if best.is_some_and(|(at, now)| at <= now) {
            return Ok(best);
        }
        let may_be_sooner = |page: &[(String, f64)]| {
            let last = page.last().filter(|_| page.len() == PAGE).map(|(_, at)| *at);
            last.is_some_and(|last| best.is_none_or(|(at, _)| last < at.timestamp_micros() as f64))
        };
        if !more_active && !may_be_sooner(&later) && !may_be_sooner(&leases) {
            return Ok(best);
        }
        // Most of the queues may be those of other prefixes.
        if from == 0
            && let Some(times) = by_name(link, shard, prefix).await?
        {
            return among(link, times, best).await;
        }
        from += PAGE;
    }
}

/// The queues of a prefix in which something happens at some time, by the time before which nothing does; `None` if there are so many queues
/// with this prefix that it is better to go through the times of all.
async fn by_name(link: &Link, shard: Shard, prefix: &QueuePrefix) -> Result<Option<Vec<(QueueName, f64)>>> {
    let base = link.layout.base(shard);
    let to = format!("({prefix}\u{7f}");
    let mut pipeline = redis::pipe();
    pipeline.cmd("ZLEXCOUNT").arg(format!("{base}:queues")).arg(format!("[{prefix}")).arg(to);
    pipeline.cmd("ZCARD").arg(format!("{base}:later")).cmd("ZCARD").arg(format!("{base}:leases"));
    let (count, later, leases): (usize, usize, usize) =
        link.send_all("next_available_at", Effect::Read, &pipeline).await?;
    if prefix.as_str().is_empty() || count > later + leases {
        return Ok(None);
    }
    let mut times = Vec::new();
    for names in link.list("next_available_at", shard, prefix.as_str()).await?.chunks(NAMES) {
        let mut pipeline = redis::pipe();
        for index in ["active", "later", "leases"] {
            let key = format!("{base}:{index}");
            pipeline.cmd("ZMSCORE").arg(key).arg(names.iter().map(QueueName::as_str).collect::<Vec<_>>());
        }
        let scores: Vec<Vec<Option<f64>>> =
            link.send_all("next_available_at", Effect::Read, &pipeline).await?;
        for (place, name) in names.iter().enumerate() {
            let found = scores.iter().filter_map(|scores| *scores.get(place)?);
            times.extend(found.reduce(f64::min).map(|at| (name.clone(), at)));
        }
    }
    times.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    Ok(Some(times))
}

/// When something can happen first in these queues, which come in the order of times before which nothing does.
async fn among(
    link: &Link,
    times: Vec<(QueueName, f64)>,
    mut best: Option<(DateTime<Utc>, DateTime<Utc>)>,
) -> Result<Option<(DateTime<Utc>, DateTime<Utc>)>> {
    for page in times.chunks(PAGE) {
        let is_over = |(at, now): (DateTime<Utc>, DateTime<Utc>)| {
            at <= now || page.first().is_some_and(|(_, first)| *first >= at.timestamp_micros() as f64)
        };
        if best.is_some_and(is_over) {
            break;
        }
        let mut queues: Vec<QueueName> = page.iter().map(|(name, _)| name.clone()).collect();
        link.known(|directory| queues.retain(|queue| !directory.policy(queue).paused));
        if !queues.is_empty() {
            best = best.into_iter().chain(facts::soonest(link, &queues).await?).min();
        }
    }
    Ok(best)
}

/// Those of the prefix that are not paused, each once.
fn candidates(link: &Link, prefix: &QueuePrefix, names: impl Iterator<Item = String>) -> Vec<QueueName> {
    let mut queues: Vec<QueueName> =
        names.filter_map(queue_name).filter(|queue| prefix.matches(queue)).collect();
    queues.sort_unstable();
    queues.dedup();
    link.known(|directory| queues.retain(|queue| !directory.policy(queue).paused));
    queues
}
