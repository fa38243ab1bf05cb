//! Leasing jobs.
//!
//! Candidates are looked for without a lock, then locked by their ids, as far as nobody else has locked them, and leased in the
//! same transaction. Queues with limits have a row each in `job_queue_limit`, which is locked before anything else: who claims
//! from such a queue claims alone.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use diesel::sql_types::Text;
use leasehold_core::{
    Dequeue, EffectivePolicy, Job, Lease, LeaseFor, QueueName, QueueOrder, QueuePrefix, Queues, time,
};
use leasehold_sql::{Rules, Stored, Turns, after, beyond, readable};

use crate::candidates::{Candidate, Want, find};
use crate::endings::as_locked;
use crate::error::Failure;
use crate::limits::{self, Limited};
use crate::policy::rules;
use crate::row::{JobRow, JobSql};
use crate::session::Session;

/// So many more candidates than wanted are looked for: some may be locked by others.
const SPARE: usize = 16;
/// How often a claim looks further because some of what it has found was locked by other transactions (D14). Each look is at
/// more jobs than the last.
const LOOKS: u32 = 40;
/// How many more queues are asked for than can be served: some may be paused or have nothing to give.
const SPARE_QUEUES: usize = 16;
/// For how long policies are believed to be there: so often one claim looks in vain.
const BELIEVED: Duration = Duration::from_secs(1);

/// What a store remembers from claim to claim. Losing it costs a little time and no promise.
#[derive(Default)]
pub(crate) struct Memory {
    turns: Turns,
    /// Until when policies are believed to be there.
    policies: Mutex<Option<Instant>>,
    /// Jobs that claims of this store are about to lease: other claims of it need not try.
    wanted: Mutex<HashSet<i64>>,
}

impl Memory {
    fn believes_in_policies(&self) -> bool {
        let until = *self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| until > Instant::now())
    }

    fn has_seen_policies(&self) {
        *self.policies.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + BELIEVED);
    }

    fn wanted(&self) -> MutexGuard<'_, HashSet<i64>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Jobs that a claim wants, and nobody else in this store until this is dropped.
struct Wanted<'m> {
    memory: &'m Memory,
    ids: Vec<i64>,
}

impl<'m> Wanted<'m> {
    fn new(memory: &'m Memory) -> Self {
        Self { memory, ids: Vec::new() }
    }

    /// The next `most` of the candidates that nobody else wants.
    fn next(&mut self, candidates: &mut impl Iterator<Item = Candidate>, most: usize) -> Vec<Candidate> {
        let mut wanted = self.memory.wanted();
        let next: Vec<Candidate> = candidates.filter(|job| wanted.insert(job.id)).take(most).collect();
        self.ids.extend(next.iter().map(|job| job.id));
        next
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let mut wanted = self.memory.wanted();
        for id in &self.ids {
            wanted.remove(id);
        }
    }
}

/// Leases jobs: in one order over named queues, in turns over a prefix.
pub(crate) async fn dequeue(
    session: &mut Session<'_>,
    memory: &Memory,
    request: &Dequeue,
) -> Result<Vec<Job>, Failure> {
    match &request.queues {
        Queues::Named(names) => dequeue_named(session, memory, names, request).await,
        Queues::Matching(prefix) => dequeue_in_turns(session, memory, prefix, request).await,
    }
}

async fn dequeue_named(
    session: &mut Session<'_>,
    memory: &Memory,
    names: &[QueueName],
    request: &Dequeue,
) -> Result<Vec<Job>, Failure> {
    if !memory.believes_in_policies() {
        if let Some(jobs) = dequeue_freely(session, memory, names, request).await? {
            return Ok(jobs);
        }
        memory.has_seen_policies();
    }
    dequeue_by_rules(session, names, request).await
}

