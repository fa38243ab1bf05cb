//! Leasing jobs.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use diesel::sql_types::{Array, BigInt, Nullable};
use diesel_async::AsyncPgConnection;
use leasehold_core::{Dequeue, Job, JobId, QueueName, QueuePrefix, Queues};
use leasehold_sql::{Turns, micros, readable};

use crate::error::Failure;
use crate::positions::{Claim, Floors, Positions};
use crate::row::{JobRow, JobSql};
use crate::selection::Selection;
use crate::session::Session;
use crate::sql::Statements;
use crate::statement::{Param, Statement};

/// How often a claim that finds its snapshot out of date looks again.
const LOOKS: u32 = 20;

/// For how long queues are believed to have limits: so often one claim costs two statements.
const BELIEVED: Duration = Duration::from_secs(1);

/// How many sets of queues are remembered. More are hardly ever in use at once; those forgotten start again.
const SETS: usize = 1024;

/// So many jobs, ready or scheduled, are no longer few.
const FEW: i32 = 16;

/// A look at a few jobs that takes longer than this has to step over the remains of many: floors would help.
const SLOW: Duration = Duration::from_millis(2);

/// What a store remembers from claim to claim. Losing it costs a little time and no promise.
#[derive(Default)]
pub(crate) struct Memory {
    /// Whether the connections have the store's settings: then small queues are claimed from in a way of their own.
    is_tuned: bool,
    positions: Positions,
    /// Which queue of each prefix was served last (D11).
    turns: Turns,
    /// Which sets of queues had one with limits, and until when that is believed.
    limits: Mutex<HashMap<u64, Instant>>,
    /// Queues in which there were only a few jobs.
    small: Mutex<HashSet<QueueName>>,
}

impl Memory {
    pub(crate) fn new(is_tuned: bool) -> Self {
        Self { is_tuned, ..Self::default() }
    }

    /// Whether it is worth to try the claim for queues without limits first.
    fn may_be_unlimited(&self, names: &[QueueName]) -> bool {
        let limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.get(&mark(names)).is_none_or(|until| *until <= Instant::now())
    }

    fn have_limits(&self, names: &[QueueName]) {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        if limits.len() >= SETS {
            limits.clear();
        }
        limits.insert(mark(names), Instant::now() + BELIEVED);
    }

