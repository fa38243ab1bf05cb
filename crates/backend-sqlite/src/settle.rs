//! Applying verdicts.

use std::collections::{BTreeSet, HashSet};

use diesel::sql_types::{BigInt, Text};
use leasehold_core::{
    Fate, FinalStatus, Json, QueueOrder, Receipt, RetryAfter, SettleOutcome, Verdict, backend, time,
};
use leasehold_sql::{Rules, Stored};

use crate::error::Failure;
use crate::policy::rules;
use crate::room::make_room;
use crate::session::Session;
use crate::statement::Param;

/// Applies each verdict whose receipt is good (S1).
pub(crate) fn settle(
    session: &mut Session<'_>,
    items: &[(Receipt, Verdict)],
) -> Result<Vec<SettleOutcome>, Failure> {
    let mut rules = rules(session)?;
    if items.len() > 1 && items.iter().all(|(_, verdict)| matches!(verdict, Verdict::Done(_))) {
        return settle_done(session, &mut rules, items);
    }
    items.iter().map(|(receipt, verdict)| settle_one(session, &mut rules, *receipt, verdict)).collect()
}

/// Completes a batch in two statements, whatever its size.
fn settle_done(
    session: &mut Session<'_>,
    rules: &mut Rules,
    items: &[(Receipt, Verdict)],
) -> Result<Vec<SettleOutcome>, Failure> {
    let sql = session.sql;
    let params = vec![completions(items), session.now.into()];
    let mut done = session.rows::<(BigInt, BigInt, Text), _>(&sql.settle_done, params.clone());
    if matches!(done, Err(Failure::Taken(_))) {
        let held = held(session, items)?;
        make_room(session, &held)?; // C7
        done = session.rows::<(BigInt, BigInt, Text), _>(&sql.settle_done, params);
    }
    let done: Vec<(i64, i64, Stored)> = done?;
    session.count(&sql.remove, vec![done.iter().map(|(id, ..)| *id).collect()])?;
    for queue in done.iter().map(|(.., queue)| &**queue).collect::<BTreeSet<_>>() {
        lease_ended(session, rules, queue);
        if !rules.of_stored(queue).archive.keeps(FinalStatus::Completed) {
            let gone = done.iter().filter(|(.., other)| &**other == queue).map(|(id, ..)| *id);
            session.count(&sql.forget, vec![gone.collect()])?; // P7
        }
    }
    let mut good: HashSet<(i64, i64)> = done.into_iter().map(|(id, epoch, _)| (id, epoch)).collect();
    let outcome = |(receipt, _): &(Receipt, Verdict)| match good.remove(&key(receipt)) {
        true => backend::settled_outcome(*receipt, Fate::Completed),
        false => SettleOutcome::LeaseLost, // S2, S11
    };
    Ok(items.iter().map(outcome).collect())
}

/// The jobs of good receipts.
fn held(session: &mut Session<'_>, items: &[(Receipt, Verdict)]) -> Result<Vec<i64>, Failure> {
    let sql = session.sql;
    let mut held = Vec::new();
    for (id, epoch) in items.iter().map(|(receipt, _)| key(receipt)) {
        let row = session
            .row::<(Text, BigInt, BigInt), (Stored, i64, i64)>(&sql.held, vec![id.into(), epoch.into()])?;
        held.extend(row.map(|_| id));
    }
    Ok(held)
}

/// The items as `settle_done.sql` takes them. Of those with one receipt only the first counts (S11).
fn completions(items: &[(Receipt, Verdict)]) -> Param<'static> {
    let mut seen = HashSet::with_capacity(items.len());
    let mut array = String::from("[");
    for (receipt, verdict) in items.iter().filter(|(receipt, _)| seen.insert(*receipt)) {
        let result = verdict_document(verdict).map_or("null", Json::as_str);
        let separator = if array.len() > 1 { "," } else { "" };
        let (id, epoch) = key(receipt);
        array.push_str(&format!("{separator}[{id},{epoch},{}]", serde_json::Value::from(result)));
    }
    array.push(']');
    array.into()
}

fn key(receipt: &Receipt) -> (i64, i64) {
    (receipt.job.get(), receipt.epoch.get())
}