/// Leases from queues as long as nobody has set a policy; `None` if somebody has.
async fn dequeue_freely(
    session: &mut Session<'_>,
    memory: &Memory,
    names: &[QueueName],
    request: &Dequeue,
) -> Result<Option<Vec<Job>>, Failure> {
    let limit = request.limit.as_usize();
    let (mut jobs, mut spare) = (Vec::new(), SPARE.min(limit));
    for _ in 0..LOOKS {
        let open = limit - jobs.len();
        let window = open + spare + memory.wanted().len();
        let wants: Vec<Want> =
            names.iter().map(|queue| Want { queue: queue.clone(), count: window }).collect();
        let found = find(session, &wants).await?;
        if found.has_policies {
            return Ok(Some(jobs).filter(|jobs| !jobs.is_empty()));
        }
        let Some(now) = found.now else {
            return Ok(Some(jobs));
        };
        let is_cut = found.lanes.iter().any(|lane| lane.len() == window);
        let (mut wanted, mut candidates) = (Wanted::new(memory), found.in_order().into_iter());
        let mut claim = Claim::new(request, now);
        while claim.rows.len() < open {
            let next = wanted.next(&mut candidates, open - claim.rows.len());
            if next.is_empty() {
                break;
            }
            claim.lock(session, &next, open).await?;
        }
        let is_enough = claim.rows.len() >= open || !is_cut;
        if claim.rows.is_empty() {
            session.roll_back().await?;
        } else {
            match claim.lease(session, &mut Rules::default()).await {
                Ok(more) => jobs.extend(more),
                // Those of the looks before are leased: the caller must have them.
                Err(failure) if !jobs.is_empty() && !failure.is_lost() => {
                    session.roll_back().await?;
                    return Ok(Some(jobs));
                }
                Err(failure) => return Err(failure),
            }
        }
        if is_enough || jobs.len() >= limit {
            return Ok(Some(jobs));
        }
        spare = 4 * (limit + spare);
    }
    Ok(Some(jobs))
}

/// Leases from queues, each by its own policy.
async fn dequeue_by_rules(
    session: &mut Session<'_>,
    names: &[QueueName],
    request: &Dequeue,
) -> Result<Vec<Job>, Failure> {
    let (now, mut rules) = rules(session).await?;
    let mut limited = Limited::default();
    let mut claim = Claim::new(request, now);
    for _ in 0..LOOKS {
        let lanes = lanes_of(session, &mut rules, &mut limited, names, &claim).await?;
        let mut candidates: Vec<Candidate> = lanes.into_iter().flatten().collect();
        candidates.sort_unstable_by_key(|job| (job.place, job.available_at, job.id));
        if claim.lock_or_pass(session, &candidates).await? == Passed::None {
            break;
        }
    }
    limited.count_in(session, &mut rules, &claim.queues(), now).await?;
    claim.lease(session, &mut rules).await
}

/// One job of each queue, then a second of each, and so on, from where the last call stopped (D11).
async fn dequeue_in_turns(
    session: &mut Session<'_>,
    memory: &Memory,
    prefix: &QueuePrefix,
    request: &Dequeue,
) -> Result<Vec<Job>, Failure> {
    let (now, mut rules) = rules(session).await?;
    let last = memory.turns.last(prefix);
    let middle = last.map_or_else(|| prefix.as_str().to_owned(), |last| after(last.as_str()));
    let spans = [(middle.clone(), beyond(prefix.as_str())), (prefix.as_str().to_owned(), middle)];
    let mut limited = Limited::default();
    let mut claim = Claim::new(request, now);
    for _ in 0..LOOKS {
        let lanes = lanes_in(session, &mut rules, &mut limited, &spans, &claim).await?;
        if claim.lock_or_pass(session, &by_rounds(lanes)).await? == Passed::None {
            break;
        }
    }
    limited.count_in(session, &mut rules, &claim.queues(), now).await?;
    if let Some(queue) = claim.last_queue() {
        memory.turns.served(prefix, queue);
    }
    claim.lease(session, &mut rules).await
}

