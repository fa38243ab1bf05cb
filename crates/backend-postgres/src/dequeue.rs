//! Leasing jobs.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use diesel::sql_types::{Array, BigInt, Nullable};
use diesel_async::AsyncPgConnection;
use diesel_async::methods::LoadQuery;
use leasehold_core::{Dequeue, Job, JobId, QueueName, QueuePrefix, Queues};
use leasehold_sql::{Turns, micros, readable};

use crate::error::Failure;
use crate::floors::{Claim, FloorMap, Floors};
use crate::row::{JobRow, JobSql};
use crate::selection::Selection;
use crate::session::Session;
use crate::sql::Statements;
use crate::statement::{Param, Statement};

/// How often a claim looks again: because its snapshot is out of date, or because what it has looked at is locked by other
/// transactions. Each time another claim got ahead, or more is looked at.
const LOOKS: u32 = 500;

/// How often a statement is repeated that failed because of a concurrent transaction.
const REPEATS: u32 = 3;

/// So many more jobs than are wanted are looked at in one go, since other transactions may have locked some.
const BEYOND: usize = 50;

/// More than this are never looked at in one go.
const MOST: usize = 10_000_000;

/// For how long queues are believed to have limits: so often one claim costs two statements.
const BELIEVED: Duration = Duration::from_secs(1);

/// How many sets of queues are remembered. More are hardly ever in use at once; those forgotten start again.
const SETS: usize = 1024;

/// So many jobs, ready or scheduled, are no longer few.
const FEW: i32 = 16;

/// A look at a few jobs that takes longer than this has to step over many dead rows: floors would help.
const SLOW: Duration = Duration::from_millis(2);

/// For how long a queue in which a look at a few jobs was slow, or did not see all, is claimed from with floors: at first, and at most.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Which statement a claim tries first. The statements must answer alike, so that a wrong guess costs time and no promise.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FirstTry {
    /// The one that earlier claims have shown to be the best.
    #[default]
    Learned,
    /// For tests: the one for queues with a few jobs, wherever one queue is named.
    Small,
    /// For tests: the one for queues with limits.
    Limited,
}

/// What a store remembers from claim to claim. Losing it costs a little time and no promise.
#[derive(Default)]
pub(crate) struct Memory {
    first_try: FirstTry,
    /// Whether the connections have the store's settings: then small queues are claimed from in a way of their own.
    is_tuned: bool,
    floors: FloorMap,
    /// Which queue of each prefix was served last (D11).
    turns: Turns,
    /// Which sets of queues had one with limits, and until when that is believed.
    limits: Mutex<HashMap<u64, Instant>>,
    /// Queues in which there were only a few jobs.
    sizes: Mutex<HashMap<QueueName, Size>>,
}

/// How a single queue is best claimed from.
#[derive(Clone, Copy)]
enum Size {
    /// It had a few jobs when it was last looked at.
    Small { wait: Duration },
    /// It had more, or to look at a few took long. Not to be tried again before then.
    Large { until: Instant, wait: Duration },
}

impl Memory {
    pub(crate) fn new(is_tuned: bool, first_try: FirstTry) -> Self {
        Self { is_tuned, first_try, ..Self::default() }
    }

