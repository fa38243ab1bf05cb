//! Finished jobs: redriven, pruned.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Datetime, Nullable, Text};
use leasehold_core::{JobId, Prune, PruneAge, QueueName, Queues, Redrive, Redriven, time};
use leasehold_sql::{Stored, beyond};

use crate::enqueue::all_names;
use crate::error::Failure;
use crate::policy::rules;
use crate::room::make_room;
use crate::row::Time;
use crate::selection::{ids, queues, statuses, twice};
use crate::session::Session;
use crate::statement::Param;

/// How many dead letters are looked at in one go, at least.
const PAGE: usize = 100;

/// Puts dead letters back into their queues, by id from the smallest (X1).
pub(crate) async fn redrive(session: &mut Session<'_>, request: &Redrive) -> Result<Redriven, Failure> {
    let (now, _) = rules(session).await?;
    let limit = request.limit.as_usize();
    let mut answer = Redriven::default();
    let mut after = 0;
    session.take_names(&all_names()).await?;
    session.begin().await?;
    while answer.jobs.len() < limit {
        let (dead, last) = dead(session, request, after, limit.max(PAGE)).await?;
        let Some(last) = last else {
            break;
        };
        after = last;
        redrive_page(session, dead, limit, now, &mut answer).await?;
    }
    session.commit().await?;
    Ok(answer)
}

type Dead = (i64, Stored, Option<Stored>);

/// One page of dead letters, locked, and the last id that was looked at.
async fn dead(
    session: &mut Session<'_>,
    request: &Redrive,
    after: i64,
    page: usize,
) -> Result<(Vec<Dead>, Option<i64>), Failure> {
    let sql = session.sql;
    let mut params = queues(&request.queues);
    params.extend(twice(request.kind.as_ref().map(|kind| kind.as_str()).into()));
    params.extend(twice(ids(request.ids.as_deref())));
    params.extend([after.into(), page.into()]);
    let text = sql.dead.of(&request.queues);
    let rows: Vec<Dead> = session.rows::<(BigInt, Text, Nullable<Text>), _>(text, params).await?;
    let all: Vec<i64> = rows.iter().map(|(id, ..)| *id).collect();
    let locked: Vec<i64> = session.listed::<BigInt, _>(&sql.lock_dead, Vec::new(), &all, Vec::new()).await?;
    let locked: HashSet<i64> = locked.into_iter().collect();
    Ok((rows.into_iter().filter(|(id, ..)| locked.contains(id)).collect(), all.last().copied()))
}

/// Those without a key go back together; each of the others may find its key taken (X4).
async fn redrive_page(
    session: &mut Session<'_>,
    dead: Vec<Dead>,
    limit: usize,
    now: DateTime<Utc>,
    answer: &mut Redriven,
) -> Result<(), Failure> {
    let mut plain = Vec::new();
    for (id, queue, key) in dead {
        if answer.jobs.len() + plain.len() == limit {
            break;
        }
        if key.is_none() {
            plain.push(id);
            session.wake(&queue);
            continue;
        }
        put_back(session, &mut plain, now, answer).await?;
        match put_back(session, &mut vec![id], now, answer).await {
            Ok(()) => session.wake(&queue),
            Err(Failure::Taken(_)) if answer.conflicts.len() < limit => answer.conflicts.push(JobId::new(id)),
            Err(Failure::Taken(_)) => {}
            Err(failure) => return Err(failure),
        }
    }
    put_back(session, &mut plain, now, answer).await
}

async fn put_back(
    session: &mut Session<'_>,
    dead: &mut Vec<i64>,
    now: DateTime<Utc>,
    answer: &mut Redriven,
) -> Result<(), Failure> {
    let sql = session.sql;
    let mut dead = std::mem::take(dead);
    let params = || vec![now.into(), now.into()];
    let moved = match session.count_listed(&sql.redrive, params(), &dead, Vec::new()).await {
        Err(Failure::Taken(error)) => {
            let live = live(session, &dead).await?;
            if live.is_empty() {
                return Err(Failure::Taken(error));
            }
            // With another id it comes last.
            make_room(session, &live).await?; // C7
            dead.retain(|id| !live.contains(id));
            session.count_listed(&sql.redrive, params(), &dead, Vec::new()).await?
        }
        moved => moved?,
    };
    if moved != dead.len() as u64 {
        return Err(Failure::Other("a locked dead letter was not moved".into()));
    }
    session.count_listed(&sql.forget, Vec::new(), &dead, Vec::new()).await?;
    answer.jobs.extend(dead.into_iter().map(JobId::new));
    Ok(())
}

