//! Leasing jobs.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use diesel::sql_types::{Array, BigInt, Nullable};
use diesel_async::AsyncPgConnection;
use leasehold_core::{Dequeue, Job, QueueName, QueuePrefix, Queues};
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

/// What a store remembers from claim to claim. Losing it costs a little time and no promise.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) positions: Positions,
    /// Which queue of each prefix was served last (D11).
    turns: Turns,
    /// Which sets of queues had one with limits, and until when that is believed.
    limits: Mutex<HashMap<u64, Instant>>,
}

impl Memory {
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
    let limit = request.limit.as_usize();
    let mut window = limit + 50;
    loop {
        let floors = memory.positions.floors(names);
        let (claim, mut jobs) = claim(conn, sql, names, request, &floors, window).await?;
        if claim.limited {
            return Ok(None);
        }
        jobs.sort_unstable_by_key(|job| (Reverse(job.priority), job.available_at, job.id)); // D12
        memory.positions.learn(names, &floors, &claim, &jobs, limit);
        // With the whole window locked by others, there may be more behind it.
        if !jobs.is_empty() || claim.candidates < window as i64 || window > 20 * limit + 1000 {
            return Ok(Some(jobs));
        }
        window *= 4;
    }
}

async fn claim(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    names: &[QueueName],
    request: &Dequeue,
    floors: &Floors,
    window: usize,
) -> Result<(Claim, Vec<Job>), Failure> {
    type Row = (Nullable<Array<Nullable<BigInt>>>, JobSql);
    let (limit, lease) = (request.limit.get() as i32, micros(request.lease_for));
    let worker = request.worker.as_str();
    let statement = match names {
        [name] => {
            let mut params = vec![name.as_str().into(), limit.into(), lease.into(), worker.into()];
            params.extend(floors.params());
            Statement::<Row>::new(&sql.dequeue_one, params)
        }
        _ => {
            let names = names.iter().map(|name| name.as_str()).collect();
            let mut params = vec![names, limit.into(), (window as i32).into(), lease.into(), worker.into()];
            params.push(floors.queues());
            params.extend(floors.params());
            Statement::new(&sql.dequeue, params)
        }
    };
    let mut rows: Vec<(Option<Vec<Option<i64>>>, JobRow)> = statement.rows(conn).await?;
    let about = rows.iter().position(|(meta, _)| meta.is_some());
    let meta = about.and_then(|place| rows.swap_remove(place).0).unwrap_or_default();
    Ok((Claim::of(&meta), readable(rows.into_iter().map(|(_, job)| job))))
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
