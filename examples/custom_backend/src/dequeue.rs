//! Leasing jobs: who is next?

use chrono::{DateTime, Utc};
use leasehold_core::{
    Dequeue, Job, JobId, Policies, QueueName, QueuePrefix, Queues, Result, StoreError, backend,
};
use redb::ReadableTable;

use crate::tables::{Tables, failed};

/// Where a Ready job stands in its queue: priority with the sign turned, `available_at`, id.
type Rank = (i64, i64, i64);

/// Leases jobs: in one order over named queues, in turns over a prefix.
pub(crate) fn dequeue(tables: &mut Tables<'_>, request: &Dequeue, now: DateTime<Utc>) -> Result<Vec<Job>> {
    let policies = tables.policies()?;
    match &request.queues {
        Queues::Named(names) => by_rank(tables, names, request, &policies, now),
        Queues::Matching(prefix) => in_turns(tables, prefix, request, &policies, now),
    }
}

/// The first of each queue, merged (D6).
fn by_rank(
    tables: &mut Tables<'_>,
    names: &[QueueName],
    request: &Dequeue,
    policies: &Policies,
    now: DateTime<Utc>,
) -> Result<Vec<Job>> {
    let limit = request.limit.as_usize();
    let mut ranks = Vec::new();
    for name in names {
        ranks.extend(ready(tables, name, limit, policies, now)?);
    }
    ranks.sort_unstable();
    ranks.truncate(limit); // D5
    ranks.into_iter().map(|(_, _, id)| lease(tables, id, request, policies, now)).collect()
}

/// One job of each queue, by the order of their names, from where the last call stopped, round and round (D11).
fn in_turns(
    tables: &mut Tables<'_>,
    prefix: &QueuePrefix,
    request: &Dequeue,
    policies: &Policies,
    now: DateTime<Utc>,
) -> Result<Vec<Job>> {
    let last = tables.turns.get(prefix.as_str()).map_err(failed)?;
    let mut last = last.map(|last| last.value().to_owned());
    let mut leased = Vec::new();
    while leased.len() < request.limit.as_usize() {
        let Some((queue, id)) = next_turn(tables, prefix, last.as_deref(), policies, now)? else { break };
        leased.push(lease(tables, id, request, policies, now)?);
        last = Some(queue.as_str().to_owned());
    }
    if let Some(last) = last {
        tables.turns.insert(prefix.as_str(), last.as_str()).map_err(failed)?;
    }
    Ok(leased)
}

/// The first queue after `last` that has a Ready job, or else the first of all.
fn next_turn(
    tables: &Tables<'_>,
    prefix: &QueuePrefix,
    last: Option<&str>,
    policies: &Policies,
    now: DateTime<Utc>,
) -> Result<Option<(QueueName, i64)>> {
    let (after_last, all) = (last.map(|last| (last, i64::MAX)), (prefix.as_str(), i64::MIN));
    for (name, edge) in after_last.into_iter().chain([all]) {
        let mut next = queue_from(tables, name, edge)?;
        while let Some(queue) = next.filter(|queue| prefix.matches(queue)) {
            if let Some((_, _, id)) = ready(tables, &queue, 1, policies, now)?.pop() {
                return Ok(Some((queue, id)));
            }
            next = queue_from(tables, queue.as_str(), i64::MAX)?;
        }
    }
    Ok(None)
}

/// The first queue from `name` on (`edge` smallest) or after it (`edge` largest) that has waiting jobs.
fn queue_from(tables: &Tables<'_>, name: &str, edge: i64) -> Result<Option<QueueName>> {
    let mut rows = tables.waiting.range((name, edge, edge, edge)..).map_err(failed)?;
    let Some(row) = rows.next() else { return Ok(None) };
    let row = row.map_err(failed)?;
    let name = QueueName::new(row.0.value().0);
    name.map(Some).map_err(|invalid| StoreError::corrupt(format!("the name of a queue: {invalid}")))
}

/// Up to `limit` Ready jobs of a queue, in its order (D1). Nothing if it is paused (P1).
fn ready(
    tables: &Tables<'_>,
    queue: &QueueName,
    limit: usize,
    policies: &Policies,
    now: DateTime<Utc>,
) -> Result<Vec<Rank>> {
    let (mut found, mut from) = (Vec::new(), i64::MIN);
    if policies.effective(queue).paused {
        return Ok(found);
    }
    let (name, now) = (queue.as_str(), now.timestamp_micros());
    // One round for each priority: behind the first job whose time has not come, all of that priority wait.
    while found.len() < limit {
        let rest = (name, from, i64::MIN, i64::MIN)..=(name, i64::MAX, i64::MAX, i64::MAX);
        let mut waits = None;
        for row in tables.waiting.range(rest).map_err(failed)?.take(limit - found.len()) {
            let (_, priority, at, id) = row.map_err(failed)?.0.value();
            if at > now {
                waits = Some(priority);
                break;
            }
            found.push((priority, at, id));
        }
        match waits {
            Some(priority) => from = priority + 1,
            None => break,
        }
    }
    Ok(found)
}

/// Grants one lease. From now on the job stands among the reclaimable, so nobody else finds it here (D2).
fn lease(
    tables: &mut Tables<'_>,
    id: i64,
    request: &Dequeue,
    policies: &Policies,
    now: DateTime<Utc>,
) -> Result<Job> {
    let Some(mut job) = tables.take(JobId::new(id))? else {
        return Err(StoreError::corrupt(format!("job {id} is in the index only")));
    };
    let policy = policies.effective(&job.queue);
    backend::lease(&mut job, request, &policy, now);
    tables.put(&job)?;
    Ok(job)
}
