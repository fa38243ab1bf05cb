//! Which jobs come first in their queues: looked for without a lock.
//!
//! The index of a queue is walked level by level: the highest priority that it has, the next lower, and so on, each only as
//! long as jobs are still wanted. What waits for a later time is stepped over with its whole level, so that neither such jobs nor
//! the length of the queue cost anything.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Datetime, Text};
use leasehold_core::QueueName;
use leasehold_sql::{Stored, StoredTime};

use crate::error::Failure;
use crate::row::Time;
use crate::session::Session;
use crate::statement::Param;

/// So many queues are looked at in one go.
pub(crate) const BRANCHES: usize = 64;

/// So many priorities of a queue are stepped over one by one, and then more and more in one go.
const SINGLE: u32 = 16;
/// So many jobs are read in one go for that at most, or as many as are wanted.
const MOST: usize = 1024;

/// Before every place: priorities are 32 bits wide.
pub(crate) const FIRST: i64 = i64::MIN;

/// A job that may be leased.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) id: i64,
    /// Its priority, the other way round.
    pub(crate) place: i64,
    pub(crate) available_at: DateTime<Utc>,
}

/// A queue from which something is wanted.
#[derive(Debug, Clone)]
pub(crate) struct Want {
    pub(crate) queue: QueueName,
    pub(crate) count: usize,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The store's time; none if there was nothing at all.
    pub(crate) now: Option<DateTime<Utc>>,
    /// Whether anybody has set a policy.
    pub(crate) has_policies: bool,
    /// For each want, its first jobs that are Ready.
    pub(crate) lanes: Vec<Vec<Candidate>>,
}

impl Found {
    /// All of them, in the order in which they are leased (D6).
    pub(crate) fn in_order(self) -> Vec<Candidate> {
        let several = self.lanes.len() > 1;
        let mut all: Vec<Candidate> = self.lanes.into_iter().flatten().collect();
        if several {
            all.sort_unstable_by_key(|job| (job.place, job.available_at, job.id));
        }
        all
    }
}

/// One queue on its way down.
struct Walk {
    lane: usize,
    /// Only what lies beyond it.
    beyond: i64,
    /// How many rows to read.
    rows: usize,
    /// How many steps it has done.
    steps: u32,
}

impl Walk {
    /// The next step: so many jobs are still wanted from there on.
    fn next(&self, beyond: i64, wanted: usize) -> Self {
        let steps = self.steps + 1;
        let more = wanted.saturating_mul(1 << steps.saturating_sub(SINGLE).min(10)).min(MOST);
        Self { lane: self.lane, beyond, rows: wanted.max(more), steps }
    }
}

/// The first Ready jobs of each queue.
pub(crate) async fn find(session: &mut Session<'_>, wants: &[Want]) -> Result<Found, Failure> {
    let mut found = Found { lanes: vec![Vec::new(); wants.len()], ..Found::default() };
    let all = wants.iter().enumerate().filter(|(_, want)| want.count > 0);
    let mut walks: Vec<Walk> =
        all.map(|(lane, want)| Walk { lane, beyond: FIRST, rows: want.count, steps: 0 }).collect();
    while !walks.is_empty() {
        let mut next = Vec::new();
        for some in walks.chunks(BRANCHES) {
            let heads = heads(session, wants, some).await?;
            if let Some(head) = heads.first() {
                found.now.get_or_insert(head.now);
                found.has_policies |= head.has_policies;
            }
            next.extend(step(wants, some, heads, &mut found));
        }
        walks = next;
    }
    Ok(found)
}

/// A row of `heads.sql`.
pub(crate) struct Head {
    pub(crate) id: i64,
    pub(crate) queue: Stored,
    pub(crate) place: i64,
    pub(crate) available_at: DateTime<Utc>,
    pub(crate) now: DateTime<Utc>,
    has_policies: bool,
}

async fn heads(session: &mut Session<'_>, wants: &[Want], walks: &[Walk]) -> Result<Vec<Head>, Failure> {
    let branches: Vec<_> =
        walks.iter().map(|walk| (wants[walk.lane].queue.as_str(), walk.beyond, walk.rows)).collect();
    read_heads(session, &branches).await
}

/// For each queue, so many jobs beyond a place.
pub(crate) async fn read_heads(
    session: &mut Session<'_>,
    branches: &[(&str, i64, usize)],
) -> Result<Vec<Head>, Failure> {
    type Row = (BigInt, Text, BigInt, Datetime, Datetime, BigInt);
    let sql = session.sql;
    let (text, size) = sql.heads.of(branches.len());
    let mut params: Vec<Param<'_>> = Vec::with_capacity(3 * size);
    for (queue, beyond, rows) in branches {
        params.extend([(*queue).into(), (*beyond).into(), (*rows).into()]);
    }
    (branches.len()..size).for_each(|_| params.extend(["".into(), FIRST.into(), 0_i64.into()]));
    let rows: Vec<(i64, Stored, i64, Time, Time, i64)> = session.rows::<Row, _>(text, params).await?;
    let head = |(id, queue, place, available_at, now, policies): (_, _, _, Time, Time, i64)| Head {
        id,
        queue,
        place,
        // What is in no calendar hides nothing behind it: it is leased, passed over, and some day a dead letter.
        available_at: available_at.or_epoch(),
        now: now.or_epoch(),
        has_policies: policies > 0,
    };
    Ok(rows.into_iter().map(head).collect())
}

/// Takes what is Ready, and tells where to look further.
fn step(wants: &[Want], walks: &[Walk], heads: Vec<Head>, found: &mut Found) -> Vec<Walk> {
    let lanes: HashMap<&str, &Walk> =
        walks.iter().map(|walk| (wants[walk.lane].queue.as_str(), walk)).collect();
    let mut rows: HashMap<usize, Vec<Head>> = HashMap::new();
    for head in heads {
        if let Some(walk) = lanes.get(&*head.queue) {
            rows.entry(walk.lane).or_default().push(head);
        }
    }
    let mut next = Vec::new();
    for walk in walks {
        let rows = rows.remove(&walk.lane).unwrap_or_default();
        let want = &wants[walk.lane];
        let (is_cut, last) = (rows.len() == walk.rows, rows.last().map(|head| (head.place, is_ready(head))));
        take(want, rows, &mut found.lanes[walk.lane]);
        let lane = &found.lanes[walk.lane];
        let left = want.count - lane.len();
        let Some((place, is_ready)) = last.filter(|_| is_cut && left > 0) else {
            continue;
        };
        if is_ready {
            // There may be more at this place: those that are known come again.
            let known = lane.iter().rev().take_while(|job| job.place == place).count();
            next.push(walk.next(place - 1, known + left));
        } else {
            next.push(walk.next(place, left));
        }
    }
    next
}

fn is_ready(head: &Head) -> bool {
    head.available_at <= head.now
}

fn take(want: &Want, heads: Vec<Head>, lane: &mut Vec<Candidate>) {
    for head in heads.into_iter().filter(is_ready) {
        if lane.len() < want.count && !lane.iter().rev().any(|job| job.id == head.id) {
            lane.push(Candidate { id: head.id, place: head.place, available_at: head.available_at });
        }
    }
}
