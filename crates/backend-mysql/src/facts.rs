//! What decides when a queue is worth a look and why a job is not running: a few index probes, however long the queue.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Text};
use leasehold_core::{Explanation, JobId, NextAvailable, QueueName, QueueUsage, Queues, Record, backend};
use leasehold_sql::{Facts, Rules, Stored, beyond, explain_finished};

use crate::candidates::{BRANCHES, FIRST, read_heads};
use crate::error::Failure;
use crate::inspect;
use crate::limits::{each, heads, leased};
use crate::policy::{BucketRow, BucketSql, bucket, rules};
use crate::session::Session;

/// Beyond every number of queues.
const ALL: i64 = i64::MAX;

/// The soonest time at which it is worth to look again (N1, N2).
pub(crate) async fn next_available_at(
    session: &mut Session<'_>,
    queues: &Queues,
) -> Result<Option<NextAvailable>, Failure> {
    let names = live(session, queues).await?;
    let (now, mut rules) = rules(session).await?;
    let names: Vec<QueueName> = names.into_iter().filter(|name| !rules.of(name).paused).collect();
    let mut soonest = None;
    for some in names.chunks(BRANCHES) {
        let facts = facts(session, &mut rules, some, now).await?;
        let next = some.iter().zip(&facts).filter_map(|(name, facts)| facts.next_look(rules.of(name)));
        soonest = soonest.into_iter().chain(next).min();
    }
    Ok(soonest.map(|at| NextAvailable::new(at, now)))
}

/// The queues asked for that may have live jobs.
async fn live(session: &mut Session<'_>, queues: &Queues) -> Result<Vec<QueueName>, Failure> {
    match queues {
        Queues::Named(names) => Ok(names.to_vec()),
        Queues::Matching(prefix) => {
            let sql = session.sql;
            let params = vec![prefix.as_str().into(), beyond(prefix.as_str()).into(), ALL.into()];
            let names: Vec<Stored> = session.rows::<Text, _>(&sql.queues, params).await?;
            Ok(names.iter().filter_map(|name| QueueName::new(&**name).ok()).collect())
        }
    }
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
        let rows: Vec<BucketRow> = session.rows::<BucketSql, _>(&sql.buckets, Vec::new()).await?;
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
    let mut walks: Vec<(&str, i64, usize)> = names.iter().map(|name| (name.as_str(), FIRST, 1)).collect();
    while !walks.is_empty() {
        let mut next = Vec::new();
        for head in read_heads(session, &walks).await? {
            let Some((name, place)) = places.get_key_value(&*head.queue) else {
                continue;
            };
            let facts = &mut facts[*place];
            let soonest = facts.next_available_at.into_iter().chain(Some(head.available_at)).min();
            facts.next_available_at = soonest;
            if head.available_at <= facts.now {
                facts.first_ready.get_or_insert(head.id);
            }
            next.push((*name, head.place, 1));
        }
        walks = next;
    }
    Ok(())
}
