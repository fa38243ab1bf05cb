//! Where claims may begin to look.
//!
//! Every lease and every verdict leaves a dead row at the head of the index of ready jobs. Vacuum clears them away, but
//! not while anybody holds an old snapshot open: then each claim would step over all the jobs that were ever claimed since.
//! So a store remembers, per queue and priority, a *floor*: a place `(available_at, id)` below which there is nothing to
//! lease and never will be.
//!
//! # How that can be known
//!
//! Whatever makes a job leasable writes `available_at` no earlier than its own statement's time. So a job that turns up
//! below a place in the past was written by a transaction that was already under way at that time. A claim knows the
//! transactions that were under way when it looked (its snapshot's `xmax` is larger than theirs), so
//!
//! 1. a claim that found nothing more to lease below a place *proposes* that place, together with its `xmax`;
//! 2. a later claim whose snapshot has an `xmin` of at least that, so that all those transactions have ended, and which
//!    has looked at everything below the place again, *proves* it.
//!
//! A statement takes its time a little before its transaction gets its number; for that, places later than [`margin_us`] before
//! now are not proposed. What somebody writes by hand, and a clock that is set back, can still put a job below a floor: so every
//! [`SWEEP`] a claim looks from the very beginning, and if it finds such a job, all floors are forgotten.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::DateTime;
use leasehold_core::{Job, QueueName};

use crate::statement::Param;

/// Jobs younger than this are always looked at: at least, and at most.
const MARGIN_US: (i64, i64) = (25_000, 100_000);

/// A server that is so busy that a claim takes long may also take long to begin with a statement.
const CLAIMS: i64 = 20;

/// How often a claim looks from the beginning: after this time, or fifty times as long as that took, so that it never
/// costs more than a fiftieth.
const SWEEP: Duration = Duration::from_secs(1);

/// More floors than this are not sent with a claim: reading them would cost more than they save.
const SENT: usize = 256;

/// More floors than this are not remembered.
const KEPT: usize = 10_000;

/// A place in the index of one queue and priority: `available_at` in microseconds since 1970, and id.
type Place = (i64, i64);

/// The floors of one store.
#[derive(Default)]
pub(crate) struct Positions {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    floors: HashMap<QueueName, HashMap<i32, Floor>>,
    count: usize,
    next_sweep: Option<Instant>,
}

#[derive(Default, Clone, Copy)]
struct Floor {
    proven: Option<Place>,
    /// A place, and the `xmax` of the claim that proposes it.
    proposed: Option<(Place, i64)>,
}

/// What a claim says about itself besides its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The server's time, in microseconds since 1970.
    pub(crate) now_us: i64,
    pub(crate) xmin: i64,
    pub(crate) xmax: i64,
    /// Whether a queue with limits was among those asked for, so that nothing was leased.
    pub(crate) limited: bool,
    /// How many jobs were looked at.
    pub(crate) candidates: i64,
    /// The first job that could have been leased but for somebody else's lock: its priority and place.
    pub(crate) skipped: Option<(i32, Place)>,
    /// How long the server took to find the jobs, in microseconds.
    pub(crate) search_us: i64,
}

/// The floors with which a claim is sent.
pub(crate) struct Floors {
    sent: Vec<(QueueName, i32, Place)>,
    /// Whether the claim looks from the beginning.
    pub(crate) swept: bool,
}

impl Positions {
    /// The floors for a claim from these queues; none if it is to look from the beginning.
    pub(crate) fn floors(&self, queues: &[QueueName]) -> Floors {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if state.next_sweep.is_none_or(|next| next <= now) {
            // Another claim need not do the same until this one has said how long it took.
            state.next_sweep = Some(now + SWEEP);
            return Floors { sent: Vec::new(), swept: true };
        }
        let sent: Vec<_> = queues.iter().flat_map(|queue| state.proven(queue)).take(SENT + 1).collect();
        if sent.len() > SENT {
            return Floors { sent: Vec::new(), swept: true };
        }
        Floors { sent, swept: false }
    }

