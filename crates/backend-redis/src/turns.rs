//! Dequeue over a prefix: active queues take turns (D11).

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use leasehold_core::{Dequeue, Job, QueueName, QueuePrefix, Result};

use crate::dequeue::{
    Answer, Claim, FRUITLESS, FULL, From, LOOKED, Leased, Leases, Manner, OnePolicy, Walk, jobs,
};
use crate::error::Effect;
use crate::fan;
use crate::keys::Shard;
use crate::link::{JOBS_PER_SCRIPT, Link, QUEUES_PER_SCRIPT, grouped, queue_name};
use crate::script::scripts;

/// How many prefixes are remembered. More are hardly ever in use at once; those forgotten start again.
const TURNS: usize = 1024;

/// How many names of queues are asked for at once.
const PAGE: usize = 1000;

/// Which queue of each prefix was served last. Losing it costs a turn and no promise.
#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<QueuePrefix, QueueName>>);

impl Turns {
    fn last(&self, prefix: &QueuePrefix) -> Option<QueueName> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(prefix).cloned()
    }

    fn served(&self, prefix: &QueuePrefix, jobs: &[Job]) {
        let Some(job) = jobs.last() else { return };
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if turns.len() >= TURNS {
            turns.clear();
        }
        turns.insert(prefix.clone(), job.queue.clone());
    }
}

/// One job of each queue, then a second of each, and so on, from where the last call stopped; in as many steps as it takes, each of
/// which goes on where the one before has stopped.
pub(crate) async fn in_turns(
    link: &Link,
    turns: &Turns,
    request: &Dequeue,
    prefix: &QueuePrefix,
) -> Result<Vec<Job>> {
    let (limit, mut last) = (request.limit.as_usize(), turns.last(prefix));
    let (mut leased, mut fruitless) = (Leases::default(), 0);
    while leased.count < limit && fruitless < FRUITLESS {
        let wanted = limit - leased.count;
        let step = if link.layout.count() == 1 {
            on_one_shard(link, request, (prefix, last.as_ref()), wanted.min(JOBS_PER_SCRIPT)).await
        } else {
            over_shards(link, request, (prefix, last.as_ref()), wanted.min(LOOKED)).await
        };
        let Some(step) = leased.or_what_is_held(step)? else { break };
        turns.served(prefix, &step.jobs);
        last = step.jobs.last().map(|job| job.queue.clone()).or(last);
        fruitless = if step.count == 0 { fruitless + 1 } else { 0 };
        if leased.add(step) {
            break;
        }
    }
    Ok(leased.jobs)
}

/// Where there is one shard, a script leases as it walks.
async fn on_one_shard(
    link: &Link,
    request: &Dequeue,
    (prefix, last): (&QueuePrefix, Option<&QueueName>),
    limit: usize,
) -> Result<Leases> {
    let (mut walk, mut leased) = (Walk::after(prefix, last), Leases::default());
    let one = OnePolicy::new(prefix);
    while link.known(|directory| directory.policy_of_all(prefix)).is_some() {
        let begins = leased.count == 0 && walk.is_at_start();
        // Only a call that sees all the queues can go on with second rounds.
        let manner = Manner::Turns { rounds: if begins { u32::MAX } else { 1 } };
        let claim =
            Claim { request, manner, from: From::Active(walk.clone(), &one), limit: limit - leased.count };
        let answer = claim.call::<Answer<Leased>>(link, Shard::FIRST).await;
        let Some((found, all, part, cursor)) = leased.or_what_is_held(answer)? else { return Ok(leased) };
        if one.is_gone() {
            break;
        }
        leased.add(Leases { count: found.len(), jobs: jobs(found)?, are_all: all && begins && part != FULL });
        if leased.are_all || part == FULL {
            return Ok(leased);
        }
        if all {
            let queues = leased.jobs.iter().map(|job: &Job| job.queue.clone()).collect();
            return rounds(link, request, queues, (leased, limit)).await;
        }
        walk.go_on(part, cursor);
    }
    // The queues have several policies.
    let queues = active(link, Shard::FIRST, prefix).await;
    let Some(mut queues) = leased.or_what_is_held(queues)? else { return Ok(leased) };
    rotate(&mut queues, last);
    rounds(link, request, queues, (leased, limit)).await
}

