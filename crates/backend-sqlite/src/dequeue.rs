//! Leasing jobs.
//!
//! Whoever leases is the only one who writes, so a claim may look first and act afterwards: what it has seen is still so.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Double, Text};
use leasehold_core::{
    Dequeue, EffectivePolicy, Job, LeaseFor, QueueName, QueueOrder, QueuePrefix, Queues, RateLimit, time,
};
use leasehold_sql::{Bucket, Rules, Stored, StoredTime, Turns, after, beyond, readable};

use crate::error::Failure;
use crate::policy::rules;
use crate::row::{JobRow, JobSql};
use crate::session::Session;
use crate::statement::Param;

/// How many more queues are asked for than can be served: some may be paused or have reached their limits.
const SPARE_QUEUES: usize = 16;

/// A job that is to be leased.
struct Pick {
    id: i64,
    priority: i64,
    available_at: i64,
    queue: QueueName,
}

/// A queue from which something may be leased: how many jobs at most.
struct Open {
    queue: QueueName,
    quota: usize,
    fifo: bool,
}

/// Leases jobs: in one order over named queues, in turns over a prefix.
pub(crate) fn dequeue(
    session: &mut Session<'_>,
    turns: &Turns,
    request: &Dequeue,
) -> Result<Vec<Job>, Failure> {
    let mut rules = rules(session)?;
    let limit = request.limit.as_usize();
    let picks = match &request.queues {
        Queues::Named(names) => in_order(session, &mut rules, names, limit)?,
        Queues::Matching(prefix) => in_turns(session, &mut rules, turns, prefix, limit)?,
    };
    take_tokens(session, &mut rules, &picks)?;
    lease(session, &mut rules, request, &picks)
}

/// The first jobs of all the queues together (D6).
fn in_order(
    session: &mut Session<'_>,
    rules: &mut Rules,
    names: &[QueueName],
    limit: usize,
) -> Result<Vec<Pick>, Failure> {
    let mut picks = Vec::new();
    for name in names {
        if let Some(open) = open(session, rules, name, limit)? {
            picks.extend(pick(session, &open, open.quota)?);
        }
    }
    if names.len() > 1 {
        picks.sort_unstable_by_key(|pick| (Reverse(pick.priority), pick.available_at, pick.id));
        picks.truncate(limit); // D5
    }
    Ok(picks)
}

/// One job of each queue, then a second of each, and so on, from where the last call stopped (D11).
fn in_turns(
    session: &mut Session<'_>,
    rules: &mut Rules,
    turns: &Turns,
    prefix: &QueuePrefix,
    limit: usize,
) -> Result<Vec<Pick>, Failure> {
    let queues = next_queues(session, rules, turns.last(prefix), prefix, limit)?;
    // Every other queue gets one at least.
    let most = (limit + 1).saturating_sub(queues.len());
    let mut lanes = Vec::with_capacity(queues.len());
    for open in &queues {
        lanes.push(pick(session, open, open.quota.min(most))?.into_iter());
    }
    let mut picks = Vec::new();
    loop {
        let round: Vec<Pick> = lanes.iter_mut().filter_map(Iterator::next).collect();
        if round.is_empty() || picks.len() >= limit {
            break;
        }
        picks.extend(round);
    }
    picks.truncate(limit); // D5
    if let Some(last) = picks.last() {
        turns.served(prefix, last.queue.clone());
    }
    Ok(picks)
}

/// The queues that are to be served, at most `limit`: those after the last one by name, then those up to it.
fn next_queues(
    session: &mut Session<'_>,
    rules: &mut Rules,
    last: Option<QueueName>,
    prefix: &QueuePrefix,
    limit: usize,
) -> Result<Vec<Open>, Failure> {
    let middle = last.map_or_else(|| prefix.as_str().to_owned(), |last| after(last.as_str()));
    let mut queues = Vec::new();
    for (mut from, to) in
        [(middle.clone(), beyond(prefix.as_str())), (prefix.as_str().to_owned(), middle.clone())]
    {
        while queues.len() < limit {
            let page = limit - queues.len() + SPARE_QUEUES;
            let params =
                vec![from.as_str().into(), to.as_str().into(), session.now.into(), (page as i64).into()];
            let sql = session.sql;
            let names: Vec<Stored> = session.rows::<Text, _>(&sql.turns, params)?;
            for name in names.iter().filter_map(|name| QueueName::new(&**name).ok()) {
                if queues.len() < limit {
                    queues.extend(open(session, rules, &name, limit)?);
                }
            }
            // A name that nobody understands may sort after what it is marked as: never go back.
            match names.last().map(|name| after(name)).filter(|next| names.len() == page && *next > from) {
                Some(next) => from = next,
                None => break,
            }
        }
    }
    Ok(queues)
}