    /// Learns from a claim that leased `jobs`, of at most `limit`, from `queues`.
    pub(crate) fn learn(
        &self,
        queues: &[QueueName],
        floors: &Floors,
        claim: &Claim,
        jobs: &[Job],
        limit: usize,
    ) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if floors.swept {
            let took = Duration::from_micros(claim.search_us.unsigned_abs());
            state.next_sweep = Some(Instant::now() + SWEEP.max(50 * took));
            if jobs.iter().any(|job| state.is_below(job)) {
                state.forget();
            }
        }
        if state.count > KEPT {
            state.forget();
        }
        let end = End::of(claim, jobs, limit);
        for job in jobs {
            state.know(&job.queue, job.priority);
        }
        for queue in queues {
            state.raise(queue, claim, &end);
        }
    }

    /// Forgets everything.
    pub(crate) fn forget(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::default();
    }
}

impl State {
    fn proven(&self, queue: &QueueName) -> impl Iterator<Item = (QueueName, i32, Place)> {
        let floors = self.floors.get(queue).into_iter().flatten();
        floors.filter_map(move |(priority, floor)| Some((queue.clone(), *priority, floor.proven?)))
    }

    fn is_below(&self, job: &Job) -> bool {
        let floor = self.floors.get(&job.queue).and_then(|floors| floors.get(&job.priority));
        floor.and_then(|floor| floor.proven).is_some_and(|proven| place(job) <= proven)
    }

    fn forget(&mut self) {
        self.floors.clear();
        self.count = 0;
    }

    fn know(&mut self, queue: &QueueName, priority: i32) {
        if !self.floors.contains_key(queue) {
            self.floors.insert(queue.clone(), HashMap::new());
        }
        if let Some(floors) = self.floors.get_mut(queue) {
            let before = floors.len();
            floors.entry(priority).or_default();
            self.count += floors.len() - before;
        }
    }

    fn raise(&mut self, queue: &QueueName, claim: &Claim, end: &End) {
        for (priority, floor) in self.floors.get_mut(queue).into_iter().flatten() {
            if let Some(place) = end.at(*priority) {
                floor.raise(place.min((claim.now_us - margin_us(claim), 0)), claim);
            }
        }
    }
}

impl Floor {
    /// Below `place` this claim has left nothing that it could see.
    fn raise(&mut self, place: Place, claim: &Claim) {
        match self.proposed {
            Some((proposed, xmax)) if claim.xmin >= xmax => {
                self.proven = self.proven.max(Some(proposed.min(place)));
                self.proposed = Some((place, claim.xmax));
            }
            Some(_) => {}
            None => self.proposed = Some((place, claim.xmax)),
        }
    }
}

/// How long before a claim jobs must have been written for it to have seen all of them, if their transactions are over.
fn margin_us(claim: &Claim) -> i64 {
    claim.search_us.saturating_mul(CLAIMS).clamp(MARGIN_US.0, MARGIN_US.1)
}

/// Up to where a claim has left nothing.
enum End {
    /// Everywhere.
    None,
    /// Everywhere above this priority, and at this priority up to this place.
    At(i32, Place),
}

impl End {
    fn of(claim: &Claim, jobs: &[Job], limit: usize) -> Self {
        let last = jobs.last().filter(|_| jobs.len() >= limit).map(|job| (job.priority, place(job)));
        let skipped = claim.skipped.map(|(priority, (time, id))| (priority, (time, id - 1)));
        let order = |(priority, place): &(i32, Place)| (std::cmp::Reverse(*priority), *place);
        match last.into_iter().chain(skipped).min_by_key(order) {
            Some((priority, place)) => Self::At(priority, place),
            None => Self::None,
        }
    }

    fn at(&self, priority: i32) -> Option<Place> {
        match self {
            Self::None => Some((i64::MAX, i64::MAX)),
            Self::At(end, _) if priority > *end => Some((i64::MAX, i64::MAX)),
            Self::At(end, place) if priority == *end => Some(*place),
            Self::At(..) => None,
        }
    }
}

fn place(job: &Job) -> Place {
    (job.available_at.timestamp_micros(), job.id.get())
}

impl Floors {
    /// The queues of the floors, an argument of `dequeue.sql`.
    pub(crate) fn queues(&self) -> Param<'_> {
        self.sent.iter().map(|(queue, ..)| queue.as_str()).collect()
    }

    /// The priorities, times and ids of the floors, the last arguments of both claims.
    pub(crate) fn params(&self) -> [Param<'_>; 3] {
        [
            self.sent.iter().map(|(_, priority, _)| *priority).collect(),
            self.sent.iter().map(|(.., (time, _))| DateTime::from_timestamp_micros(*time)).collect(),
            self.sent.iter().map(|(.., (_, id))| *id).collect(),
        ]
    }
}
