//! What decides when a queue is worth a look and why a job is not running: a few index probes, however long the queue.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, Utc};
use diesel::sql_types::BigInt;
use leasehold_core::{
    Explanation, JobId, NextAvailable, QueueName, QueuePrefix, QueueUsage, Queues, Record, backend,
};
use leasehold_sql::{Facts, Rules, after, beyond, explain_finished};

use crate::candidates::{BRANCHES, FIRST, read_heads};
use crate::error::Failure;
use crate::inspect;
use crate::limits::{each, heads, leased};
use crate::policy::{BucketRow, BucketSql, bucket, rules};
use crate::prefixes::{self, Soon};
use crate::session::Session;
use crate::statement::Param;

/// So many priorities of a queue are looked at one by one, and then more and more in one go.
const SINGLE: u32 = 16;
/// So many jobs are read in one go at most to find the first of each priority.
const MOST: usize = 1024;

/// The soonest time at which it is worth to look again (N1, N2).
pub(crate) async fn next_available_at(
    session: &mut Session<'_>,
    queues: &Queues,
) -> Result<Option<NextAvailable>, Failure> {
    let (now, mut rules) = rules(session).await?;
    let soonest = match queues {
        Queues::Named(names) => soonest(session, &mut rules, names.to_vec(), now).await?,
        Queues::Matching(prefix) => soonest_in(session, &mut rules, prefix, now).await?,
    };
    Ok(soonest.map(|at| NextAvailable::new(at, now)))
}

/// The soonest time over the queues of a prefix. Queues whose jobs are all for later can be many: the first of them nearly always decide.
async fn soonest_in(
    session: &mut Session<'_>,
    rules: &mut Rules,
    prefix: &QueuePrefix,
    now: DateTime<Utc>,
) -> Result<Option<DateTime<Utc>>, Failure> {
    let (mut from, to) = (prefix.as_str().to_owned(), beyond(prefix.as_str()));
    let Soon { queues: mut found, seen_to } = Soon::find(session, prefix).await?;
    let mut next = None;
    loop {
        let ready = prefixes::ready(session, &from, &to, BRANCHES).await?;
        let last = ready.last().filter(|_| ready.len() == BRANCHES).map(|last| after(last));
        found.extend(ready);
        let more = soonest(session, rules, valid(std::mem::take(&mut found)), now).await?;
        next = next.into_iter().chain(more).min();
        match last.filter(|last| *last > from && next.is_none_or(|next| next > now)) {
            Some(last) => from = last,
            None => break,
        }
    }
    if seen_to.is_none_or(|seen_to| next.is_some_and(|next| next <= seen_to)) {
        return Ok(next);
    }
    let all = prefixes::names(session, prefix.as_str(), &to, usize::MAX).await?;
    soonest(session, rules, valid(all), now).await
}

fn valid(names: impl IntoIterator<Item = String>) -> Vec<QueueName> {
    names.into_iter().filter_map(|name| QueueName::new(name).ok()).collect()
}

/// The soonest time over these queues. Not looked for any further once one has passed.
async fn soonest(
    session: &mut Session<'_>,
    rules: &mut Rules,
    names: Vec<QueueName>,
    now: DateTime<Utc>,
) -> Result<Option<DateTime<Utc>>, Failure> {
    let names: Vec<QueueName> = names.into_iter().filter(|name| !rules.of(name).paused).collect();
    let mut soonest = None;
    for some in names.chunks(BRANCHES) {
        let facts = facts(session, rules, some, now).await?;
        let next = some.iter().zip(&facts).filter_map(|(name, facts)| facts.next_look(rules.of(name)));
        soonest = soonest.into_iter().chain(next).min();
        if soonest.is_some_and(|soonest| soonest <= now) {
            break;
        }
    }
    Ok(soonest)
}

/// What the limits of one queue see.
pub(crate) async fn usage(session: &mut Session<'_>, queue: &QueueName) -> Result<QueueUsage, Failure> {
    let (now, mut rules) = rules(session).await?;
    let facts = facts(session, &mut rules, std::slice::from_ref(queue), now).await?;
    Ok(facts.first().map_or_else(QueueUsage::default, |facts| QueueUsage {
        leased: facts.leased.unsigned_abs(),
        next_token_at: facts.next_token_at(rules.of(queue)),
    }))
}

