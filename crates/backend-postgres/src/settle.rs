//! Applying verdicts.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use diesel_async::AsyncPgConnection;
use leasehold_core::{Epoch, Fate, Json, Receipt, RetryAfter, SettleOutcome, StoreError, Verdict, backend};
use leasehold_sql::micros;

use crate::error::Failure;
use crate::session::{Session, Told};
use crate::sql::Statements;
use crate::statement::Param;

/// How often a statement that the server has given up on is tried again.
const RACES: u32 = 10;

/// What came of a batch: one outcome for each item, and the queues in which something became leasable.
#[derive(Default)]
pub(crate) struct Settling {
    pub(crate) outcomes: Vec<SettleOutcome>,
    pub(crate) wake: Vec<String>,
}

/// Applies each verdict whose receipt is good (S1).
pub(crate) async fn settle(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    items: &[(Receipt, Verdict)],
) -> Result<Settling, Failure> {
    let firsts = firsts(items);
    for _ in 0..RACES {
        match settle_once(conn, sql, items, &firsts).await {
            Err(Failure::Again(_)) => {}
            settled => return settled,
        }
    }
    settle_once(conn, sql, items, &firsts).await
}

/// Applies verdicts, on whatever connection, by the smallest statement that will do.
pub(crate) async fn settle_once<S: Session>(
    session: &mut S,
    sql: &Statements,
    items: &[(Receipt, Verdict)],
    firsts: &[usize],
) -> Result<Settling, Failure> {
    if let Some((epoch, result)) = same(items) {
        return settle_same(session, sql, items, firsts, epoch, result).await;
    }
    if let Some(params) = completions(items, firsts) {
        let completed = session.completed(&sql.settle_done, params).await?;
        let places = completed.jobs.into_iter().filter_map(place);
        return Ok(outcomes(items, firsts, places.map(|place| (place, Fate::Completed)), completed.wake));
    }
    let told = session.told(&sql.settle, verdicts(items, firsts)).await?;
    let wake = told.iter().filter_map(|told| told.wake.clone()).collect();
    let fates = told.iter().filter_map(|told| Some((place(told.place)?, fate(told))));
    let fates = fates.map(|(place, fate)| Ok((place, fate?))).collect::<Result<Vec<_>, StoreError>>();
    Ok(outcomes(items, firsts, fates.map_err(|error| Failure::Other(error.into()))?, wake))
}

/// A place as the statements count, from 1 on, as a place here.
fn place(place: i64) -> Option<usize> {
    usize::try_from(place - 1).ok()
}

/// The places of the items whose receipt does not stand before them already (S11), by id: whoever locks several jobs locks
/// them in one order.
pub(crate) fn firsts(items: &[(Receipt, Verdict)]) -> Vec<usize> {
    let mut seen = HashMap::with_capacity(items.len());
    let is_first = |place: &usize| *seen.entry(items[*place].0).or_insert(*place) == *place;
    let mut firsts: Vec<usize> = (0..items.len()).filter(is_first).collect();
    firsts.sort_unstable_by_key(|place| items[*place].0);
    firsts
}

/// The epoch and the result of every item, if they are all the same.
fn same(items: &[(Receipt, Verdict)]) -> Option<(Epoch, &str)> {
    let first = match items.first()? {
        (receipt, Verdict::Done(result)) => (receipt.epoch, result.as_str()),
        _ => return None,
    };
    let is_same = |(receipt, verdict): &(Receipt, Verdict)| {
        receipt.epoch == first.0 && matches!(verdict, Verdict::Done(result) if result.as_str() == first.1)
    };
    items.iter().all(is_same).then_some(first)
}

