//! Accepting jobs.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use diesel::sql_types::BigInt;
use leasehold_core::{Enqueued, JobId, MaxAttempts, NewJob, Schedule};
use leasehold_sql::{Rules, headers_json, micros};

use crate::error::Failure;
use crate::packet::job_bytes;
use crate::policy::rules;
use crate::session::Session;
use crate::sql::Rows;
use crate::statement::Param;

/// How often a statement that lost a race for a unique key is tried again.
const RACES: u32 = 100;
/// So many bytes of jobs are sent in one statement, if a packet has room for them.
const BYTES: usize = 4 << 20;
/// So many names are there to be locked for unique keys.
const NAMES: u64 = 16;
/// So many unique keys are looked up in one go.
const KEYS: usize = 64;

/// Accepts jobs, as a whole (E1).
pub(crate) async fn enqueue(session: &mut Session<'_>, jobs: &[NewJob]) -> Result<Vec<Enqueued>, Failure> {
    session.packet.check_jobs(jobs)?;
    session.take_names(&names(jobs)).await?;
    if let [job] = jobs
        && (!session.is_users() || is_complete(job))
    {
        match enqueue_one(session, job).await {
            Err(Failure::Taken(_)) => {}
            done => return done,
        }
    }
    enqueue_all(session, jobs).await
}

/// Whether nothing has to be read for a job before a user's transaction inserts it. At REPEATABLE READ the INSERT would lock the policies that
/// it reads itself, and `pause` would wait for the user's commit.
fn is_complete(job: &NewJob) -> bool {
    job.unique_key().is_none() && job.max_attempts().is_some()
}

/// Names to be locked before jobs with unique keys are inserted. InnoDB would have two who want one key wait for each other, and
/// two who want several keys in whatever order. One key is one of the names; several keys are all of them.
fn names(jobs: &[NewJob]) -> Vec<i64> {
    match (jobs, jobs.iter().find_map(key)) {
        (_, None) => Vec::new(),
        ([_], Some((queue, key))) => vec![name(queue, key)],
        _ => all_names(),
    }
}

/// For who inserts several jobs with unique keys.
pub(crate) fn all_names() -> Vec<i64> {
    (0..NAMES as i64).collect()
}

/// One of few, the same in every process: FNV-1a.
fn name(queue: &str, key: &str) -> i64 {
    let bytes = queue.bytes().chain([0]).chain(key.bytes());
    let sum = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (sum % NAMES) as i64
}

/// Accepts a job if nobody has its key: there is nothing to be asked before.
async fn enqueue_one(session: &mut Session<'_>, job: &NewJob) -> Result<Vec<Enqueued>, Failure> {
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
    Ok(vec![Enqueued { id: JobId::new(id), deduplicated: false }])
}

async fn enqueue_all(session: &mut Session<'_>, jobs: &[NewJob]) -> Result<Vec<Enqueued>, Failure> {
    let (now, mut rules) = rules(session).await?;
    let mut batch = Batch { jobs, answers: vec![None; jobs.len()], now };
    let chunks = chunks(jobs, BYTES.min(session.packet.room()));
    if chunks.len() > 1 || jobs.iter().any(|job| job.unique_key().is_some()) {
        session.begin().await?;
    }
    for chunk in chunks {
        batch.accept(session, &mut rules, chunk).await?;
    }
    session.commit().await?;
    jobs.iter().for_each(|job| session.wake(job.queue().as_str()));
    batch.answers.into_iter().collect::<Option<_>>().ok_or_else(incomplete)
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
    answers: Vec<Option<Enqueued>>,
    now: DateTime<Utc>,
}

