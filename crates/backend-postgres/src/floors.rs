//! Where claims may begin to look.
//!
//! Every lease and every verdict leaves a dead row at the head of the index of ready jobs. Vacuum removes dead rows, but not
//! while any session holds an old snapshot: then each claim would step over all the jobs that were claimed since that snapshot was
//! taken. So a store remembers, per queue and priority, a *floor*: a place `(available_at, id)`, and the snapshot of the claim that
//! has cleared everything below it.
//!
//! # Why no job is missed (D14)
//!
//! Each leasable row has the number of the transaction that made it what it is, in `written`. A default and a trigger see to that,
//! also for changes by hand, for older programs and for replication. A transaction is *decided* in a snapshot if it had ended when
//! the snapshot was taken: its number is below the snapshot's `xmax` and not among the numbers that were in progress.
//!
//! A claim that has left no leasable row below a place sets a floor: **a leasable row below this place was written by a transaction
//! that is not decided in the snapshot of this claim.** That stays true for ever:
//!
//! * A row whose transaction was decided and committed was visible to the claim, unless a later transaction had changed it. The claim
//!   has leased it; a row that it has passed over ends the floor ([`End`]).
//! * A leased row becomes leasable again only by an update. The update runs after the claim, so its transaction is not decided in
//!   the claim's snapshot, and the trigger writes its number.
//!
//! So the next claim needs two looks: from the floor on, in the order of leasing; and at the rows below it that undecided transactions
//! have written, which an index on `written` finds. Neither steps over what was leased before. No clock decides anything.
//!
//! Transaction numbers belong to one server. After a failover another server may use the same numbers again: the claim
//! compares the time at which the server was started, and takes no floor of another one. A claim that fails drops all floors.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::DateTime;
use leasehold_core::{Job, QueueName};

use crate::statement::Param;

/// More floors than this are not sent with a claim: reading them would cost more than they save.
const SENT: usize = 256;

/// Claims from more queues than this use no floors: each queue costs a search among the floors.
const QUEUES: usize = 64;

/// More floors than this are not remembered.
const KEPT: usize = 10_000;

/// A floor that was set longer ago is dropped: too much was written since.
const FRESH: Duration = Duration::from_secs(2);

/// A place in the index of one queue and priority: `available_at` in microseconds since 1970, and id.
pub(crate) type Place = (i64, i64);

/// The floors of one store.
#[derive(Default)]
pub(crate) struct FloorMap {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    floors: HashMap<QueueName, HashMap<i32, Floor>>,
    count: usize,
    server: i64,
}

#[derive(Clone)]
struct Floor {
    place: Place,
    snapshot: Arc<Snapshot>,
}

/// The snapshot of a claim.
struct Snapshot {
    xmax: i64,
    in_progress: Vec<i64>,
    taken: Instant,
}

/// What a claim says about itself besides its jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Claim {
    /// The server's time, in microseconds since 1970.
    pub(crate) now_us: i64,
    /// Which server, and since when.
    pub(crate) server: i64,
    pub(crate) xmax: i64,
    /// Whether a queue with limits was among those asked for, so that nothing was leased.
    pub(crate) limited: bool,
    /// How many jobs were leased, readable or not.
    pub(crate) leased: usize,
    /// How many jobs were locked and not leased, because another transaction has changed them after the snapshot was taken.
    pub(crate) changed: usize,
    /// How many jobs were looked at.
    pub(crate) candidates: usize,
    /// The first job that could have been leased and was passed over, because another transaction has locked or changed it: its
    /// priority, and its place if that can be told.
    pub(crate) skipped: Option<(i32, Option<Place>)>,
    /// Which of the queues asked for are paused, so that nothing was looked at in them: their positions.
    pub(crate) paused: Vec<usize>,
    /// The transactions that were in progress.
    pub(crate) in_progress: Vec<i64>,
}

/// The floors with which a claim is sent.
#[derive(Default)]
pub(crate) struct Floors {
    sent: Vec<(QueueName, i32, Place, i64)>,
    /// The transactions that were in progress when any of the floors was set.
    undecided: Vec<i64>,
    server: i64,
}