/// Why a job is not running (Y1 to Y5).
pub(crate) async fn explain(session: &mut Session<'_>, id: JobId) -> Result<Explanation, Failure> {
    let job = match inspect::get(session, id).await? {
        None => return Ok(Explanation::Unknown),
        Some(Record::Finished(job)) => return Ok(explain_finished(job)),
        Some(Record::Live(job)) => job,
    };
    let (now, mut rules) = rules(session).await?;
    if let Some(explanation) = backend::explain_alone(&job, rules.of(&job.queue), now) {
        return Ok(explanation);
    }
    let facts = facts(session, &mut rules, std::slice::from_ref(&job.queue), now).await?;
    Ok(facts.first().map_or(Explanation::Unknown, |facts| facts.explain(&job, rules.of(&job.queue))))
}

/// What is known of each of these queues.
async fn facts(
    session: &mut Session<'_>,
    rules: &mut Rules,
    names: &[QueueName],
    now: DateTime<Utc>,
) -> Result<Vec<Facts>, Failure> {
    let mut facts = vec![Facts { now, ..Facts::default() }; names.len()];
    for (place, leased) in leased(session, names).await? {
        let facts = &mut facts[place];
        (facts.leased, facts.first_leased) = (leased.count, leased.first_id);
        facts.first_lease_until = leased.first_until;
    }
    for (place, head) in heads(session, names).await? {
        let facts = &mut facts[place];
        (facts.first, facts.first_waits) = (Some(head.id), head.waits);
        facts.first_available_at = Some(head.available_at);
    }
    let live = facts.iter().any(|facts| facts.first.is_some());
    if live {
        for place in exhausted(session, names).await? {
            facts[place].has_exhausted = true;
        }
        levels(session, names, &mut facts).await?;
    }
    if names.iter().any(|name| rules.of(name).rate.is_some()) {
        let sql = session.sql;
        let (text, size) = sql.buckets_of.of(names.len());
        let mut params: Vec<Param<'_>> = names.iter().map(|name| name.as_str().into()).collect();
        params.resize(size, "".into());
        let rows: Vec<BucketRow> = session.rows::<BucketSql, _>(text, params).await?;
        let buckets: HashMap<&str, _> = rows.iter().map(|row| (&*row.0, bucket(row))).collect();
        for (name, facts) in names.iter().zip(&mut facts) {
            facts.bucket = buckets.get(name.as_str()).copied().flatten();
        }
    }
    Ok(facts)
}

/// Which of the queues have a job whose attempts are spent.
async fn exhausted(session: &mut Session<'_>, names: &[QueueName]) -> Result<Vec<usize>, Failure> {
    let sql = session.sql;
    let (text, params) = each(&sql.exhausted, names);
    let places: Vec<i64> = session.rows::<BigInt, _>(text, params).await?;
    let places = places.into_iter().filter_map(|place| usize::try_from(place).ok());
    Ok(places.filter(|place| *place < names.len()).collect())
}

/// The first job of each priority, from the highest.
async fn levels(session: &mut Session<'_>, names: &[QueueName], facts: &mut [Facts]) -> Result<(), Failure> {
    let places: HashMap<&str, usize> =
        names.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
    let mut walks: BTreeMap<&str, i64> = names.iter().map(|name| (name.as_str(), FIRST)).collect();
    for step in 0_u32.. {
        let rows = (1 << step.saturating_sub(SINGLE).min(10)).min(MOST / walks.len().max(1)).max(1);
        let branches: Vec<_> = walks.iter().map(|(name, beyond)| (*name, *beyond, rows)).collect();
        walks.clear();
        for head in read_heads(session, &branches).await? {
            let Some((name, place)) = places.get_key_value(&*head.queue) else {
                continue;
            };
            let facts = &mut facts[*place];
            let soonest = facts.next_available_at.into_iter().chain(Some(head.available_at)).min();
            facts.next_available_at = soonest;
            if head.available_at <= facts.now {
                facts.first_ready.get_or_insert(head.id);
            }
            // Whether it is worth to look is known then, and what is leased first.
            if step < SINGLE || facts.first_ready.is_none() {
                walks.insert(*name, head.place);
            }
        }
        if walks.is_empty() {
            break;
        }
    }
    Ok(())
}
