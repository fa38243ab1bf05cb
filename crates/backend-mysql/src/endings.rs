//! What becomes of jobs whose rows are locked: they move to the history, or back into their queues.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use leasehold_core::{FinalStatus, QueueOrder};
use leasehold_sql::Rules;
use serde_json::{Value, json};

use crate::error::Failure;
use crate::session::Session;
use crate::statement::Param;

/// So many ways to end are each a statement; more become one with an array.
const GROUPS: usize = 4;
/// A statement is sent in one packet. A document that is larger than this goes by itself.
const BYTES: usize = 1 << 20;

/// How a job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct End<'a> {
    pub(crate) status: FinalStatus,
    pub(crate) result: Option<&'a str>,
    /// Its last error from now on, if that is another.
    pub(crate) error: Option<&'a str>,
    /// Whether it is taken from its holder, if it has one.
    pub(crate) raise: bool,
}

impl<'a> End<'a> {
    pub(crate) fn completed(result: Option<&'a str>) -> Self {
        Self { status: FinalStatus::Completed, result, error: None, raise: false }
    }

    pub(crate) fn discarded(reason: Option<&'a str>) -> Self {
        Self { status: FinalStatus::Discarded, result: reason, error: None, raise: false }
    }

    pub(crate) fn dead(error: Option<&'a str>) -> Self {
        Self { status: FinalStatus::DeadLetter, result: None, error, raise: false }
    }

    fn bytes(&self) -> usize {
        self.result.map_or(0, str::len) + self.error.map_or(0, str::len)
    }
}

/// How a job that was leased goes back into its queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requeue<'a> {
    pub(crate) attempts: i64,
    pub(crate) error: Option<&'a str>,
    pub(crate) available_at: DateTime<Utc>,
    /// Whether it is taken from its holder.
    pub(crate) raise: bool,
}

/// Jobs and what becomes of each, to be written in few statements.
#[derive(Default)]
pub(crate) struct Endings<'a> {
    kept: BTreeMap<End<'a>, Vec<i64>>,
    gone: Vec<i64>,
    back: Vec<(i64, Requeue<'a>)>,
}

impl<'a> Endings<'a> {
    /// Moves a job to the history, if its queue's archive keeps it (S12, P7).
    pub(crate) fn finish(&mut self, rules: &mut Rules, id: i64, queue: &str, end: End<'a>) {
        if rules.of_stored(queue).archive.keeps(end.status) {
            self.kept.entry(end).or_default().push(id);
        }
        self.gone.push(id);
    }

    /// Puts a job back into its queue.
    pub(crate) fn requeue(&mut self, id: i64, back: Requeue<'a>) {
        self.back.push((id, back));
    }

    /// Does all of it.
    pub(crate) async fn write(
        mut self,
        session: &mut Session<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), Failure> {
        let kept = std::mem::take(&mut self.kept);
        let (large, small): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|(end, _)| end.raise || end.bytes() > BYTES);
        if small.len() > GROUPS {
            finish_each(session, &small, now).await?;
            finish_same(session, &large, now).await?;
        } else {
            finish_same(session, &small, now).await?;
            finish_same(session, &large, now).await?;
        }
        self.gone.sort_unstable();
        let sql = session.sql;
        session.count_listed(&sql.remove, Vec::new(), &self.gone, Vec::new()).await?;
        requeue(session, &self.back, now).await
    }
}

async fn finish_same(
    session: &mut Session<'_>,
    ends: &[(End<'_>, Vec<i64>)],
    now: DateTime<Utc>,
) -> Result<(), Failure> {
    let sql = session.sql;
    for (end, ids) in ends {
        let before = vec![
            i64::from(end.raise).into(),
            end.status.as_str().into(),
            Param::Text(end.result.map(|text| text.to_owned().into())),
            Param::Text(end.error.map(|text| text.to_owned().into())),
            now.into(),
        ];
        session.count_listed(&sql.finish_same, before, ids, Vec::new()).await?;
    }
    Ok(())
}

async fn finish_each(
    session: &mut Session<'_>,
    ends: &[(End<'_>, Vec<i64>)],
    now: DateTime<Utc>,
) -> Result<(), Failure> {
    let sql = session.sql;
    let items = ends.iter().flat_map(|(end, ids)| ids.iter().map(move |id| (id, end)));
    let items = items.map(|(id, end)| (json!([id, end.status.as_str(), end.result, end.error]), end.bytes()));
    for array in arrays(items) {
        session.count(&sql.finish_each, vec![now.into(), array.into()]).await?;
    }
    Ok(())
}

async fn requeue(
    session: &mut Session<'_>,
    jobs: &[(i64, Requeue<'_>)],
    now: DateTime<Utc>,
) -> Result<(), Failure> {
    let sql = session.sql;
    let items = jobs.iter().map(|(id, back)| {
        let at = back.available_at.format("%Y-%m-%d %H:%M:%S%.6f").to_string();
        let item = json!([id, back.attempts, back.error, at, i64::from(back.raise)]);
        (item, back.error.map_or(0, str::len))
    });
    for array in arrays(items) {
        session.count(&sql.requeue, vec![array.into(), now.into()]).await?;
    }
    Ok(())
}

/// Items as JSON arrays, none much larger than a packet may be.
fn arrays(items: impl Iterator<Item = (Value, usize)>) -> Vec<String> {
    let mut arrays: Vec<(Vec<Value>, usize)> = Vec::new();
    for (item, bytes) in items {
        match arrays.last_mut().filter(|(_, sum)| *sum + bytes <= BYTES) {
            Some((array, sum)) => {
                array.push(item);
                *sum += bytes;
            }
            None => arrays.push((vec![item], bytes)),
        }
    }
    arrays.into_iter().map(|(array, _)| Value::Array(array).to_string()).collect()
}

/// In a queue with limits the end of a lease lets the next job be leased.
pub(crate) fn lease_ended(session: &mut Session<'_>, rules: &mut Rules, queue: &str) {
    let policy = rules.of_stored(queue);
    if policy.concurrency_limit.is_some() || policy.order == QueueOrder::Fifo {
        session.wake(queue);
    }
}