/// Completes jobs with one and the same result. The answer names ids, which are made places here.
async fn settle_same<S: Session>(
    session: &mut S,
    sql: &Statements,
    items: &[(Receipt, Verdict)],
    firsts: &[usize],
    epoch: Epoch,
    result: &str,
) -> Result<Settling, Failure> {
    let mut ids = firsts.iter().map(|place| items[*place].0.job.get());
    let (text, ids) = match firsts.len() {
        1 => (&sql.settle_one, ids.next().into()),
        _ => (&sql.settle_same, ids.collect()),
    };
    let completed = session.completed(text, vec![ids, epoch.get().into(), result.into()]).await?;
    let place = |id: i64| firsts.binary_search_by_key(&id, |place| items[*place].0.job.get()).ok();
    let places = completed.jobs.into_iter().filter_map(place);
    Ok(outcomes(items, firsts, places.map(|place| (place, Fate::Completed)), completed.wake))
}

/// Puts the fates, which are of places in `firsts`, in the order of the items.
fn outcomes(
    items: &[(Receipt, Verdict)],
    firsts: &[usize],
    fates: impl IntoIterator<Item = (usize, Fate)>,
    wake: Vec<String>,
) -> Settling {
    let mut outcomes = vec![SettleOutcome::LeaseLost; items.len()]; // S2
    for (place, fate) in fates {
        if let Some(place) = firsts.get(place) {
            outcomes[*place] = backend::settled_outcome(items[*place].0, fate);
        }
    }
    Settling { outcomes, wake }
}

/// The arguments for `settle_done.sql`, if every verdict is Done.
fn completions<'a>(items: &'a [(Receipt, Verdict)], firsts: &[usize]) -> Option<Vec<Param<'a>>> {
    let results = firsts.iter().map(|place| match &items[*place].1 {
        Verdict::Done(result) => Some(result.as_str()),
        _ => None,
    });
    let results: Vec<&str> = results.collect::<Option<_>>()?;
    let mut params = receipts(items, firsts);
    params.push(results.into_iter().collect());
    Some(params)
}

/// The arguments for `settle.sql`.
fn verdicts<'a>(items: &'a [(Receipt, Verdict)], firsts: &[usize]) -> Vec<Param<'a>> {
    let parts: Vec<Parts<'a>> = firsts.iter().map(|place| parts(&items[*place].1)).collect();
    let mut params = receipts(items, firsts);
    params.extend([
        parts.iter().map(|parts| parts.document).collect(),
        Param::Smalls(Some(parts.iter().map(|parts| Some(parts.code)).collect())),
        parts.iter().map(|parts| parts.delay_us).collect(),
        parts.iter().map(|_| 2.0 * fastrand::f64() - 1.0).collect(), // S5: drawn anew for each item.
    ]);
    params
}

fn receipts<'a>(items: &[(Receipt, Verdict)], firsts: &[usize]) -> Vec<Param<'a>> {
    vec![
        firsts.iter().map(|place| items[*place].0.job.get()).collect(),
        firsts.iter().map(|place| items[*place].0.epoch.get()).collect(),
    ]
}

/// A verdict as `settle.sql` takes it.
struct Parts<'a> {
    code: i16,
    document: Option<&'a str>,
    delay_us: Option<i64>,
}

fn parts(verdict: &Verdict) -> Parts<'_> {
    let (code, document, delay_us) = match verdict {
        Verdict::Done(result) => (0, Some(result), None),
        Verdict::Retry { error, after: RetryAfter::Backoff } => (1, Some(error), None),
        Verdict::Retry { error, after: RetryAfter::Delay(delay) } => (1, Some(error), Some(micros(*delay))),
        Verdict::Snooze { after } => (2, None, Some(micros(*after))),
        Verdict::Dead { error } => (3, Some(error), None),
        Verdict::Discard { reason } => (4, Some(reason), None),
    };
    Parts { code, document: document.map(Json::as_str), delay_us }
}

fn fate(told: &Told) -> Result<Fate, StoreError> {
    let available_at = || -> DateTime<Utc> { told.available_at.unwrap_or_default() };
    match told.fate.as_str() {
        "completed" => Ok(Fate::Completed),
        "dead_letter" => Ok(Fate::DeadLettered),
        "discarded" => Ok(Fate::Discarded),
        "retrying" => Ok(Fate::Retrying { available_at: available_at() }),
        "snoozed" => Ok(Fate::Snoozed { available_at: available_at() }),
        other => Err(StoreError::corrupt(format!("settle answered {other:?}"))),
    }
}
