//! Applying verdicts.

use std::collections::{HashMap, HashSet};

use diesel::sql_types::{BigInt, Datetime, Integer, Nullable, Text};
use leasehold_core::{Epoch, Fate, Json, Receipt, RetryAfter, SettleOutcome, Verdict, backend, time};
use leasehold_sql::{Rules, Stored};

use crate::endings::{End, Endings, Locked, Requeue, as_locked, lease_ended};
use crate::error::Failure;
use crate::policy::rules;
use crate::row::Time;
use crate::session::Session;

/// Applies each verdict whose receipt is good (S1). Outside a user's transaction nothing waits for the lock of another (S14).
pub(crate) async fn settle(
    session: &mut Session<'_>,
    items: &[(Receipt, Verdict)],
) -> Result<Vec<SettleOutcome>, Failure> {
    items.iter().try_for_each(|(_, verdict)| session.packet.check_verdict(verdict))?;
    let is_complete = match same(items) {
        Some((_, result)) if items.len() > session.packet.ids_beside(result.len()) => false,
        Some((epoch, result)) => complete(session, items, epoch, result).await?,
        None => false,
    };
    if is_complete {
        let completed =
            |(receipt, _): &(Receipt, Verdict)| backend::settled_outcome(*receipt, Fate::Completed);
        return Ok(items.iter().map(completed).collect());
    }
    settle_each(session, items).await
}

/// The epoch and the result of every item, if they are all the same and no job stands twice: so it is nearly always.
fn same(items: &[(Receipt, Verdict)]) -> Option<(Epoch, &str)> {
    let first = match items.first()? {
        (receipt, Verdict::Done(result)) => (receipt.epoch, result.as_str()),
        _ => return None,
    };
    let is_same = |(receipt, verdict): &(Receipt, Verdict)| {
        receipt.epoch == first.0 && matches!(verdict, Verdict::Done(result) if result.as_str() == first.1)
    };
    let mut seen = HashSet::with_capacity(items.len());
    let is_whole = items.iter().all(|item| is_same(item) && seen.insert(item.0.job));
    is_whole.then_some(first)
}

/// Completes all of the jobs in two statements, or none: if a receipt is stale, a job is locked, an id is taken, or somebody has set a
/// policy.
async fn complete(
    session: &mut Session<'_>,
    items: &[(Receipt, Verdict)],
    epoch: Epoch,
    result: &str,
) -> Result<bool, Failure> {
    let mut ids: Vec<i64> = items.iter().map(|(receipt, _)| receipt.job.get()).collect();
    ids.sort_unstable();
    let sql = session.sql;
    let complete = if session.is_users() { &sql.complete } else { &sql.complete_free };
    session.begin().await?;
    let result = result.to_owned();
    let completing = session.count_listed(complete, vec![result.into()], &ids, vec![epoch.get().into()]);
    let written = match completing.await {
        Err(Failure::Taken(_)) => 0, // C7
        written => written?,
    };
    if written == ids.len() as u64 {
        let removed =
            session.count_listed(&sql.completed, Vec::new(), &ids, vec![epoch.get().into()]).await?;
        as_locked(removed, ids.len())?;
        session.commit().await?;
        return Ok(true);
    }
    session.roll_back().await?;
    Ok(false)
}

type Held = (i64, i64, i64, Stored, i32, i32);
type Seen = (BigInt, BigInt, Nullable<Datetime>, Text);
type SeenRow = (i64, i64, Option<Time>, Stored);

