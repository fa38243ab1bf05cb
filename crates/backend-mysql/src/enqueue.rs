//! Accepting jobs.

use std::collections::{BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use leasehold_core::{Enqueued, JobId, MaxAttempts, NewJob, Schedule};
use leasehold_sql::{Rules, headers_json, micros};

use crate::error::Failure;
use crate::keys::{self, Key, key};
use crate::packet::job_bytes;
use crate::policy::rules;
use crate::session::Session;
use crate::sql::Rows;
use crate::statement::Param;

/// So many bytes of jobs are sent in one statement, if a packet has room for them.
const BYTES: usize = 4 << 20;
/// Accepts jobs without unique keys, or jobs in a user's transaction, as a whole (E1).
pub(crate) async fn enqueue(session: &mut Session<'_>, jobs: &[NewJob]) -> Result<Vec<Enqueued>, Failure> {
    session.packet.check_jobs(jobs)?;
    if let [job] = jobs
        && key(job).is_none()
        && (!session.is_users() || job.max_attempts().is_some())
    {
        // Nothing has to be read before. At REPEATABLE READ the INSERT would lock the policies that it reads itself, and `pause` would wait for the
        // user's commit.
        return Ok(vec![enqueue_one(session, job).await?]);
    }
    enqueue_all(session, jobs).await
}

/// Accepts jobs of which some have unique keys, as a whole (E1). `None` if another transaction has one of the keys and has not ended: to be tried
/// again, with `again`.
pub(crate) async fn enqueue_keyed(
    session: &mut Session<'_>,
    jobs: &[NewJob],
    again: bool,
) -> Result<Option<Vec<Enqueued>>, Failure> {
    session.packet.check_jobs(jobs)?;
    let keys: BTreeSet<Key<'_>> = jobs.iter().filter_map(key).collect();
    if again && let Some(answer) = known(session, jobs).await? {
        return Ok(Some(vec![answer]));
    }
    session.begin().await?;
    let Some(rows) = keys::try_lock(session, &keys).await? else {
        session.roll_back().await?;
        return Ok(None);
    };
    let [job] = jobs else {
        return enqueue_all(session, jobs).await.map(Some);
    };
    if rows > 0
        && let Some(answer) = known(session, jobs).await?
    {
        session.roll_back().await?;
        return Ok(Some(vec![answer]));
    }
    let answer = enqueue_one(session, job).await?;
    let taken: Vec<_> = keys.into_iter().map(|key| (key, answer.id.get())).collect();
    let made = keys::take(session, &taken).await?;
    if rows == 0 && made != 1 {
        // Another transaction has made the row meanwhile.
        session.roll_back().await?;
        return Ok(None);
    }
    session.commit().await?;
    Ok(Some(vec![answer]))
}

/// The answer for a single job, if a live one has its key (E3).
async fn known(session: &mut Session<'_>, jobs: &[NewJob]) -> Result<Option<Enqueued>, Failure> {
    let [job] = jobs else { return Ok(None) };
    let Some(key) = key(job) else { return Ok(None) };
    let holder = keys::holder(session, key).await?;
    Ok(holder.map(|id| Enqueued { id: JobId::new(id), deduplicated: true }))
}

/// Accepts a job without a unique key, or whose key is locked: there is nothing to be asked before.
async fn enqueue_one(session: &mut Session<'_>, job: &NewJob) -> Result<Enqueued, Failure> {
    let sql = session.sql;
    let (at, delay) = match job.schedule() {
        Schedule::Now => (None, 0),
        Schedule::After(delay) => (None, micros(delay.get())),
        Schedule::At(at) => (Some(at.get()), 0),
    };
    let queue = job.queue().as_str();
    let params = vec![
        queue.into(),
        job.kind().as_str().into(),
        i64::from(job.priority()).into(),
        job.unique_key().map(|key| key.as_str()).into(),
        job.payload().as_str().into(),
        headers_json(job.headers()).into(),
        job.max_attempts().map(|attempts| i64::from(attempts.get())).into(),
        queue.into(),
        queue.into(),
        MaxAttempts::DEFAULT.get().into(),
        at.into(),
        delay.into(),
    ];
    let ids = session.insert(&sql.enqueue_one, params, 1).await?;
    session.wake(queue);
    let [id] = *ids else { return Err(incomplete()) };
    Ok(Enqueued { id: JobId::new(id), deduplicated: false })
}

async fn enqueue_all(session: &mut Session<'_>, jobs: &[NewJob]) -> Result<Vec<Enqueued>, Failure> {
    let chunks = chunks(jobs, BYTES.min(session.packet.room()));
    let keys: BTreeSet<Key<'_>> = jobs.iter().filter_map(key).collect();
    if chunks.len() > 1 || !keys.is_empty() {
        session.begin().await?;
    }
    let holders = keys::lock(session, &keys).await?;
    let (now, mut rules) = rules(session).await?;
    let mut batch = Batch::new(jobs, now, &holders);
    for chunk in chunks {
        batch.accept(session, &mut rules, chunk).await?;
    }
    keys::take(session, &batch.taken()).await?;
    session.commit().await?;
    jobs.iter().for_each(|job| session.wake(job.queue().as_str()));
    batch.finish()
}

/// The jobs in pieces, each of them a statement.
fn chunks(jobs: &[NewJob], most: usize) -> Vec<std::ops::Range<usize>> {
    let mut chunks = Vec::new();
    let mut start = 0;
    while start < jobs.len() {
        let mut bytes = 0;
        let fits = |job: &&NewJob| {
            bytes += job_bytes(job);
            bytes <= most
        };
        let length = Rows::round_down(jobs[start..].iter().take_while(fits).count().max(1));
        chunks.push(start..start + length);
        start += length;
    }
    chunks
}

struct Batch<'a> {
    jobs: &'a [NewJob],
    now: DateTime<Utc>,
    answers: Vec<Option<Enqueued>>,
    /// For each key of the batch, the place of the first job that has it, if no live job had it before.
    firsts: HashMap<Key<'a>, usize>,
}

