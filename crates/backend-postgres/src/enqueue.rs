//! Accepting jobs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Bool};
use diesel_async::AsyncPgConnection;
use leasehold_core::{Enqueued, JobId, NewJob, Result as StoreResult, Schedule};
use leasehold_gather::Courier;
use leasehold_sql::{headers_json, micros};

use crate::Shared;
use crate::chunk::{self, Chunks};
use crate::error::{Effect, Failure};
use crate::events::News;
use crate::room::with_room;
use crate::session::{Keyed, Session};
use crate::sql::Statements;
use crate::statement::{Param, Statement};

/// How often a statement that lost a race for a unique key is tried again.
const RACES: u32 = 100;
/// More than the numbers, times and lengths of one job take in a statement, and the punctuation of its headers.
const FIXED_BYTES: usize = 1024;

#[async_trait]
impl Courier for Shared {
    async fn send(self: &Arc<Self>, jobs: &[NewJob]) -> StoreResult<Vec<Enqueued>> {
        if is_large(jobs, self.chunks) {
            let (mut conn, at) = self.connection_apart("enqueue").await?;
            let answer = enqueue_in_chunks(&mut conn, &self.sql, jobs, self.chunks).await;
            let answers = conn.judge(answer)?;
            self.has_enqueued(jobs, &answers, at);
            self.wake(jobs.iter().map(|job| job.queue()));
            return Ok(answers);
        }
        let first = self.hub.first_word(jobs);
        let (mut conn, at) = self.connection_at("enqueue").await?;
        let answer = match &first {
            Some((job, word)) => {
                let channel = self.hub.channel();
                with_room!(&mut conn, &self.sql, enqueue_first(&mut conn, &self.sql, job, channel, word))
            }
            None => with_room!(&mut conn, &self.sql, enqueue(&mut *conn, &self.sql, jobs))
                .map(|answers| (answers, false)),
        };
        let (answers, others_told) = conn.judge(answer, Effect::Write)?;
        self.has_enqueued(jobs, &answers, at);
        let queues = jobs.iter().map(|job| job.queue());
        if others_told {
            self.hub.wake_here(queues.map(|queue| queue.as_str()));
        } else {
            self.wake(queues);
        }
        Ok(answers)
    }
}

impl Shared {
    fn has_enqueued(self: &Arc<Self>, jobs: &[NewJob], answers: &[Enqueued], at: Option<DateTime<Utc>>) {
        self.has_counted();
        self.tell(|| News::enqueued(jobs, answers, at));
    }
}

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
        match session.keyed(&sql.enqueue_keyed, batch.params(&batch.firsts, true)).await {
            Ok(rows) => return batch.answers(&rows).ok_or_else(incomplete),
            Err(failure) if failure.is_race() => {}
            Err(failure) => return Err(failure),
        }
    }
    Err(raced())
}

/// Whether the jobs are too large for one statement.
fn is_large(jobs: &[NewJob], chunks: Chunks) -> bool {
    jobs.len() > 1 && !chunks.is_one(jobs.iter().map(bytes))
}

/// Accepts jobs in several statements, in a transaction of the store's: all of them or none (E1).
async fn enqueue_in_chunks(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    jobs: &[NewJob],
    chunks: Chunks,
) -> Result<Vec<Enqueued>, Failure> {
    for _ in 0..chunk::RACES {
        chunk::begin(conn).await?;
        let enqueued = enqueue_in(conn, sql, jobs, chunks).await;
        match chunk::end(conn, enqueued).await {
            Err(failure) if failure.is_race() => {}
            ended => return ended,
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
    chunks: Chunks,
) -> Result<Vec<Enqueued>, Failure> {
    let batch = Batch::of(jobs);
    let is_keyed = jobs.iter().any(|job| job.unique_key().is_some());
    let mut rows = Vec::new();
    let mut enqueued = Vec::new();
    for chunk in chunks.split(&batch.firsts, |place| bytes(&jobs[place])) {
        match (is_keyed, chunk) {
            (true, _) => rows.extend(enqueue_keyed(session, sql, &batch, chunk).await?),
            // Without keys the places of a chunk follow each other.
            (false, [first, ..]) => {
                let chunk = &jobs[*first..*first + chunk.len()];
                enqueued.extend(enqueue_plain(session, sql, chunk).await?);
            }
            (false, []) => {}
        }
    }
    if is_keyed { batch.answers(&rows).ok_or_else(incomplete) } else { Ok(enqueued) }
}

/// Accepts the jobs at these places. Those whose key was taken by a job that the statement could not see are sent again.
async fn enqueue_keyed<S: Session>(
    session: &mut S,
    sql: &Statements,
    batch: &Batch<'_>,
    places: &[usize],
) -> Result<Vec<Keyed>, Failure> {
    let (mut rows, mut left) = (Vec::new(), places.to_vec());
    for _ in 0..RACES {
        let answered = session.keyed(&sql.enqueue_keyed, batch.params(&left, false)).await?;
        let keys: HashSet<_> = answered.iter().filter_map(Keyed::key).collect();
        left.retain(|place| key(&batch.jobs[*place]).is_some_and(|key| !keys.contains(&key)));
        rows.extend(answered);
        if left.is_empty() {
            return Ok(rows);
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

    fn params(&self, places: &[usize], fails_as_a_whole: bool) -> Vec<Param<'a>> {
        let mut params = columns(self.jobs, places);
        let keys = places.iter().map(|place| self.jobs[*place].unique_key().map(|key| key.as_str()));
        params.push(keys.collect());
        params.push(fails_as_a_whole.into());
        params
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

/// How many bytes of a statement a job takes at most.
fn bytes(job: &NewJob) -> usize {
    let headers: usize = job.headers().iter().map(|(name, value)| name.len() + value.len()).sum();
    let names = job.queue().as_str().len() + job.kind().as_str().len();
    let key = job.unique_key().map_or(0, |key| key.as_str().len());
    // Six bytes of JSON are the longest escape of one byte.
    job.payload().as_str().len() + 6 * headers + names + key + FIXED_BYTES
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