/// What the queues between these names have to give, as many queues as jobs are wanted.
async fn lanes_in(
    session: &mut Session<'_>,
    rules: &mut Rules,
    limited: &mut Limited,
    spans: &[(String, String)],
    claim: &Claim<'_>,
) -> Result<Vec<Vec<Candidate>>, Failure> {
    let limit = claim.request.limit.as_usize();
    let mut lanes: Vec<Vec<Candidate>> = Vec::new();
    for (from, to) in spans {
        let mut from = from.clone();
        while lanes.len() < limit {
            let page = limit - lanes.len() + SPARE_QUEUES;
            let found = names(session, &from, to, page).await?;
            let is_last = found.len() < page;
            let next = found.last().map(|name| after(name));
            let names: Vec<QueueName> =
                found.iter().filter_map(|name| QueueName::new(&**name).ok()).collect();
            let more = lanes_of(session, rules, limited, &names, claim).await?;
            lanes.extend(more.into_iter().filter(|lane| !lane.is_empty()));
            // A name that cannot be read may sort after what it is marked as: never go back.
            match next.filter(|next| !is_last && *next > from) {
                Some(next) => from = next,
                None => break,
            }
        }
    }
    lanes.truncate(limit);
    Ok(lanes)
}

/// Names of queues with live jobs, from one on and before another.
async fn names(session: &mut Session<'_>, from: &str, to: &str, page: usize) -> Result<Vec<Stored>, Failure> {
    let sql = session.sql;
    let params = vec![from.into(), to.into(), page.into()];
    session.rows::<Text, _>(&sql.queues, params).await
}

/// What each of these queues has to give, besides what the claim has tried to lock already.
async fn lanes_of(
    session: &mut Session<'_>,
    rules: &mut Rules,
    limited: &mut Limited,
    names: &[QueueName],
    claim: &Claim<'_>,
) -> Result<Vec<Vec<Candidate>>, Failure> {
    limited.add(session, rules, names).await?;
    let (limit, tried, locked) = (claim.request.limit.as_usize(), claim.places.len(), claim.queues());
    let mut wants = Vec::with_capacity(names.len());
    let mut mosts = Vec::with_capacity(names.len());
    let mut heads: HashMap<usize, Candidate> = HashMap::new();
    for (lane, queue) in names.iter().enumerate() {
        let most = match limited.open(rules, queue, limit, claim.now) {
            limits::Open::Closed => 0,
            limits::Open::Head(head) => {
                heads.extend(head.map(|head| (lane, head)));
                0
            }
            limits::Open::Count(count) => {
                let most = count.saturating_sub(locked.get(queue).map_or(0, |count| *count as usize));
                // A limit is kept; of other queues more is looked at each time.
                if limits::has_limits(rules.of(queue)) { most } else { most + tried }
            }
        };
        mosts.push(most);
        wants.push(Want { queue: queue.clone(), count: if most == 0 { 0 } else { most + tried } });
    }
    let mut lanes = find(session, &wants).await?.lanes;
    heads.into_iter().for_each(|(lane, head)| lanes[lane].push(head));
    for (lane, most) in lanes.iter_mut().zip(mosts) {
        lane.retain(|job| !claim.places.contains_key(&job.id));
        lane.truncate(most.max(1));
    }
    Ok(lanes)
}

/// The first of each lane, then the second of each, and so on.
fn by_rounds(lanes: Vec<Vec<Candidate>>) -> Vec<Candidate> {
    let mut lanes: Vec<_> = lanes.into_iter().map(Vec::into_iter).collect();
    let mut all = Vec::new();
    loop {
        let round: Vec<Candidate> = lanes.iter_mut().filter_map(Iterator::next).collect();
        if round.is_empty() {
            return all;
        }
        all.extend(round);
    }
}

/// Whether candidates were passed over because other transactions have locked them, while more are wanted.
#[derive(PartialEq, Eq)]
enum Passed {
    None,
    Some,
}

/// Jobs on their way to be leased.
struct Claim<'a> {
    request: &'a Dequeue,
    now: DateTime<Utc>,
    /// Where each candidate stands in the order in which they are leased.
    places: HashMap<i64, usize>,
    /// Those that were locked, in that order.
    rows: Vec<JobRow>,
}