/// One round after another over these queues, in chunks.
async fn rounds(
    link: &Link,
    request: &Dequeue,
    mut queues: Vec<QueueName>,
    (mut leased, limit): (Leases, usize),
) -> Result<Leases> {
    while leased.count < limit && !queues.is_empty() {
        let rounds = if queues.len() <= QUEUES_PER_SCRIPT { u32::MAX } else { 1 };
        let mut again = Vec::new();
        for chunk in queues.chunks(QUEUES_PER_SCRIPT) {
            let claim = Claim::named(request, Manner::Turns { rounds }, chunk.iter(), limit - leased.count);
            let answer = claim.call::<Answer<Leased>>(link, Shard::FIRST).await;
            let Some((found, _, part, _)) = leased.or_what_is_held(answer)? else { return Ok(leased) };
            again.extend(found.iter().filter_map(|(queue, ..)| queue_name(queue.clone())));
            leased.add(Leases { count: found.len(), jobs: jobs(found)?, are_all: false });
            if part == FULL {
                return Ok(leased);
            }
        }
        if rounds > 1 {
            break;
        }
        queues = again;
    }
    leased.are_all = true;
    Ok(leased)
}

/// Over several shards all are looked at first: who has how many to give. Then the turns are made here, and each shard leases
/// its share. Nobody else's call is held up meanwhile; what somebody else took is missing in the answer.
async fn over_shards(
    link: &Link,
    request: &Dequeue,
    (prefix, last): (&QueuePrefix, Option<&QueueName>),
    limit: usize,
) -> Result<Leases> {
    let looks = link.layout.shards().map(|shard| look(link, request, shard, (prefix, last), limit));
    let mut offers = fan::some(looks).await?;
    offers.sort_unstable_by(|(a, _), (b, _)| (Some(a) <= last, a).cmp(&(Some(b) <= last, b)));
    let (order, shares) = deal(&offers, limit);
    let are_all = order.len() < limit;
    let shards = grouped(shares.iter().map(|(queue, share)| (link.layout.shard(queue), (*queue, *share))));
    let leases = shards.into_iter().map(|(shard, queues)| async move {
        let mut leased = Leases::default();
        for chunk in queues.chunks(QUEUES_PER_SCRIPT) {
            let limit = chunk.iter().map(|(_, share)| share).sum();
            let from = From::Named(chunk.iter().map(|(queue, share)| (*queue, Some(*share))).collect());
            let claim = Claim { request, manner: Manner::Turns { rounds: u32::MAX }, from, limit };
            let Some(some) = leased.or_what_is_held(claim.lease(link, shard).await)? else { break };
            leased.add(some);
        }
        Ok(vec![leased])
    });
    let mut by_queue: HashMap<QueueName, VecDeque<Job>> = HashMap::new();
    let mut count = 0;
    for leased in fan::some(leases).await? {
        count += leased.count;
        for job in leased.jobs {
            by_queue.entry(job.queue.clone()).or_default().push_back(job);
        }
    }
    let are_all = are_all && count == order.len();
    let jobs = order.into_iter().filter_map(|queue| by_queue.get_mut(queue)?.pop_front()).collect();
    Ok(Leases { jobs, count, are_all })
}