/// How many jobs of a queue may be leased now; `None` if none may (P1 to P5).
fn open(
    session: &mut Session<'_>,
    rules: &mut Rules,
    queue: &QueueName,
    limit: usize,
) -> Result<Option<Open>, Failure> {
    let policy = rules.of(queue);
    if policy.paused {
        return Ok(None);
    }
    let fifo = policy.order == QueueOrder::Fifo;
    let mut quota = limit;
    if let Some(most) = policy.concurrency_limit {
        let leased = leased(session, queue)?;
        quota = quota.min((most.get() as usize).saturating_sub(leased)); // P2
    }
    if let Some(rate) = policy.rate {
        let full_at = full_at(session, queue, rate)?;
        quota = quota.min(rate.tokens(full_at, session.now) as usize); // P3
        if let Some(full_at) = rate.corrected(full_at, session.now) {
            set_bucket(session, queue, rate, full_at)?; // P14
        }
    }
    if fifo {
        quota = quota.min(1); // P4
    }
    let open = Open { queue: queue.clone(), quota, fifo };
    // In turns, a queue that has nothing to give must not take the turn of another.
    let is_open = quota > 0 && (!fifo || !pick(session, &open, 1)?.is_empty()); // P5
    Ok(is_open.then_some(open))
}

fn leased(session: &mut Session<'_>, queue: &QueueName) -> Result<usize, Failure> {
    let sql = session.sql;
    let count = session.row::<BigInt, i64>(&sql.leased, vec![queue.as_str().into()])?;
    Ok(usize::try_from(count.unwrap_or_default()).unwrap_or_default())
}

/// When the bucket of a queue is full again. A changed rate starts with a full bucket.
fn full_at(
    session: &mut Session<'_>,
    queue: &QueueName,
    rate: RateLimit,
) -> Result<Option<DateTime<Utc>>, Failure> {
    type Row = (BigInt, Double, BigInt);
    let sql = session.sql;
    let row = session.row::<Row, (i64, f64, i64)>(&sql.bucket, vec![queue.as_str().into()])?;
    let bucket = row.map(|(full_at, rate_per_sec, rate_burst)| Bucket {
        full_at: full_at.or_epoch(),
        rate_per_sec,
        rate_burst,
    });
    Ok(bucket.and_then(|bucket| bucket.full_at(rate)))
}

/// The jobs of one queue that come first.
fn pick(session: &mut Session<'_>, open: &Open, limit: usize) -> Result<Vec<Pick>, Failure> {
    type Row = (BigInt, BigInt, BigInt);
    let sql = session.sql;
    let mut params = vec![open.queue.as_str().into(), session.now.into()];
    let rows: Vec<(i64, i64, i64)> = if open.fifo {
        session.rows::<Row, _>(&sql.head, params)?
    } else {
        params.push((limit as i64).into());
        session.rows::<Row, _>(&sql.pick, params)?
    };
    let pick = |(id, priority, available_at)| Pick { id, priority, available_at, queue: open.queue.clone() };
    Ok(rows.into_iter().map(pick).collect())
}

/// Takes a token for each lease in a queue with a rate limit (P3).
fn take_tokens(session: &mut Session<'_>, rules: &mut Rules, picks: &[Pick]) -> Result<(), Failure> {
    if rules.is_empty() {
        return Ok(());
    }
    let mut counts: BTreeMap<&QueueName, u32> = BTreeMap::new();
    picks.iter().for_each(|pick| *counts.entry(&pick.queue).or_default() += 1);
    for (queue, count) in counts {
        let EffectivePolicy { rate: Some(rate), .. } = *rules.of(queue) else {
            continue;
        };
        let full_at = rate.take(full_at(session, queue, rate)?, session.now, count);
        set_bucket(session, queue, rate, full_at)?;
    }
    Ok(())
}

fn set_bucket(
    session: &mut Session<'_>,
    queue: &QueueName,
    rate: RateLimit,
    full_at: DateTime<Utc>,
) -> Result<(), Failure> {
    let params: Vec<Param<'_>> =
        vec![queue.as_str().into(), full_at.into(), Some(rate.per_sec()).into(), rate.burst().into()];
    let sql = session.sql;
    session.count(&sql.set_bucket, params).map(drop)
}

/// Leases what was picked. Queues with a shorter `max_lease` get a statement of their own.
fn lease(
    session: &mut Session<'_>,
    rules: &mut Rules,
    request: &Dequeue,
    picks: &[Pick],
) -> Result<Vec<Job>, Failure> {
    let mut by_length: BTreeMap<LeaseFor, Vec<i64>> = BTreeMap::new();
    for pick in picks {
        let length = rules.of(&pick.queue).lease_for(request.lease_for); // P6
        by_length.entry(length).or_default().push(pick.id);
    }
    let mut rows: Vec<JobRow> = Vec::with_capacity(picks.len());
    for (length, ids) in by_length {
        let until = time::later(session.now, length.get()); // D7
        let params =
            vec![ids.into_iter().collect(), until.into(), request.worker.as_str().into(), session.now.into()];
        let sql = session.sql;
        rows.extend(session.rows::<JobSql, JobRow>(&sql.lease, params)?);
    }
    let places: HashMap<i64, usize> =
        picks.iter().enumerate().map(|(place, pick)| (pick.id, place)).collect();
    rows.sort_unstable_by_key(|row| places.get(&row.id).copied()); // D12
    Ok(readable(rows))
}
