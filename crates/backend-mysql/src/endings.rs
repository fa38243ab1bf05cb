//! What becomes of jobs whose rows are locked: they move to the history, or back into their queues.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use leasehold_core::{FinalStatus, QueueOrder};
use leasehold_sql::Rules;
use serde_json::{Value, json};

use crate::error::Failure;
use crate::room::{self, make_room};
use crate::session::Session;
use crate::statement::Param;

/// So many ways to end are each a statement; more become one with an array.
const GROUPS: usize = 4;
/// An array has at most so many bytes, if a packet has room for them. A document of half of them or more goes by itself.
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

/// A job as it was when it was locked.
///
/// A lock keeps others from changing the job on one server. In a cluster where several members take writes, it does so only on the same
/// member. So every statement names what was locked, and the number of rows tells whether it was still so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Locked {
    pub(crate) id: i64,
    pub(crate) epoch: i64,
    pub(crate) is_leased: bool,
}

impl Locked {
    /// What jobs have in common that are written by one statement.
    fn lease(&self) -> (i64, bool) {
        (self.epoch, self.is_leased)
    }
}

/// Jobs and what becomes of each, to be written in few statements.
#[derive(Default)]
pub(crate) struct Endings<'a> {
    kept: BTreeMap<(End<'a>, (i64, bool)), Vec<i64>>,
    gone: Vec<Locked>,
    back: Vec<(Locked, Requeue<'a>)>,
}

impl<'a> Endings<'a> {
    /// Moves a job to the history, if its queue's archive keeps it (S12, P7).
    pub(crate) fn finish(&mut self, rules: &mut Rules, job: Locked, queue: &str, end: End<'a>) {
        if rules.of_stored(queue).archive.keeps(end.status) {
            self.kept.entry((end, job.lease())).or_default().push(job.id);
        }
        self.gone.push(job);
    }

    /// Puts a job back into its queue.
    pub(crate) fn requeue(&mut self, job: Locked, back: Requeue<'a>) {
        self.back.push((job, back));
    }

    /// Does all of it.
    pub(crate) async fn write(
        mut self,
        session: &mut Session<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), Failure> {
        let (large, small): (Vec<_>, Vec<_>) =
            self.kept.into_iter().partition(|((end, _), _)| 2 * end.bytes() > array_bytes(session));
        if small.len() > GROUPS {
            finish_each(session, &small, now).await?;
        } else {
            finish_same(session, &small, now).await?;
        }
        finish_same(session, &large, now).await?;
        self.gone.sort_unstable();
        remove(session, &self.gone).await?;
        requeue(session, &self.back, now).await
    }
}

/// Jobs that end in one way, and have the same epoch and either all a lease or none.
type Group<'a> = ((End<'a>, (i64, bool)), Vec<i64>);

