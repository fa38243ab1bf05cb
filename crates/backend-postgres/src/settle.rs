//! Applying verdicts.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use diesel::sql_types::{Array, BigInt, Nullable, Text};
use diesel_async::AsyncPgConnection;
use leasehold_core::{
    Epoch, Fate, Json, Receipt, Result as StoreResult, RetryAfter, SettleOutcome, Settled, StoreError,
    Verdict, backend,
};
use leasehold_sql::micros;

use crate::Shared;
use crate::chunk::{self, Chunks};
use crate::error::{Effect, Failure};
use crate::events::News;
use crate::room::with_room;
use crate::session::{Session, Told};
use crate::sql::Statements;
use crate::statement::{Param, Statement};

/// How often a statement that the server has given up on is tried again.
const RACES: u32 = 10;
/// More than the numbers and lengths of one item take in a statement.
const FIXED_BYTES: usize = 128;

/// What came of a batch: one outcome for each item, and the queues in which something became leasable.
#[derive(Default)]
pub(crate) struct Settling {
    pub(crate) outcomes: Vec<SettleOutcome>,
    pub(crate) wake: Vec<String>,
}

impl Shared {
    /// Applies verdicts, and tells of it.
    pub(crate) async fn settle(&self, items: &[(Receipt, Verdict)]) -> StoreResult<Vec<SettleOutcome>> {
        let receipts = items.iter().map(|(receipt, _)| receipt);
        let (settling, places) = if is_large(items, self.chunks) {
            let (mut conn, places) = self.connection_apart_with_places("settle", receipts.clone()).await?;
            let answer =
                with_room!(&mut conn, &self.sql, settle_in_chunks(&mut conn, &self.sql, items, self.chunks));
            (conn.judge(answer)?, places)
        } else {
            let (mut conn, places) = self.connection_with_places("settle", receipts.clone()).await?;
            let answer = with_room!(&mut conn, &self.sql, settle(&mut conn, &self.sql, items));
            (conn.judge(answer, Effect::Write)?, places)
        };
        self.tell(|| News::settled(receipts.zip(&settling.outcomes), &places));
        self.wake(settling.wake);
        Ok(settling.outcomes)
    }
}

/// Applies each verdict whose receipt is good (S1), by the smallest statement that will do. None of them waits for the lock of another
/// transaction (S14).
async fn settle(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    items: &[(Receipt, Verdict)],
) -> Result<Settling, Failure> {
    let firsts = firsts(items);
    for _ in 0..RACES {
        match settle_once(conn, sql, items, &firsts).await {
            Err(Failure::Again(_) | Failure::OldSnapshot(_)) => {}
            settled => return settled.map(|endings| endings.settling(items)),
        }
    }
    settle_once(conn, sql, items, &firsts).await.map(|endings| endings.settling(items))
}

/// Whether the items are too large for one statement. One result for all of them is sent once.
fn is_large(items: &[(Receipt, Verdict)], chunks: Chunks) -> bool {
    items.len() > 1 && !chunks.is_one(items.iter().map(bytes)) && same(items).is_none()
}

/// How many bytes of a statement an item takes at most.
fn bytes((_, verdict): &(Receipt, Verdict)) -> usize {
    parts(verdict).document.map_or(0, str::len) + FIXED_BYTES
}

/// Applies verdicts in several statements, in a transaction of the store's: all that are good, or none.
async fn settle_in_chunks(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    items: &[(Receipt, Verdict)],
    chunks: Chunks,
) -> Result<Settling, Failure> {
    let firsts = firsts(items);
    let mut races = 0;
    loop {
        chunk::begin(conn).await?;
        let settled =
            settle_each(conn, sql, items, &chunks.split(&firsts, |place| bytes(&items[place]))).await;
        match chunk::end(conn, settled).await {
            Err(Failure::Again(_) | Failure::OldSnapshot(_)) if races < chunk::RACES => races += 1,
            ended => return ended.map(|endings| endings.settling(items)),
        }
    }
}

async fn settle_each(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    items: &[(Receipt, Verdict)],
    chunks: &[&[usize]],
) -> Result<Endings, Failure> {
    let mut all = Endings::default();
    for chunk in chunks {
        let endings = settle_once(conn, sql, items, chunk).await?;
        all.places.extend(endings.places);
        all.wake.extend(endings.wake);
    }
    Ok(all)
}

/// Applies the verdicts at these places in one statement.
async fn settle_once(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    items: &[(Receipt, Verdict)],
    firsts: &[usize],
) -> Result<Endings, Failure> {
    if let Some((epoch, result)) = same(firsts.iter().map(|place| &items[*place])) {
        return settle_same(conn, sql, items, firsts, epoch, result).await;
    }
    if let Some(params) = completions(items, firsts) {
        let completed = completed(conn, &sql.settle_done_v2, params).await?;
        return Ok(completed.endings(firsts, place));
    }
    let told = conn.told(&sql.settle_v2, verdicts(items, firsts)).await?;
    let fates = told.iter().filter_map(|told| Some((*firsts.get(place(told.place)?)?, fate(told))));
    let fates = fates.map(|(place, fate)| Ok((place, fate?))).collect::<Result<Vec<_>, StoreError>>();
    let wake = told.iter().filter_map(|told| told.wake.clone()).collect();
    Ok(Endings { places: fates.map_err(|error| Failure::Other(error.into()))?, wake })
}