impl FloorMap {
    /// The floors for a claim from these queues.
    pub(crate) fn floors(&self, queues: &[QueueName]) -> Floors {
        if queues.len() > QUEUES {
            return Floors::default();
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut floors = Floors { server: state.server, ..Floors::default() };
        for queue in queues {
            for (priority, floor) in state.fresh(queue) {
                floors.sent.push((queue.clone(), *priority, floor.place, floor.snapshot.xmax));
                floors.undecided.extend(&floor.snapshot.in_progress);
            }
        }
        if floors.sent.len() > SENT {
            return Floors::default();
        }
        floors.undecided.sort_unstable();
        floors.undecided.dedup();
        floors
    }

    /// Learns from a claim that leased `jobs`, of at most `limit`, from `queues`.
    pub(crate) fn learn(&self, queues: &[QueueName], claim: &Claim, jobs: &[Job], limit: usize) {
        if claim.leased != jobs.len() || claim.changed > 0 {
            return; // Of a job that cannot be read, or was changed, the place is not known.
        }
        let end = End::of(claim, jobs, limit);
        let (xmax, in_progress) = (claim.xmax, claim.in_progress.clone());
        let snapshot = Arc::new(Snapshot { xmax, in_progress, taken: Instant::now() });
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.server != claim.server || state.count > KEPT {
            *state = State { server: claim.server, ..State::default() };
        }
        for job in jobs {
            state.set(&job.queue, job.priority, end.at(job.priority), &snapshot);
        }
        let looked_at = queues.iter().enumerate().filter(|(place, _)| !claim.paused.contains(place));
        for (_, queue) in looked_at {
            let known: Vec<i32> = state.fresh(queue).map(|(priority, _)| *priority).collect();
            for priority in known {
                state.set(queue, priority, end.at(priority), &snapshot);
            }
        }
    }

    /// Drops all floors.
    pub(crate) fn clear(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::default();
    }
}

impl State {
    /// The floors of a queue, without those that have become too old.
    fn fresh(&mut self, queue: &QueueName) -> impl Iterator<Item = (&i32, &Floor)> {
        if let Some(floors) = self.floors.get_mut(queue) {
            let before = floors.len();
            floors.retain(|_, floor| floor.snapshot.taken.elapsed() < FRESH);
            self.count -= before - floors.len();
        }
        self.floors.get(queue).into_iter().flatten()
    }

    /// Sets a floor, or leaves what is there if the claim has not got so far.
    fn set(&mut self, queue: &QueueName, priority: i32, place: Option<Place>, snapshot: &Arc<Snapshot>) {
        let Some(place) = place else { return };
        let floor = Floor { place, snapshot: Arc::clone(snapshot) };
        if !self.floors.contains_key(queue) {
            self.floors.insert(queue.clone(), HashMap::new());
        }
        let before = self.floors.get_mut(queue).and_then(|floors| floors.insert(priority, floor));
        self.count += usize::from(before.is_none());
    }
}

/// Up to where a claim has left nothing leasable: everything before this place in the order of leasing.
struct End {
    priority: i32,
    place: Option<Place>,
    now_us: i64,
}

impl End {
    fn of(claim: &Claim, jobs: &[Job], limit: usize) -> Self {
        let last = jobs.last().filter(|_| jobs.len() >= limit).map(|job| (job.priority, Some(place(job))));
        let order = |(priority, place): &(i32, Option<Place>)| (std::cmp::Reverse(*priority), *place);
        let end = last.into_iter().chain(claim.skipped).min_by_key(order);
        let (priority, place) = end.unwrap_or((i32::MIN, Some((claim.now_us, i64::MAX))));
        Self { priority, place, now_us: claim.now_us }
    }

    /// The floor at this priority.
    fn at(&self, priority: i32) -> Option<Place> {
        match priority.cmp(&self.priority) {
            // All that is available was leased. What is not is above the claim's time.
            std::cmp::Ordering::Greater => Some((self.now_us, i64::MAX)),
            std::cmp::Ordering::Equal => self.place,
            std::cmp::Ordering::Less => None,
        }
    }
}

fn place(job: &Job) -> Place {
    (job.available_at.timestamp_micros(), job.id.get())
}

impl Claim {
    /// Reads `meta` of `dequeue_v2.sql`.
    pub(crate) fn of(meta: &[Option<i64>]) -> Self {
        let at = |place: usize| meta.get(place).copied().flatten();
        let count = |place: usize| usize::try_from(at(place).unwrap_or_default()).unwrap_or_default();
        let mut rest = meta.iter().skip(11).copied().flatten();
        // The first of an SQL array is at 1.
        let paused =
            rest.by_ref().take(count(10)).filter_map(|place| usize::try_from(place - 1).ok()).collect();
        Self {
            now_us: at(0).unwrap_or_default(),
            server: at(1).unwrap_or_default(),
            xmax: at(2).unwrap_or_default(),
            limited: at(3) == Some(1),
            leased: count(4),
            changed: count(5),
            candidates: count(6),
            skipped: at(7).map(|priority| (priority as i32, at(8).zip(at(9)))),
            paused,
            in_progress: rest.collect(),
        }
    }
}

impl Floors {
    /// Which server the floors are of.
    pub(crate) fn server(&self) -> Param<'_> {
        self.server.into()
    }

    /// The queues of the floors.
    pub(crate) fn queues(&self) -> Param<'_> {
        self.sent.iter().map(|(queue, ..)| queue.as_str()).collect()
    }

    /// The priorities, times, ids and snapshots of the floors, and the transactions that were in progress: the last arguments of
    /// both claims.
    pub(crate) fn params(&self) -> [Param<'_>; 5] {
        [
            self.sent.iter().map(|(_, priority, ..)| *priority).collect(),
            self.sent.iter().map(|(.., (time, _), _)| DateTime::from_timestamp_micros(*time)).collect(),
            self.sent.iter().map(|(.., (_, id), _)| *id).collect(),
            self.sent.iter().map(|(.., since)| *since).collect(),
            self.undecided.iter().copied().collect(),
        ]
    }
}