/// What the queues of one shard have to give: the first ones after `last`, enough for the request.
async fn look(
    link: &Link,
    request: &Dequeue,
    shard: Shard,
    (prefix, last): (&QueuePrefix, Option<&QueueName>),
    limit: usize,
) -> Result<Vec<(QueueName, usize)>> {
    let manner = Manner::Look;
    let mut offers = Vec::new();
    let mut offered = |found: Vec<(String, usize)>| {
        offers.extend(found.into_iter().filter_map(|(name, count)| Some((queue_name(name)?, count))));
        offers.len()
    };
    let (mut walk, mut count, one) = (Walk::after(prefix, last), 0, OnePolicy::new(prefix));
    let has_one = || link.known(|directory| directory.policy_of_all(prefix)).is_some();
    while has_one() {
        let from = From::Active(walk.clone(), &one);
        let claim = Claim { request, manner, from, limit: limit - count };
        let (found, all, part, cursor): Answer<(String, usize)> = claim.call(link, shard).await?;
        count = offered(found);
        if one.is_gone() {
            break;
        }
        if all || count >= limit || part == FULL {
            return Ok(once_each(offers));
        }
        walk.go_on(part, cursor);
    }
    // The queues have several policies.
    let mut queues = active(link, shard, prefix).await?;
    rotate(&mut queues, last);
    for chunk in queues.chunks(QUEUES_PER_SCRIPT) {
        let claim = Claim::named(request, manner, chunk.iter(), limit);
        let (found, ..): Answer<(String, usize)> = claim.call(link, shard).await?;
        if offered(found) >= limit {
            break;
        }
    }
    Ok(once_each(offers))
}

/// Queues that came due in the middle of a walk are seen twice.
fn once_each(mut offers: Vec<(QueueName, usize)>) -> Vec<(QueueName, usize)> {
    let mut seen = std::collections::HashSet::new();
    offers.retain(|(name, _)| seen.insert(name.clone()));
    offers
}

/// Whose turn it is, one after another, and how many turns each queue gets.
fn deal(offers: &[(QueueName, usize)], limit: usize) -> (Vec<&QueueName>, Vec<(&QueueName, usize)>) {
    let mut order = Vec::new();
    let mut shares: Vec<_> = offers.iter().map(|(queue, _)| (queue, 0)).collect();
    for round in 1.. {
        let before = order.len();
        for ((queue, count), share) in offers.iter().zip(&mut shares) {
            if *count >= round && order.len() < limit {
                order.push(queue);
                share.1 += 1;
            }
        }
        if order.len() == before {
            break;
        }
    }
    shares.retain(|(_, share)| *share > 0);
    (order, shares)
}

fn rotate(queues: &mut [QueueName], last: Option<&QueueName>) {
    let next = queues.partition_point(|queue| Some(queue) <= last);
    queues.rotate_left(next);
}

/// All queues of one shard that have a job that is due, by name.
async fn active(link: &Link, shard: Shard, prefix: &QueuePrefix) -> Result<Vec<QueueName>> {
    let mut names: Vec<QueueName> = Vec::new();
    loop {
        let after = names.last().map(ToString::to_string).unwrap_or_default();
        let (page, more): (Vec<String>, bool) = link
            .run("dequeue", Effect::Read, (&scripts::active, shard), |_, call| {
                call.arg(prefix.as_str()).arg(&after).arg(PAGE);
            })
            .await?;
        let full = page.len() == PAGE;
        names.extend(page.into_iter().filter_map(queue_name));
        if more {
            names.clear();
        } else if !full {
            return Ok(names);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_gets_a_turn_before_any_gets_a_second() {
        let offers =
            [("a", 3), ("b", 1), ("c", 9)].map(|(name, count)| (QueueName::new(name).unwrap(), count));
        let dealt = |limit| {
            let (order, shares) = deal(&offers, limit);
            let names: String = order.iter().map(|queue| queue.as_str()).collect();
            (names, shares.iter().map(|(_, share)| *share).collect::<Vec<_>>())
        };
        assert_eq!(dealt(2), ("ab".to_owned(), vec![1, 1]));
        assert_eq!(dealt(6), ("abcaca".to_owned(), vec![3, 1, 2]));
        assert_eq!(dealt(99), ("abcacaccccccc".to_owned(), vec![3, 1, 9]));
    }
}