impl Batch<'_> {
    /// Accepts a piece. Who loses a race for a key looks for the winner and goes on with the rest.
    async fn accept(
        &mut self,
        session: &mut Session<'_>,
        rules: &mut Rules,
        chunk: std::ops::Range<usize>,
    ) -> Result<(), Failure> {
        let mut places: Vec<usize> = chunk.collect();
        for race in 0..RACES {
            self.deduplicate(session, &mut places, race > 0).await?;
            let firsts = self.firsts(&places);
            match self.insert(session, rules, &firsts).await {
                Ok(()) => {}
                // Within a statement the first to be taken undoes all of it, and no more.
                Err(Failure::Taken(_)) => continue,
                Err(failure) => return Err(failure),
            }
            places.retain(|place| self.answers[*place].is_none());
            self.follow(&mut places);
            if places.is_empty() {
                return Ok(());
            }
        }
        Err(Failure::Again("jobs with the same unique keys came and went all the while".into()))
    }

    /// Answers for the jobs whose key a live job has (E3).
    async fn deduplicate(
        &mut self,
        session: &mut Session<'_>,
        places: &mut Vec<usize>,
        raced: bool,
    ) -> Result<(), Failure> {
        self.follow(places);
        let keyed: Vec<usize> =
            places.iter().copied().filter(|place| key(&self.jobs[*place]).is_some()).collect();
        for some in keyed.chunks(KEYS) {
            for (place, id) in self.taken(session, some, raced).await? {
                self.answers[place] = Some(Enqueued { id: JobId::new(id), deduplicated: true });
            }
        }
        places.retain(|place| self.answers[*place].is_none());
        Ok(())
    }

    /// Which of these jobs' keys are taken, and by which jobs.
    async fn taken(
        &self,
        session: &mut Session<'_>,
        places: &[usize],
        raced: bool,
    ) -> Result<Vec<(usize, i64)>, Failure> {
        if raced {
            return self.taken_now(session, places).await;
        }
        let seen = self.seen(session, places).await?;
        if !session.is_users() || seen.is_empty() {
            return Ok(seen);
        }
        // A user's transaction may see what has ended since, or what is never committed. Keys that no job has are left alone: a locking read of
        // them would lock gaps.
        let mut ids: Vec<i64> = seen.iter().map(|(_, id)| *id).collect();
        ids.sort_unstable();
        let sql = session.sql;
        let live: Vec<(i64, i64)> =
            session.listed::<(BigInt, BigInt), _>(&sql.still_live, Vec::new(), &ids, Vec::new()).await?;
        let is_live = |id: &i64| live.binary_search_by_key(id, |(id, _)| *id).is_ok();
        Ok(seen.into_iter().filter(|(_, id)| is_live(id)).collect())
    }

    /// The same, as this transaction sees it.
    async fn seen(&self, session: &mut Session<'_>, places: &[usize]) -> Result<Vec<(usize, i64)>, Failure> {
        let sql = session.sql;
        let (text, size) = sql.taken.of(places.len());
        let mut params: Vec<Param<'_>> = Vec::with_capacity(3 * size);
        for place in places {
            let (queue, key) = key(&self.jobs[*place]).unwrap_or_default();
            params.extend([(*place).into(), queue.into(), key.into()]);
        }
        (places.len()..size).for_each(|_| params.extend([0_i64.into(), "".into(), "".into()]));
        let rows: Vec<(i64, i64)> = session.rows::<(BigInt, BigInt), _>(text, params).await?;
        Ok(rows.into_iter().filter_map(|(place, id)| Some((usize::try_from(place).ok()?, id))).collect())
    }

    /// The same, as it is committed by now: a job that has won a race may be newer than what the user's transaction sees.
    async fn taken_now(
        &self,
        session: &mut Session<'_>,
        places: &[usize],
    ) -> Result<Vec<(usize, i64)>, Failure> {
        let sql = session.sql;
        let mut taken = Vec::new();
        for place in places {
            let (queue, key) = key(&self.jobs[*place]).unwrap_or_default();
            let params = vec![queue.into(), key.into()];
            let found = session.row::<(BigInt, BigInt), (i64, i64)>(&sql.taken_now, params).await?;
            taken.extend(found.map(|(id, _)| (*place, id)));
        }
        Ok(taken)
    }

    /// Answers for jobs with the key of one that was answered before them (E4).
    fn follow(&mut self, places: &mut Vec<usize>) {
        let mut ids: HashMap<(&str, &str), JobId> = HashMap::new();
        for (job, answer) in self.jobs.iter().zip(&self.answers) {
            if let (Some(key), Some(answer)) = (key(job), answer) {
                ids.insert(key, answer.id);
            }
        }
        if ids.is_empty() {
            return;
        }
        for place in places.iter() {
            if let Some(id) = key(&self.jobs[*place]).and_then(|key| ids.get(&key)) {
                self.answers[*place] = Some(Enqueued { id: *id, deduplicated: true });
            }
        }
        places.retain(|place| self.answers[*place].is_none());
    }

    /// Of the jobs with one queue and key only the first (E4).
    fn firsts(&self, places: &[usize]) -> Vec<usize> {
        let mut seen = HashMap::new();
        let is_first = |place: &usize| match key(&self.jobs[*place]) {
            Some(key) => *seen.entry(key).or_insert(*place) == *place,
            None => true,
        };
        places.iter().copied().filter(is_first).collect()
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

fn key(job: &NewJob) -> Option<(&str, &str)> {
    Some((job.queue().as_str(), job.unique_key()?.as_str()))
}

fn incomplete() -> Failure {
    Failure::Other("the statement left a job out of its answer".into())
}
