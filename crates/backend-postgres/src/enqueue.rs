//! Accepting jobs.

use std::collections::HashMap;

use diesel::sql_types::{BigInt, Bool};
use diesel_async::AsyncPgConnection;
use leasehold_core::{Enqueued, JobId, NewJob, Schedule};
use leasehold_sql::{headers_json, micros};

use crate::error::Failure;
use crate::session::{Keyed, Session};
use crate::sql::Statements;
use crate::statement::{Param, Statement};

/// How often a statement that lost a race for a unique key is tried again.
const RACES: u32 = 100;

/// Accepts jobs in one statement, outside of any transaction.
pub(crate) async fn enqueue<S: Session>(
    session: &mut S,
    sql: &Statements,
    jobs: &[NewJob],
) -> Result<Vec<Enqueued>, Failure> {
    if jobs.iter().all(|job| job.unique_key().is_none()) {
        return enqueue_plain(session, sql, jobs).await;
    }
    let batch = Batch::of(jobs);
    for _ in 0..RACES {
        match session.keyed(&sql.enqueue_keyed, batch.params(true)).await {
            Ok(rows) => return batch.answers(&rows).ok_or_else(incomplete),
            Err(failure) if failure.is_race() => {}
            Err(failure) => return Err(failure),
        }
    }
    Err(raced())
}

/// Accepts a job without a unique key, and tells those who listen on `channel` if it can. Answers whether it could.
pub(crate) async fn enqueue_first(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    job: &NewJob,
    channel: &str,
    message: &str,
) -> Result<(Vec<Enqueued>, bool), Failure> {
    let mut params = values(job);
    params.extend([channel.into(), message.into()]);
    let rows: Vec<(i64, bool)> =
        Statement::<(BigInt, Bool)>::new(&sql.enqueue_first, params).rows(conn).await?;
    let told = rows.iter().all(|(_, told)| *told);
    let accepted = |(id, _): (i64, _)| Enqueued { id: JobId::new(id), deduplicated: false };
    Ok((rows.into_iter().map(accepted).collect(), told))
}

/// Accepts jobs in the caller's transaction. A race must not fail there, so what is left over is asked for again: the
/// transaction makes the whole of it one step.
pub(crate) async fn enqueue_in<S: Session>(
    session: &mut S,
    sql: &Statements,
    jobs: &[NewJob],
) -> Result<Vec<Enqueued>, Failure> {
    if jobs.iter().all(|job| job.unique_key().is_none()) {
        return enqueue_plain(session, sql, jobs).await;
    }
    let mut batch = Batch::of(jobs);
    let mut rows = Vec::new();
    for _ in 0..RACES {
        rows.extend(session.keyed(&sql.enqueue_keyed, batch.params(false)).await?);
        let mut left = std::mem::take(&mut batch.firsts);
        left.retain(|place| !batch.is_answered(*place, &rows));
        batch.firsts = left;
        if batch.firsts.is_empty() {
            batch.firsts = Batch::of(jobs).firsts;
            return batch.answers(&rows).ok_or_else(incomplete);
        }
    }
    Err(raced())
}

async fn enqueue_plain<S: Session>(
    session: &mut S,
    sql: &Statements,
    jobs: &[NewJob],
) -> Result<Vec<Enqueued>, Failure> {
    let mut ids = match jobs {
        [job] => session.numbers(&sql.enqueue_one, values(job)).await?,
        _ => {
            let all: Vec<usize> = (0..jobs.len()).collect();
            session.numbers(&sql.enqueue_v2, columns(jobs, &all)).await?
        }
    };
    ids.sort_unstable(); // E2: they were given in the order of the jobs.
    Ok(ids.into_iter().map(|id| Enqueued { id: JobId::new(id), deduplicated: false }).collect())
}

/// Jobs, and which of them are to be sent: of those with one queue and key only the first (E4).
struct Batch<'a> {
    jobs: &'a [NewJob],
    firsts: Vec<usize>,
}

impl<'a> Batch<'a> {
    fn of(jobs: &'a [NewJob]) -> Self {
        let mut seen = HashMap::new();
        let is_first = |place: &usize| match key(&jobs[*place]) {
            Some(key) => *seen.entry(key).or_insert(*place) == *place,
            None => true,
        };
        Self { jobs, firsts: (0..jobs.len()).filter(is_first).collect() }
    }