fn settle_one(
    session: &mut Session<'_>,
    rules: &mut Rules,
    receipt: Receipt,
    verdict: &Verdict,
) -> Result<SettleOutcome, Failure> {
    let (id, epoch) = key(&receipt);
    let sql = session.sql;
    let held = session.row::<(Text, BigInt, BigInt), _>(&sql.held, vec![id.into(), epoch.into()])?;
    let Some((queue, attempts, max_attempts)): Option<(Stored, i64, i64)> = held else {
        return Ok(SettleOutcome::LeaseLost); // S2
    };
    lease_ended(session, rules, &queue);
    let document = verdict_document(verdict).map(Json::as_str);
    let fate = match verdict {
        Verdict::Done(_) => {
            finish(session, rules, id, &queue, &End::completed(document))?; // S3
            Fate::Completed
        }
        Verdict::Discard { .. } => {
            finish(session, rules, id, &queue, &End::discarded(document))?; // S9
            Fate::Discarded
        }
        Verdict::Dead { .. } => {
            finish(session, rules, id, &queue, &End::dead(document))?; // S8
            Fate::DeadLettered
        }
        Verdict::Retry { .. } if attempts >= max_attempts => {
            finish(session, rules, id, &queue, &End::dead(document))?; // S6
            Fate::DeadLettered
        }
        Verdict::Retry { after, .. } => {
            let delay = match after {
                RetryAfter::Delay(delay) => *delay, // S4
                RetryAfter::Backoff => {
                    let spent = u32::try_from(attempts).unwrap_or_default();
                    rules.of_stored(&queue).backoff.delay(spent, fastrand::f64()) // S5
                }
            };
            let available_at = time::later(session.now, delay.get());
            let back = Requeue { attempts, error: document, available_at, raise: false };
            requeue(session, id, &queue, &back)?;
            Fate::Retrying { available_at }
        }
        Verdict::Snooze { after } => {
            let available_at = time::later(session.now, after.get());
            let attempts = (attempts - 1).max(0); // S7
            requeue(session, id, &queue, &Requeue { attempts, error: None, available_at, raise: false })?;
            Fate::Snoozed { available_at }
        }
    };
    Ok(backend::settled_outcome(receipt, fate))
}

fn verdict_document(verdict: &Verdict) -> Option<&Json> {
    match verdict {
        Verdict::Done(document)
        | Verdict::Retry { error: document, .. }
        | Verdict::Dead { error: document }
        | Verdict::Discard { reason: document } => Some(document),
        Verdict::Snooze { .. } => None,
    }
}

/// How a job ends.
pub(crate) struct End<'a> {
    pub(crate) status: FinalStatus,
    pub(crate) result: Option<&'a str>,
    /// Its last error from now on, if that is another.
    pub(crate) error: Option<&'a str>,
    /// Whether it is taken from its holder, if it has one.
    pub(crate) raise: bool,
}

impl<'a> End<'a> {
    fn completed(result: Option<&'a str>) -> Self {
        Self { status: FinalStatus::Completed, result, error: None, raise: false }
    }

    pub(crate) fn discarded(reason: Option<&'a str>) -> Self {
        Self { status: FinalStatus::Discarded, result: reason, error: None, raise: false }
    }

    pub(crate) fn dead(error: Option<&'a str>) -> Self {
        Self { status: FinalStatus::DeadLetter, result: None, error, raise: false }
    }
}

/// Moves a job to the history, if its queue's archive keeps it (S12, P7).
pub(crate) fn finish(
    session: &mut Session<'_>,
    rules: &mut Rules,
    id: i64,
    queue: &str,
    end: &End<'_>,
) -> Result<(), Failure> {
    let sql = session.sql;
    if rules.of_stored(queue).archive.keeps(end.status) {
        let params = vec![
            id.into(),
            end.status.as_str().into(),
            end.result.into(),
            end.error.into(),
            i64::from(end.raise).into(),
            session.now.into(),
        ];
        if let Err(failure) = session.count(&sql.finish, params.clone()) {
            let Failure::Taken(_) = failure else { return Err(failure) };
            make_room(session, &[id])?; // C7
            session.count(&sql.finish, params)?;
        }
    }
    session.count(&sql.remove, vec![std::iter::once(id).collect()])?;
    Ok(())
}

/// How a job that was leased goes back into its queue.
pub(crate) struct Requeue<'a> {
    pub(crate) attempts: i64,
    pub(crate) error: Option<&'a str>,
    pub(crate) available_at: chrono::DateTime<chrono::Utc>,
    /// Whether it is taken from its holder.
    pub(crate) raise: bool,
}

pub(crate) fn requeue(
    session: &mut Session<'_>,
    id: i64,
    queue: &str,
    back: &Requeue<'_>,
) -> Result<(), Failure> {
    let params = vec![
        id.into(),
        back.attempts.into(),
        back.error.into(),
        back.available_at.into(),
        i64::from(back.raise).into(),
        session.now.into(),
    ];
    let sql = session.sql;
    session.count(&sql.requeue, params)?;
    if back.available_at <= session.now {
        session.wake(queue);
    }
    Ok(())
}

/// In a queue with limits the end of a lease lets the next job be leased.
pub(crate) fn lease_ended(session: &mut Session<'_>, rules: &mut Rules, queue: &str) {
    let policy = rules.of_stored(queue);
    if policy.concurrency_limit.is_some() || policy.order == QueueOrder::Fifo {
        session.wake(queue);
    }
}