async fn finish_same(
    session: &mut Session<'_>,
    groups: &[Group<'_>],
    now: DateTime<Utc>,
) -> Result<(), Failure> {
    let sql = session.sql;
    for ((end, (epoch, is_leased)), ids) in groups {
        let before = vec![
            i64::from(end.raise).into(),
            end.status.as_str().into(),
            Param::Text(end.result.map(|text| text.to_owned().into())),
            Param::Text(end.error.map(|text| text.to_owned().into())),
            now.into(),
        ];
        let after = vec![(*epoch).into(), i64::from(*is_leased).into()];
        for some in ids.chunks(session.packet.ids_beside(end.bytes()).max(1)) {
            let statement = session.count_listed(&sql.finish_same, before.clone(), some, after.clone());
            let written = match statement.await {
                Err(Failure::Taken(_)) => {
                    make_room(session, some).await?; // C7
                    let again = session.count_listed(&sql.finish_same, before.clone(), some, after.clone());
                    again.await.map_err(room::again)?
                }
                written => written?,
            };
            as_locked(written, some.len())?;
        }
    }
    Ok(())
}

async fn finish_each(
    session: &mut Session<'_>,
    groups: &[Group<'_>],
    now: DateTime<Utc>,
) -> Result<(), Failure> {
    let sql = session.sql;
    let mut ids = groups.iter().flat_map(|(_, ids)| ids.iter().copied());
    let items = groups.iter().flat_map(|(group, ids)| ids.iter().map(move |id| (id, group)));
    let items = items.map(|(id, (end, (epoch, is_leased)))| {
        let raise = i64::from(end.raise && *is_leased); // A4, R8
        let leased = i64::from(*is_leased);
        json!([id, epoch, leased, raise, end.status.as_str(), end.result, end.error])
    });
    for (array, count) in arrays(items, array_bytes(session)) {
        let some: Vec<i64> = ids.by_ref().take(count).collect();
        let params = vec![now.into(), array.into()];
        let written = match session.count(&sql.finish_each, params.clone()).await {
            Err(Failure::Taken(_)) => {
                make_room(session, &some).await?; // C7
                session.count(&sql.finish_each, params).await.map_err(room::again)?
            }
            written => written?,
        };
        as_locked(written, count)?;
    }
    Ok(())
}

async fn remove(session: &mut Session<'_>, jobs: &[Locked]) -> Result<(), Failure> {
    let sql = session.sql;
    let items = jobs.iter().map(|job| json!([job.id, job.epoch, i64::from(job.is_leased)]));
    for (array, count) in arrays(items, array_bytes(session)) {
        as_locked(session.count(&sql.remove, vec![array.into()]).await?, count)?;
    }
    Ok(())
}

async fn requeue(
    session: &mut Session<'_>,
    jobs: &[(Locked, Requeue<'_>)],
    now: DateTime<Utc>,
) -> Result<(), Failure> {
    let sql = session.sql;
    let items = jobs.iter().map(|(job, back)| {
        let at = back.available_at.format("%Y-%m-%d %H:%M:%S%.6f").to_string();
        json!([job.id, job.epoch, back.attempts, back.error, at, i64::from(back.raise)])
    });
    for (array, count) in arrays(items, array_bytes(session)) {
        as_locked(session.count(&sql.requeue, vec![array.into(), now.into()]).await?, count)?;
    }
    Ok(())
}

/// Refuses to go on if not all that was locked was written: then the locks did not hold, as on two members of a cluster. What was
/// written so far is rolled back, and the operation looks again.
pub(crate) fn as_locked(written: u64, locked: usize) -> Result<(), Failure> {
    if written == locked as u64 {
        return Ok(());
    }
    Err(Failure::Again(format!("{locked} rows were locked and {written} of them found unchanged").into()))
}

/// At most so many bytes are in an array.
fn array_bytes(session: &Session<'_>) -> usize {
    BYTES.min(session.packet.room())
}

/// Items as JSON arrays of at most so many bytes, and how many are in each. An item that is larger is alone.
fn arrays(items: impl Iterator<Item = Value>, most: usize) -> Vec<(String, usize)> {
    let mut arrays: Vec<(String, usize)> = Vec::new();
    for item in items {
        let item = item.to_string();
        match arrays.last_mut().filter(|(array, _)| array.len() + item.len() + 2 <= most) {
            Some((array, count)) => {
                array.push(',');
                array.push_str(&item);
                *count += 1;
            }
            None => arrays.push((format!("[{item}"), 1)),
        }
    }
    arrays.iter_mut().for_each(|(array, _)| array.push(']'));
    arrays
}

/// In a queue with limits the end of a lease lets the next job be leased.
pub(crate) fn lease_ended(session: &mut Session<'_>, rules: &mut Rules, queue: &str) {
    let policy = rules.of_stored(queue);
    if policy.concurrency_limit.is_some() || policy.order == QueueOrder::Fifo {
        session.wake(queue);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may")]
mod tests {
    use serde_json::json;

    use super::{arrays, as_locked};

    #[test]
    fn arrays_are_no_larger_than_they_may_be() {
        let items = || (0..100).map(|n| json!([n, "\"".repeat(n % 7)]));
        for most in [10, 64, 100, 10_000] {
            let arrays = arrays(items(), most);
            assert!(arrays.iter().all(|(array, count)| array.len() <= most || *count == 1), "{arrays:?}");
            let parsed = arrays.iter().map(|(array, count)| {
                let array: Vec<serde_json::Value> = serde_json::from_str(array).unwrap();
                assert_eq!(array.len(), *count);
                array
            });
            assert_eq!(parsed.flatten().collect::<Vec<_>>(), items().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_row_that_was_changed_in_spite_of_its_lock_is_looked_at_again() {
        as_locked(2, 2).unwrap();
        let changed = as_locked(1, 2).unwrap_err();
        assert!(changed.is_again() && changed.breaks_transaction());
        assert!(changed.told("settle_in").is_retryable());
    }
}