    /// Whether it is worth to try the claim for queues without limits first.
    fn may_be_unlimited(&self, names: &[QueueName]) -> bool {
        match self.first_try {
            FirstTry::Learned => {}
            FirstTry::Small => return true,
            FirstTry::Limited => return false,
        }
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

    fn is_small(&self, name: &QueueName) -> bool {
        if self.first_try == FirstTry::Small {
            return true;
        }
        let sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(sizes.get(name), Some(Size::Small { .. }))
    }

    fn is_not_small(&self, name: &QueueName) {
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(size) = sizes.get_mut(name)
            && let Size::Small { wait } = *size
        {
            *size = Size::Large { until: Instant::now() + wait, wait: (2 * wait).min(PATIENCE.1) };
        }
    }

    /// Learns from a claim with floors whether the queue has only a few jobs.
    fn learn_size(&self, name: &QueueName, claim: &Claim) {
        if !self.is_tuned || claim.candidates >= FEW as usize || claim.skipped.is_some() {
            return;
        }
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        if sizes.len() >= SETS {
            sizes.clear();
        }
        match sizes.get(name) {
            Some(Size::Large { until, .. }) if Instant::now() < *until => {}
            Some(Size::Large { wait, .. } | Size::Small { wait }) => {
                let wait = *wait;
                sizes.insert(name.clone(), Size::Small { wait });
            }
            None => {
                sizes.insert(name.clone(), Size::Small { wait: PATIENCE.0 });
            }
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
    let limit = request.limit.as_usize();
    let (mut jobs, mut beyond) = (Vec::new(), BEYOND);
    if let [name] = names
        && memory.is_small(name)
    {
        let few = dequeue_few(conn, sql, name, request).await?;
        if !few.is_quick {
            memory.is_not_small(name);
        }
        jobs = few.jobs;
        if few.saw_all || jobs.len() >= limit {
            return Ok(Some(jobs));
        }
    }
    for _ in 0..LOOKS {
        let wanted = limit - jobs.len();
        let look = look_from_floors(conn, sql, memory, names, request, wanted, wanted + beyond).await?;
        let Some(look) = look else {
            return if jobs.is_empty() { Ok(None) } else { Ok(Some(jobs)) };
        };
        jobs.extend(look.jobs);
        // With some of what was looked at locked or changed by others, there may be more behind it (D14).
        if look.leased >= wanted || !look.is_cut_short {
            jobs.sort_unstable_by_key(order); // D12
            return Ok(Some(jobs));
        }
        beyond = (4 * beyond).min(MOST);
    }
    Ok(Some(enough(jobs)?))
}

/// What a claim has leased that looked as often as it may. It has never seen all there is, so nothing is no answer (D14).
fn enough(mut jobs: Vec<Job>) -> Result<Vec<Job>, Failure> {
    if jobs.is_empty() {
        return Err(Failure::Again("other claims were always ahead".into()));
    }
    jobs.sort_unstable_by_key(order); // D12
    Ok(jobs)
}

/// What one look has brought.
struct Look {
    jobs: Vec<Job>,
    /// How many jobs were leased, readable or not.
    leased: usize,
    /// Whether there may be more behind what was looked at.
    is_cut_short: bool,
}

/// Leases up to `wanted` jobs of the first `looked_at`; `None` if any of the queues has limits.
async fn look_from_floors(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    memory: &Memory,
    names: &[QueueName],
    request: &Dequeue,
    wanted: usize,
    looked_at: usize,
) -> Result<Option<Look>, Failure> {
    let floors = memory.floors.floors(names);
    let answer = claim(conn, sql, names, request, &floors, wanted, looked_at).await;
    let (claim, mut jobs) = answer.inspect_err(|_| memory.floors.clear())?;
    if claim.limited {
        return Ok(None);
    }
    jobs.sort_unstable_by_key(order);
    memory.floors.learn(names, &claim, &jobs, wanted);
    if let [name] = names
        && claim.leased < wanted
    {
        memory.learn_size(name, &claim);
    }
    Ok(Some(Look {
        leased: claim.leased,
        is_cut_short: claim.candidates >= looked_at || claim.changed > 0,
        jobs,
    }))
}

/// What a claim for a queue with a few jobs has brought.
struct Few {
    jobs: Vec<Job>,
    /// Whether there is no more to lease.
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
    let (metas, mut jobs) = leased(conn, &sql.dequeue_few_v2, params).await?;
    jobs.sort_unstable_by_key(order); // D12
    let saw_all = metas.iter().all(|meta| meta.first() == Some(&Some(1)));
    let is_slow = metas.iter().any(|meta| meta.get(1) == Some(&Some(1)));
    Ok(Few { jobs, saw_all, is_quick: saw_all && !is_slow })
}

/// Where a job stands among those of its claim (D12).
fn order(job: &Job) -> (Reverse<i32>, DateTime<Utc>, JobId) {
    (Reverse(job.priority), job.available_at, job.id)
}

/// What the claims without limits answer: rows about the claim, and a job in each of the others.
type Leased = (Nullable<Array<Nullable<BigInt>>>, JobSql);

async fn leased(
    conn: &mut AsyncPgConnection,
    text: &str,
    params: Vec<Param<'_>>,
) -> Result<(Vec<Vec<Option<i64>>>, Vec<Job>), Failure> {
    let rows: Vec<(Option<Vec<Option<i64>>>, JobRow)> = rows::<Leased, _>(conn, text, params).await?;
    let (about, jobs): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(meta, _)| meta.is_some());
    let metas = about.into_iter().filter_map(|(meta, _)| meta).collect();
    Ok((metas, readable(jobs.into_iter().map(|(_, job)| job))))
}

async fn claim(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    names: &[QueueName],
    request: &Dequeue,
    floors: &Floors,
    wanted: usize,
    looked_at: usize,
) -> Result<(Claim, Vec<Job>), Failure> {
    let (wanted, lease) = (wanted as i32, micros(request.lease_for));
    let worker = request.worker.as_str();
    let (text, params) = match names {
        [name] => {
            let mut params =
                vec![name.as_str().into(), wanted.into(), lease.into(), worker.into(), floors.server()];
            params.extend(floors.params());
            (&sql.dequeue_one_v2, params)
        }
        _ => {
            let names = names.iter().map(|name| name.as_str()).collect();
            let mut params =
                vec![names, wanted.into(), (looked_at as i32).into(), lease.into(), worker.into()];
            params.extend([floors.server(), floors.queues()]);
            params.extend(floors.params());
            (&sql.dequeue_v2, params)
        }
    };
    let (metas, jobs) = leased(conn, text, params).await?;
    Ok((Claim::of(metas.first().map_or(&[], Vec::as_slice)), jobs))
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
    let limit = request.limit.as_usize();
    let (mut jobs, mut beyond) = (Vec::new(), 0);
    for _ in 0..LOOKS {
        let look = look_at_limits(conn, sql, request, last, limit - jobs.len(), beyond).await?;
        let is_enough = jobs.len() + look.leased >= limit;
        jobs.extend(look.jobs);
        if !look.missing.is_empty() {
            let names = look.missing.iter().map(String::as_str).collect();
            match conn.count(&sql.create_limits, vec![names]).await {
                Ok(_) | Err(Failure::Again(_) | Failure::OldSnapshot(_)) => {} // Another claim has made them.
                Err(failure) => return Err(failure),
            }
        } else if is_enough || !(look.is_cut_short || look.is_out_of_date) {
            if let Queues::Named(_) = &request.queues {
                jobs.sort_by_key(order); // D12
            }
            return Ok(jobs);
        } else if look.is_cut_short {
            beyond = (4 * beyond).clamp(BEYOND, MOST);
        }
    }
    enough(jobs)
}

/// What one try to lease from queues with limits has brought.
struct LimitedLook {
    jobs: Vec<Job>,
    /// How many jobs were leased, readable or not.
    leased: usize,
    /// Queues with limits whose rows in `job_queue_limit` are yet to be made.
    missing: Vec<String>,
    /// Whether a queue was left out because the snapshot did not show its latest leases.
    is_out_of_date: bool,
    /// Whether jobs were passed over because other transactions have locked them, and there may be more behind them.
    is_cut_short: bool,
}

async fn look_at_limits(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    request: &Dequeue,
    last: &str,
    wanted: usize,
    beyond: usize,
) -> Result<LimitedLook, Failure> {
    let selection = Selection::of(&request.queues);
    let params = vec![
        selection.names(),
        selection.from(),
        selection.to(),
        last.into(),
        (wanted as i32).into(),
        micros(request.lease_for).into(),
        request.worker.as_str().into(),
        (beyond as i32).into(),
    ];
    let mut rows: Vec<(i64, JobRow)> =
        rows::<(BigInt, JobSql), _>(conn, &sql.dequeue_limited_v3, params).await?;
    rows.sort_unstable_by_key(|(place, row)| (row.id > 0, *place)); // D12
    let (jobs, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, row)| row.id > 0);
    let said = |wanted: i64| others.iter().any(|(place, _)| *place == wanted);
    let (is_out_of_date, is_cut_short) = (said(1), said(2));
    let missing = others.into_iter().filter(|(place, _)| *place == 0).map(|(_, row)| row.queue_name);
    Ok(LimitedLook {
        leased: jobs.len(),
        missing: missing.collect(),
        is_out_of_date,
        is_cut_short,
        jobs: readable(jobs.into_iter().map(|(_, job)| job)),
    })
}

/// Sends the statement of a claim, and reads its rows. At an isolation level above READ COMMITTED the server refuses a statement (SQLSTATE
/// 40001) if another transaction has changed a row after the snapshot was taken. The store sets the level only on connections that it opens;
/// on the others that level can be the default of the role or the database. Such a statement has changed nothing, so it is repeated.
async fn rows<'a, Row: 'a, U: Send>(
    conn: &mut AsyncPgConnection,
    text: &str,
    params: Vec<Param<'a>>,
) -> Result<Vec<U>, Failure>
where
    for<'c> Statement<'a, Row>: LoadQuery<'a, &'c AsyncPgConnection, U>,
{
    for _ in 0..REPEATS {
        match Statement::<Row>::new(text, params.clone()).rows(conn).await {
            Err(Failure::Again(error) | Failure::OldSnapshot(error)) => {
                tracing::debug!(%error, "a claim is repeated");
            }
            answer => return answer,
        }
    }
    Statement::<Row>::new(text, params).rows(conn).await
}