impl<'a> Claim<'a> {
    fn new(request: &'a Dequeue, now: DateTime<Utc>) -> Self {
        Self { request, now, places: HashMap::new(), rows: Vec::new() }
    }

    /// Locks as many of the candidates as are wanted.
    async fn lock_or_pass(
        &mut self,
        session: &mut Session<'_>,
        candidates: &[Candidate],
    ) -> Result<Passed, Failure> {
        let (limit, before) = (self.request.limit.as_usize(), self.rows.len());
        self.lock(session, candidates, limit).await?;
        let is_complete = self.rows.len() >= limit || self.rows.len() - before == candidates.len();
        Ok(if is_complete { Passed::None } else { Passed::Some })
    }

    /// Locks the first `limit` of the candidates that no other transaction has locked (D2, D5).
    async fn lock(
        &mut self,
        session: &mut Session<'_>,
        candidates: &[Candidate],
        limit: usize,
    ) -> Result<(), Failure> {
        if candidates.is_empty() {
            return Ok(());
        }
        let first = self.places.len();
        self.places.extend(candidates.iter().enumerate().map(|(place, job)| (job.id, first + place)));
        let sql = session.sql;
        session.begin().await?;
        let mut left = candidates;
        while self.rows.len() < limit && !left.is_empty() {
            let (some, rest) = left.split_at((limit - self.rows.len()).min(left.len()));
            let mut ids: Vec<i64> = some.iter().map(|job| job.id).collect();
            ids.sort_unstable();
            let after = vec![self.now.into()];
            self.rows.extend(session.listed::<JobSql, JobRow>(&sql.lock, Vec::new(), &ids, after).await?);
            left = rest;
        }
        self.rows.sort_unstable_by_key(|row| self.places.get(&row.id).copied()); // D12
        Ok(())
    }

    /// How many jobs of each queue there are.
    fn queues(&self) -> BTreeMap<QueueName, u32> {
        let mut counts = BTreeMap::new();
        let names = self.rows.iter().filter_map(|row| QueueName::new(&*row.queue_name).ok());
        names.for_each(|queue| *counts.entry(queue).or_default() += 1);
        counts
    }

    fn last_queue(&self) -> Option<QueueName> {
        self.rows.iter().rev().find_map(|row| QueueName::new(&*row.queue_name).ok())
    }

    /// Leases what was locked. Queues with a shorter `max_lease` get a statement of their own.
    async fn lease(self, session: &mut Session<'_>, rules: &mut Rules) -> Result<Vec<Job>, Failure> {
        let Self { request, now, rows, .. } = self;
        let mut by_length: BTreeMap<LeaseFor, Vec<i64>> = BTreeMap::new();
        for row in &rows {
            by_length.entry(length(rules.of_stored(&row.queue_name), request)).or_default().push(row.id);
        }
        let sql = session.sql;
        for (length, mut ids) in by_length {
            ids.sort_unstable();
            let until = time::later(now, length.get()); // D7
            let before = vec![until.into(), request.worker.as_str().into(), now.into(), now.into()];
            as_locked(session.count_listed(&sql.lease, before, &ids, Vec::new()).await?, ids.len())?;
        }
        session.commit().await?;
        let leased = |mut job: Job| {
            let until = time::later(now, length(rules.of(&job.queue), request).get());
            job.lease = Some(Lease { until, worker: request.worker.clone() });
            job.attempts += 1;
            job.epoch = job.epoch.next();
            job.first_leased_at.get_or_insert(now);
            job.updated_at = now;
            job
        };
        Ok(readable::<_, Job>(rows).into_iter().map(leased).collect())
    }
}

/// For how long a job of a queue is leased (P6).
fn length(policy: &EffectivePolicy, request: &Dequeue) -> LeaseFor {
    policy.lease_for(request.lease_for)
}

/// Whether a queue lets its jobs out one at a time.
pub(crate) fn is_fifo(policy: &EffectivePolicy) -> bool {
    policy.order == QueueOrder::Fifo
}