async fn settle_each(
    session: &mut Session<'_>,
    items: &[(Receipt, Verdict)],
) -> Result<Vec<SettleOutcome>, Failure> {
    type Row = (BigInt, BigInt, BigInt, Text, Integer, Integer);
    let mut ids: Vec<i64> = items.iter().map(|(receipt, _)| receipt.job.get()).collect();
    ids.sort_unstable();
    ids.dedup();
    let sql = session.sql;
    let statement = if session.is_users() { &sql.held } else { &sql.held_free };
    session.begin().await?;
    let held: Vec<Held> = session.listed::<Row, _>(statement, Vec::new(), &ids, Vec::new()).await?;
    ids.retain(|id| held.binary_search_by_key(id, |held| held.0).is_err());
    let pending = pending(session, &ids).await?;
    let (now, mut rules) = rules(session).await?;
    let held = held.into_iter().filter(|held| held.2 != 0);
    let mut held: HashMap<(i64, i64), Held> = held.map(|held| ((held.0, held.1), held)).collect();
    let mut endings = Endings::default();
    let mut outcomes = Vec::with_capacity(items.len());
    for (receipt, verdict) in items {
        // An applied verdict makes the receipt stale (S11).
        let Some(job) = held.remove(&(receipt.job.get(), receipt.epoch.get())) else {
            let is_pending = pending.contains(&(receipt.job.get(), receipt.epoch.get()));
            outcomes.push(if is_pending { SettleOutcome::Pending } else { SettleOutcome::LeaseLost }); // S14, S2
            continue;
        };
        lease_ended(session, &mut rules, &job.3);
        let fate = apply(&mut endings, &mut rules, &job, verdict, now);
        let back_at = match fate {
            Fate::Retrying { available_at } | Fate::Snoozed { available_at } => Some(available_at),
            _ => None,
        };
        if back_at.is_some_and(|at| at <= now) {
            session.wake(&job.3);
        }
        outcomes.push(backend::settled_outcome(*receipt, fate));
    }
    endings.write(session, now).await?;
    session.commit().await?;
    Ok(outcomes)
}

/// The good receipts of jobs that were not found free: another transaction has them.
async fn pending(session: &mut Session<'_>, ids: &[i64]) -> Result<HashSet<(i64, i64)>, Failure> {
    let sql = session.sql;
    let seen = session.listed::<Seen, SeenRow>(&sql.seen, Vec::new(), ids, Vec::new()).await?;
    let leased = seen.into_iter().filter(|(_, _, until, _)| until.is_some());
    Ok(leased.map(|(id, epoch, ..)| (id, epoch)).collect())
}

fn apply<'a>(
    endings: &mut Endings<'a>,
    rules: &mut Rules,
    job: &Held,
    verdict: &'a Verdict,
    now: chrono::DateTime<chrono::Utc>,
) -> Fate {
    let (id, epoch, _, queue, attempts, max_attempts) = job;
    let held = Locked { id: *id, epoch: *epoch, is_leased: true };
    let document = document(verdict).map(Json::as_str);
    match verdict {
        Verdict::Done(_) => {
            endings.finish(rules, held, queue, End::completed(document)); // S3
            Fate::Completed
        }
        Verdict::Discard { .. } => {
            endings.finish(rules, held, queue, End::discarded(document)); // S9
            Fate::Discarded
        }
        Verdict::Dead { .. } => {
            endings.finish(rules, held, queue, End::dead(document)); // S8
            Fate::DeadLettered
        }
        Verdict::Retry { .. } if attempts >= max_attempts => {
            endings.finish(rules, held, queue, End::dead(document)); // S6
            Fate::DeadLettered
        }
        Verdict::Retry { after, .. } => {
            let delay = match after {
                RetryAfter::Delay(delay) => *delay, // S4
                RetryAfter::Backoff => {
                    let spent = u32::try_from(*attempts).unwrap_or_default();
                    rules.of_stored(queue).backoff.delay(spent, fastrand::f64()) // S5
                }
            };
            let available_at = time::later(now, delay.get());
            let attempts = i64::from(*attempts);
            endings.requeue(held, Requeue { attempts, error: document, available_at, raise: false });
            Fate::Retrying { available_at }
        }
        Verdict::Snooze { after } => {
            let available_at = time::later(now, after.get());
            let attempts = i64::from((attempts - 1).max(0)); // S7
            endings.requeue(held, Requeue { attempts, error: None, available_at, raise: false });
            Fate::Snoozed { available_at }
        }
    }
}

fn document(verdict: &Verdict) -> Option<&Json> {
    match verdict {
        Verdict::Done(document)
        | Verdict::Retry { error: document, .. }
        | Verdict::Dead { error: document }
        | Verdict::Discard { reason: document } => Some(document),
        Verdict::Snooze { .. } => None,
    }
}