/// Those of these ids that live jobs have.
async fn live(session: &mut Session<'_>, ids: &[i64]) -> Result<Vec<i64>, Failure> {
    type Row = (BigInt, BigInt, Nullable<Datetime>, Text);
    let sql = session.sql;
    let live: Vec<(i64, i64, Option<Time>, Stored)> =
        session.listed::<Row, _>(&sql.seen, Vec::new(), ids, Vec::new()).await?;
    Ok(live.into_iter().map(|(id, ..)| id).collect())
}

/// Forgets finished jobs, queue by queue, then passed idempotency keys; says how many.
pub(crate) async fn prune(session: &mut Session<'_>, request: &Prune) -> Result<u64, Failure> {
    let (now, mut rules) = rules(session).await?;
    let mut left = request.limit.as_usize();
    for queue in finished_queues(session, &request.queues).await? {
        let age = match request.age {
            PruneAge::OlderThan(age) => Some(age),
            PruneAge::Retention => rules.of_stored(&queue).retention, // U3
        };
        let Some(age) = age.filter(|_| left > 0) else {
            continue;
        };
        left -= prune_one(session, request, &queue, time::earlier(now, age.get()), left).await?.min(left);
    }
    if request.forgets_keys() && left > 0 {
        left -= forget_keys(session, left).await?.min(left); // U4
    }
    Ok((request.limit.as_usize() - left) as u64)
}

/// Forgets up to `limit` keys whose retention has passed, but for those that another transaction has locked.
async fn forget_keys(session: &mut Session<'_>, limit: usize) -> Result<usize, Failure> {
    let sql = session.sql;
    session.begin().await?;
    let keys: Vec<Stored> = session.rows::<Text, _>(&sql.passed_keys, vec![limit.into()]).await?;
    let mut forgotten = 0;
    if let Some(last) = keys.last() {
        let (text, size) = sql.forget_keys.of(keys.len());
        let rest = std::iter::repeat_n(last, size - keys.len());
        let params = keys.iter().chain(rest).map(|key| Param::from(&**key)).collect();
        forgotten = session.count(text, params).await?;
    }
    session.commit().await?;
    Ok(usize::try_from(forgotten).unwrap_or_default())
}

async fn prune_one(
    session: &mut Session<'_>,
    request: &Prune,
    queue: &str,
    by: DateTime<Utc>,
    limit: usize,
) -> Result<usize, Failure> {
    let sql = session.sql;
    let mut forgotten = 0;
    // Others may forget the same ones meanwhile.
    loop {
        let page = limit - forgotten;
        let mut params = Vec::new();
        let text = match request.ids.as_deref() {
            Some(_) => {
                params.push(ids(request.ids.as_deref()));
                &sql.old_of
            }
            None => &sql.old,
        };
        params.extend([queue.into(), by.into()]);
        params.extend(twice(statuses(request.statuses.as_deref())));
        params.push(page.into());
        let old: Vec<i64> = session.rows::<BigInt, _>(text, params).await?;
        let count = session.count_listed(&sql.forget, Vec::new(), &old, Vec::new()).await?;
        forgotten += usize::try_from(count).unwrap_or_default();
        if old.len() < page || forgotten >= limit {
            return Ok(forgotten);
        }
    }
}

/// The queues asked for that may have finished jobs.
async fn finished_queues(session: &mut Session<'_>, queues: &Queues) -> Result<Vec<String>, Failure> {
    match queues {
        Queues::Named(names) => Ok(names.iter().map(QueueName::to_string).collect()),
        Queues::Matching(prefix) => {
            let sql = session.sql;
            let params = vec![prefix.as_str().into(), beyond(prefix.as_str()).into()];
            let names: Vec<Stored> = session.rows::<Text, _>(&sql.finished_queues, params).await?;
            Ok(names.iter().map(|name| name.to_string()).collect())
        }
    }
}