impl<'a> Batch<'a> {
    /// A batch whose keys are locked. Those of `holders` are taken by live jobs (E3).
    fn new(jobs: &'a [NewJob], now: DateTime<Utc>, holders: &HashMap<Key<'a>, i64>) -> Self {
        let (mut answers, mut firsts) = (vec![None; jobs.len()], HashMap::new());
        for (place, job) in jobs.iter().enumerate() {
            let Some(key) = key(job) else { continue };
            match holders.get(&key) {
                Some(id) => {
                    answers[place] = Some(Enqueued { id: JobId::new(*id), deduplicated: true });
                }
                None => drop(firsts.entry(key).or_insert(place)),
            }
        }
        Self { jobs, now, answers, firsts }
    }

    /// Accepts a piece, but for the jobs whose key is taken, also by a job before them in the batch (E4).
    async fn accept(
        &mut self,
        session: &mut Session<'_>,
        rules: &mut Rules,
        chunk: std::ops::Range<usize>,
    ) -> Result<(), Failure> {
        let is_new = |place: &usize| match key(&self.jobs[*place]) {
            Some(key) => self.firsts.get(&key) == Some(place),
            None => true,
        };
        let places: Vec<usize> = chunk.filter(is_new).collect();
        self.insert(session, rules, &places).await
    }

    /// The keys that jobs of this batch have taken, in their order.
    fn taken(&self) -> Vec<(Key<'a>, i64)> {
        let id = |place: usize| Some(self.answers[place].as_ref()?.id.get());
        let mut taken: Vec<(Key<'a>, i64)> =
            self.firsts.iter().filter_map(|(key, place)| Some((*key, id(*place)?))).collect();
        taken.sort_unstable();
        taken
    }

    /// One answer for each job; one with the key of a job before it has the answer of that (E4).
    fn finish(self) -> Result<Vec<Enqueued>, Failure> {
        let Self { jobs, answers, firsts, .. } = self;
        let answer = |(place, job): (usize, &NewJob)| {
            let first = key(job).and_then(|key| firsts.get(&key)).filter(|first| **first != place);
            match first {
                Some(first) => Some(Enqueued { id: answers[*first].as_ref()?.id, deduplicated: true }),
                None => answers[place],
            }
        };
        jobs.iter().enumerate().map(answer).collect::<Option<_>>().ok_or_else(incomplete)
    }

    /// Accepts the jobs at these places.
    async fn insert(
        &mut self,
        session: &mut Session<'_>,
        rules: &mut Rules,
        places: &[usize],
    ) -> Result<(), Failure> {
        let sql = session.sql;
        let mut left = places;
        while !left.is_empty() {
            let (some, rest) = left.split_at(Rows::round_down(left.len()));
            let mut params = Vec::with_capacity(10 * some.len());
            some.iter().for_each(|place| params.extend(self.row(rules, *place)));
            let ids = session.insert(sql.enqueue.of(some.len()), params, some.len()).await?;
            if ids.len() != some.len() {
                return Err(incomplete());
            }
            for (id, place) in ids.into_iter().zip(some) {
                self.answers[*place] = Some(Enqueued { id: JobId::new(id), deduplicated: false }); // E2, E10
            }
            left = rest;
        }
        Ok(())
    }

    fn row(&self, rules: &mut Rules, place: usize) -> [Param<'_>; 10] {
        let job = &self.jobs[place];
        let max_attempts = job.max_attempts().unwrap_or_else(|| rules.of(job.queue()).max_attempts); // E12
        [
            job.queue().as_str().into(),
            job.kind().as_str().into(),
            i64::from(job.priority()).into(),
            job.unique_key().map(|key| key.as_str()).into(),
            job.payload().as_str().into(),
            headers_json(job.headers()).into(),
            max_attempts.get().into(),
            job.schedule().available_at(self.now).into(), // E8
            self.now.into(),
            self.now.into(),
        ]
    }
}

fn incomplete() -> Failure {
    Failure::Other("the statement left a job out of its answer".into())
}