/// Applies one verdict in a user's transaction, by a statement that waits for the lock of another transaction: how long it may is a
/// setting of the user's connection. None if the receipt is stale.
pub(crate) async fn settle_in<S: Session>(
    session: &mut S,
    sql: &Statements,
    item: &(Receipt, Verdict),
) -> Result<Option<(Settled, Vec<String>)>, Failure> {
    let (receipt, verdict) = item;
    if let Verdict::Done(result) = verdict {
        let (id, epoch) = (receipt.job.get().into(), receipt.epoch.get().into());
        let completed = session.completed(&sql.settle_one, vec![id, epoch, result.as_str().into()]).await?;
        let is_done = !completed.jobs.is_empty();
        return Ok(is_done.then(|| (backend::settled(*receipt, Fate::Completed), completed.wake)));
    }
    let told = session.told(&sql.settle, verdicts(std::slice::from_ref(item), &[0])).await?;
    let Some(told) = told.into_iter().next() else { return Ok(None) };
    let Ending::Settled(fate) = fate(&told).map_err(|error| Failure::Other(error.into()))? else {
        return Ok(None);
    };
    Ok(Some((backend::settled(*receipt, fate), told.wake.into_iter().collect())))
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
fn same<'a>(items: impl IntoIterator<Item = &'a (Receipt, Verdict)>) -> Option<(Epoch, &'a str)> {
    let mut items = items.into_iter();
    let first = match items.next()? {
        (receipt, Verdict::Done(result)) => (receipt.epoch, result.as_str()),
        _ => return None,
    };
    let is_same = |(receipt, verdict): &(Receipt, Verdict)| {
        receipt.epoch == first.0 && matches!(verdict, Verdict::Done(result) if result.as_str() == first.1)
    };
    items.all(is_same).then_some(first)
}

/// Completes jobs with one and the same result. The answer names ids, which are made places here.
async fn settle_same(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    items: &[(Receipt, Verdict)],
    firsts: &[usize],
    epoch: Epoch,
    result: &str,
) -> Result<Endings, Failure> {
    let mut ids = firsts.iter().map(|place| items[*place].0.job.get());
    let (text, ids) = match firsts.len() {
        1 => (&sql.settle_one_v2, ids.next().into()),
        _ => (&sql.settle_same_v2, ids.collect()),
    };
    let completed = completed(conn, text, vec![ids, epoch.get().into(), result.into()]).await?;
    let place = |id: i64| firsts.binary_search_by_key(&id, |place| items[*place].0.job.get()).ok();
    Ok(completed.endings(firsts, place))
}

/// An answer of `settle_done_v2.sql`, `settle_one_v2.sql` or `settle_same_v2.sql`: what was completed, what another transaction has
/// locked, and the queues in which something became leasable.
#[derive(Default)]
struct Completed {
    jobs: Vec<i64>,
    wake: Vec<String>,
    pending: Vec<i64>,
}

async fn completed(
    conn: &mut AsyncPgConnection,
    text: &str,
    params: Vec<Param<'_>>,
) -> Result<Completed, Failure> {
    type Row = (Nullable<Array<BigInt>>, Array<Text>, Nullable<Array<BigInt>>);
    type Answer = (Option<Vec<i64>>, Vec<String>, Option<Vec<i64>>);
    let rows: Vec<Answer> = Statement::<Row>::new(text, params).rows(conn).await?;
    let completed = |(jobs, wake, pending): Answer| Completed {
        jobs: jobs.unwrap_or_default(),
        wake,
        pending: pending.unwrap_or_default(),
    };
    Ok(rows.into_iter().next().map(completed).unwrap_or_default())
}

impl Completed {
    fn endings(self, firsts: &[usize], place: impl Fn(i64) -> Option<usize>) -> Endings {
        let done = self.jobs.into_iter().map(|job| (job, Ending::Settled(Fate::Completed)));
        let pending = self.pending.into_iter().map(|job| (job, Ending::Pending));
        let of_item = |(job, ending)| Some((*firsts.get(place(job)?)?, ending));
        Endings { places: done.chain(pending).filter_map(of_item).collect(), wake: self.wake }
    }
}

/// What became of an item.
#[derive(Clone, Copy)]
enum Ending {
    Settled(Fate),
    Pending,
}

/// What became of the items at these places, and the queues in which something became leasable.
#[derive(Default)]
struct Endings {
    places: Vec<(usize, Ending)>,
    wake: Vec<String>,
}

impl Endings {
    /// One outcome for each item.
    fn settling(self, items: &[(Receipt, Verdict)]) -> Settling {
        let mut outcomes = vec![SettleOutcome::LeaseLost; items.len()]; // S2
        let mut pending = HashSet::new();
        for (place, ending) in self.places {
            match ending {
                Ending::Settled(fate) => outcomes[place] = backend::settled_outcome(items[place].0, fate),
                Ending::Pending => drop(pending.insert(items[place].0)),
            }
        }
        if !pending.is_empty() {
            // S14, for every item with such a receipt: none of them has counted.
            let locked =
                items.iter().zip(&mut outcomes).filter(|((receipt, _), _)| pending.contains(receipt));
            locked.for_each(|(_, outcome)| *outcome = SettleOutcome::Pending);
        }
        Settling { outcomes, wake: self.wake }
    }
}

/// The arguments for `settle_done_v2.sql`, if every verdict is Done.
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

/// The arguments for `settle.sql` and `settle_v2.sql`.
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

fn fate(told: &Told) -> Result<Ending, StoreError> {
    let available_at = || -> DateTime<Utc> { told.available_at.unwrap_or_default() };
    Ok(Ending::Settled(match told.fate.as_str() {
        "completed" => Fate::Completed,
        "dead_letter" => Fate::DeadLettered,
        "discarded" => Fate::Discarded,
        "retrying" => Fate::Retrying { available_at: available_at() },
        "snoozed" => Fate::Snoozed { available_at: available_at() },
        "pending" => return Ok(Ending::Pending),
        other => return Err(StoreError::corrupt(format!("settle answered {other:?}"))),
    }))
}