    fn params(&self, fails_as_a_whole: bool) -> Vec<Param<'a>> {
        let mut params = columns(self.jobs, &self.firsts);
        let keys = self.firsts.iter().map(|place| self.jobs[*place].unique_key().map(|key| key.as_str()));
        params.push(keys.collect());
        params.push(fails_as_a_whole.into());
        params
    }

    /// Whether the answer for this job is among `rows`. Jobs without a key are always accepted.
    fn is_answered(&self, place: usize, rows: &[Keyed]) -> bool {
        key(&self.jobs[place]).is_none_or(|key| rows.iter().any(|row| row.key() == Some(key)))
    }

    /// One answer for each job, in order. `None` if one is missing.
    fn answers(&self, rows: &[Keyed]) -> Option<Vec<Enqueued>> {
        let mut plain: Vec<i64> = rows.iter().filter(|row| row.key.is_none()).map(|row| row.id).collect();
        plain.sort_unstable(); // They were given in the order of the jobs.
        let mut plain = plain.into_iter();
        let mut keyed: HashMap<(&str, &str), Enqueued> = HashMap::new();
        for row in rows {
            if let Some(key) = row.key() {
                keyed.insert(key, Enqueued { id: JobId::new(row.id), deduplicated: row.deduplicated });
            }
        }
        let mut answer = |job: &'a NewJob| match key(job) {
            None => Some(Enqueued { id: JobId::new(plain.next()?), deduplicated: false }),
            Some(key) => {
                let answer = keyed.get_mut(&key)?;
                let first = *answer;
                answer.deduplicated = true; // E4: for those that come after it.
                Some(first)
            }
        };
        self.jobs.iter().map(&mut answer).collect()
    }
}

impl Keyed {
    fn key(&self) -> Option<(&str, &str)> {
        Some((self.queue.as_deref()?, self.key.as_deref()?))
    }
}

fn key(job: &NewJob) -> Option<(&str, &str)> {
    Some((job.queue().as_str(), job.unique_key()?.as_str()))
}

/// The arguments that both statements begin with: the jobs at these places, column by column.
fn columns<'a>(jobs: &'a [NewJob], places: &[usize]) -> Vec<Param<'a>> {
    let sent = || places.iter().map(|place| &jobs[*place]);
    vec![
        sent().map(|job| job.queue().as_str()).collect(),
        sent().map(|job| job.kind().as_str()).collect(),
        sent().map(NewJob::priority).collect(),
        sent().map(|job| job.payload().as_str()).collect(),
        sent().map(|job| headers_json(job.headers())).collect(),
        sent().map(|job| job.max_attempts().map(|attempts| attempts.get() as i32)).collect(),
        sent().map(|job| delay_us(job.schedule())).collect(),
        sent().map(|job| at(job.schedule())).collect(),
    ]
}

/// The same for one job: value by value.
fn values(job: &NewJob) -> Vec<Param<'_>> {
    vec![
        job.queue().as_str().into(),
        job.kind().as_str().into(),
        job.priority().into(),
        job.payload().as_str().into(),
        Param::Text(Some(headers_json(job.headers()))),
        job.max_attempts().map(|attempts| attempts.get() as i32).into(),
        delay_us(job.schedule()).into(),
        at(job.schedule()).into(),
    ]
}

/// The delay of a schedule, if it is one.
pub(crate) fn delay_us(schedule: Schedule) -> Option<i64> {
    match schedule {
        Schedule::After(delay) => Some(micros(delay)),
        Schedule::Now | Schedule::At(_) => None,
    }
}

/// The time of a schedule, if it has one.
pub(crate) fn at(schedule: Schedule) -> Option<chrono::DateTime<chrono::Utc>> {
    match schedule {
        Schedule::At(time) => Some(time.get()),
        Schedule::Now | Schedule::After(_) => None,
    }
}

fn incomplete() -> Failure {
    Failure::Other("the statement left a job out of its answer".into())
}

fn raced() -> Failure {
    Failure::Again("jobs with the same unique keys came and went all the while".into())
}