    /// Forgets what was in the queues.
    pub(crate) fn forget(&self) {
        self.positions.forget();
        self.small.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn is_small(&self, name: &QueueName) -> bool {
        self.small.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    fn is_not_small(&self, name: &QueueName) {
        self.small.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Learns from a claim that looked from the beginning, without floors, whether that is quick.
    fn was_swept(&self, name: &QueueName, claim: &Claim) {
        let is_quick = u128::from(claim.search_us.unsigned_abs()) < SLOW.as_micros();
        if self.is_tuned && is_quick && claim.candidates < i64::from(FEW) && claim.skipped.is_none() {
            let mut small = self.small.lock().unwrap_or_else(PoisonError::into_inner);
            if small.len() >= SETS {
                small.clear();
            }
            small.insert(name.clone());
        }
    }
}

fn mark(names: &[QueueName]) -> u64 {
    let mut hasher = DefaultHasher::new();
    names.hash(&mut hasher);
    hasher.finish()
}

/// Leases jobs: in one order over named queues, in turns over a prefix.
pub(crate) async fn dequeue(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    memory: &Memory,
    request: &Dequeue,
) -> Result<Vec<Job>, Failure> {
    match &request.queues {
        Queues::Named(names) => dequeue_named(conn, sql, memory, names, request).await,
        Queues::Matching(prefix) => dequeue_in_turns(conn, sql, memory, prefix, request).await,
    }
}

/// Leases from named queues. Whether they have limits is found out by the claim itself; which statement is tried first is
/// only a guess.
async fn dequeue_named(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    memory: &Memory,
    names: &[QueueName],
    request: &Dequeue,
) -> Result<Vec<Job>, Failure> {
    if memory.may_be_unlimited(names) {
        if let Some(jobs) = dequeue_unlimited(conn, sql, memory, names, request).await? {
            return Ok(jobs);
        }
        memory.have_limits(names);
    }
    dequeue_limited(conn, sql, request, "").await
}

/// Leases from queues without limits; `None` if any of them has some.
async fn dequeue_unlimited(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    memory: &Memory,
    names: &[QueueName],
    request: &Dequeue,
) -> Result<Option<Vec<Job>>, Failure> {
    if let [name] = names
        && memory.is_small(name)
    {
        let few = dequeue_few(conn, sql, name, request).await?;
        if !few.is_quick {
            memory.is_not_small(name);
        }
        if few.saw_all {
            return Ok(Some(few.jobs));
        }
    }
    let limit = request.limit.as_usize();
    let mut window = limit + 50;
    loop {
        let floors = memory.positions.floors(names);
        let (claim, mut jobs) = claim(conn, sql, names, request, &floors, window).await?;
        if claim.limited {
            return Ok(None);
        }
        jobs.sort_unstable_by_key(order); // D12
        memory.positions.learn(names, &floors, &claim, &jobs, limit);
        if let ([name], true) = (names, floors.swept) {
            memory.was_swept(name, &claim);
        }
        // With the whole window locked by others, there may be more behind it.
        if !jobs.is_empty() || claim.candidates < window as i64 || window > 20 * limit + 1000 {
            return Ok(Some(jobs));
        }
        window *= 4;
    }
}

/// What a claim for a queue with a few jobs has brought.
struct Few {
    jobs: Vec<Job>,
    /// Whether there is no more to lease; if not, nothing was leased.
    saw_all: bool,
    is_quick: bool,
}

async fn dequeue_few(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    name: &QueueName,
    request: &Dequeue,
) -> Result<Few, Failure> {
    let mut params: Vec<Param<'_>> = vec![name.as_str().into(), (request.limit.get() as i32).into()];
    params.extend([micros(request.lease_for).into(), request.worker.as_str().into()]);
    params.extend([FEW.into(), micros(SLOW).into()]);
    let (meta, mut jobs) = leased(Statement::new(&sql.dequeue_few, params), conn).await?;
    jobs.sort_unstable_by_key(order); // D12
    let is_so =
        |place: usize, unsaid: bool| meta.get(place).copied().flatten().map_or(unsaid, |said| said == 1);
    Ok(Few { jobs, saw_all: is_so(0, true), is_quick: is_so(0, true) && !is_so(1, false) })
}

/// Where a job stands among those of its claim (D12).
fn order(job: &Job) -> (Reverse<i32>, DateTime<Utc>, JobId) {
    (Reverse(job.priority), job.available_at, job.id)
}

/// What the claims without limits answer: what is to be known about the claim in one row, and a job in each of the others.
type Leased = (Nullable<Array<Nullable<BigInt>>>, JobSql);

async fn leased(
    statement: Statement<'_, Leased>,
    conn: &mut AsyncPgConnection,
) -> Result<(Vec<Option<i64>>, Vec<Job>), Failure> {
    let mut rows: Vec<(Option<Vec<Option<i64>>>, JobRow)> = statement.rows(conn).await?;
    let about = rows.iter().position(|(meta, _)| meta.is_some());
    let meta = about.and_then(|place| rows.swap_remove(place).0).unwrap_or_default();
    Ok((meta, readable(rows.into_iter().map(|(_, job)| job))))
}

async fn claim(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    names: &[QueueName],
    request: &Dequeue,
    floors: &Floors,
    window: usize,
) -> Result<(Claim, Vec<Job>), Failure> {
    let (limit, lease) = (request.limit.get() as i32, micros(request.lease_for));
    let worker = request.worker.as_str();
    let statement = match names {
        [name] => {
            let mut params = vec![name.as_str().into(), limit.into(), lease.into(), worker.into()];
            params.extend(floors.params());
            Statement::new(&sql.dequeue_one, params)
        }
        _ => {
            let names = names.iter().map(|name| name.as_str()).collect();
            let mut params = vec![names, limit.into(), (window as i32).into(), lease.into(), worker.into()];
            params.push(floors.queues());
            params.extend(floors.params());
            Statement::new(&sql.dequeue, params)
        }
    };
    let (meta, jobs) = leased(statement, conn).await?;
    Ok((Claim::of(&meta), jobs))
}

impl Claim {
    /// Reads `meta` of `dequeue.sql`.
    fn of(meta: &[Option<i64>]) -> Self {
        let at = |place: usize| meta.get(place).copied().flatten();
        let skipped = at(5).zip(at(6)).zip(at(7));
        Self {
            now_us: at(0).unwrap_or_default(),
            xmin: at(1).unwrap_or_default(),
            xmax: at(2).unwrap_or(i64::MAX),
            limited: at(3) == Some(1),
            candidates: at(4).unwrap_or_default(),
            skipped: skipped.map(|((priority, time), id)| (priority as i32, (time, id))),
            search_us: at(8).unwrap_or_default(),
        }
    }
}

/// Serves the queues of a prefix one by one in the order of their names, from where the last call stopped (D11).
async fn dequeue_in_turns(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    memory: &Memory,
    prefix: &QueuePrefix,
    request: &Dequeue,
) -> Result<Vec<Job>, Failure> {
    let last = memory.turns.last(prefix);
    let jobs = dequeue_limited(conn, sql, request, last.as_ref().map_or("", |name| name.as_str())).await?;
    if let Some(job) = jobs.last() {
        memory.turns.served(prefix, job.queue.clone());
    }
    Ok(jobs)
}

/// Leases from queues that may have limits.
async fn dequeue_limited(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    request: &Dequeue,
    last: &str,
) -> Result<Vec<Job>, Failure> {
    for _ in 0..LOOKS {
        let look = look(conn, sql, request, last).await?;
        if !look.missing.is_empty() {
            let names = look.missing.iter().map(String::as_str).collect();
            conn.count(&sql.create_limits, vec![names]).await?;
        } else if !look.jobs.is_empty() || !look.is_out_of_date {
            return Ok(look.jobs);
        }
    }
    Ok(Vec::new())
}

/// What one try to lease from queues with limits has brought.
struct Look {
    jobs: Vec<Job>,
    /// Queues with limits whose rows in `job_queue_limit` are yet to be made.
    missing: Vec<String>,
    /// Whether a queue was left out because the snapshot did not show its latest leases.
    is_out_of_date: bool,
}

async fn look(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    request: &Dequeue,
    last: &str,
) -> Result<Look, Failure> {
    let selection = Selection::of(&request.queues);
    let params = vec![
        selection.names(),
        selection.from(),
        selection.to(),
        last.into(),
        Param::Int(Some(request.limit.get() as i32)),
        micros(request.lease_for).into(),
        request.worker.as_str().into(),
    ];
    let mut rows: Vec<(i64, JobRow)> =
        Statement::<(BigInt, JobSql)>::new(&sql.dequeue_limited, params).rows(conn).await?;
    rows.sort_unstable_by_key(|(place, row)| (row.id > 0, *place)); // D12
    let (jobs, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, row)| row.id > 0);
    let is_out_of_date = others.iter().any(|(place, _)| *place == 1);
    let missing = others.into_iter().filter(|(place, _)| *place == 0).map(|(_, row)| row.queue_name);
    Ok(Look {
        jobs: readable(jobs.into_iter().map(|(_, job)| job)),
        missing: missing.collect(),
        is_out_of_date,
    })
}
