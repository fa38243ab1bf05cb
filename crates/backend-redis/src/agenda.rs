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
        from += PAGE;
    }
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
