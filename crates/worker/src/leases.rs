//! The leases that this worker holds, and until when it may believe in them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Job, Receipt, limits};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::call::later;

/// Every lease that is held. The dispatcher adds and removes them, the heart extends them, handlers ask about them.
#[derive(Default)]
pub(crate) struct Leases {
    held: Mutex<Held>,
    /// The heart is to look again: a lease is due for a heartbeat sooner than it knows.
    pub(crate) sooner: Notify,
}

/// In order, here and in the dispatcher, so that a simulation goes the same way each time.
#[derive(Default)]
struct Held {
    leases: BTreeMap<Receipt, Lease>,
    /// When the heart looks next, as far as it has said.
    next_look: Option<Instant>,
}

#[derive(Clone)]
struct Lease {
    /// Until when the lease holds at least, counted from when the request was sent.
    deadline: Instant,
    /// How long the lease was when it was last granted.
    length: Duration,
    /// When it is to be extended.
    beat_at: Instant,
    /// Whether the store is being asked to extend it.
    beating: bool,
    /// Whether it is extended in calls of its own, because calls for it fail.
    alone: bool,
    /// Until when it is not lost although its time has run out: a transaction had the job locked.
    locked_until: Option<Instant>,
    cancelled: CancellationToken,
    /// Whether the handler settles the job itself.
    transactional: bool,
    /// The handler has ended: the store's answer to its verdict says whether the lease was lost in time to matter.
    ended: bool,
    lost: bool,
    /// Whether the loss was told.
    told: bool,
}

/// Leases that are to be extended.
pub(crate) struct Due {
    /// Each is one request.
    pub(crate) beats: Vec<Vec<Receipt>>,
    /// When to look next.
    pub(crate) next: Option<Instant>,
}

/// A lease is extended when a third of it has passed, so that two more tries fit in.
const BEATS: u32 = 3;

impl Leases {
    /// Leases that a request sent at `sent` was granted. The tokens fire when they are lost.
    pub(crate) fn hold(
        &self,
        jobs: &[Arc<Job>],
        sent: Instant,
        is_transactional: impl Fn(&Job) -> bool,
    ) -> Vec<CancellationToken> {
        let mut held = self.held();
        let mut soonest: Option<Instant> = None;
        let mut hold = |job: &Arc<Job>| {
            let granted = job.leased_for().unwrap_or_default();
            let mut lease = Lease::new(sent, granted, CancellationToken::new());
            lease.transactional = is_transactional(job);
            soonest = Some(soonest.map_or(lease.beat_at, |soonest| soonest.min(lease.beat_at)));
            let token = lease.cancelled.clone();
            held.leases.insert(job.receipt(), lease);
            token
        };
        let tokens = jobs.iter().map(&mut hold).collect();
        if soonest.is_some_and(|soonest| held.next_look.is_none_or(|next| soonest < next)) {
            held.next_look = soonest;
            self.sooner.notify_one();
        }
        tokens
    }

    /// These are no longer ours to extend.
    pub(crate) fn let_go<'a>(&self, receipts: impl IntoIterator<Item = &'a Receipt>) {
        let mut held = self.held();
        for receipt in receipts {
            held.leases.remove(receipt);
        }
    }

    /// The handler has ended, and its verdict is on its way.
    pub(crate) fn ended(&self, receipt: &Receipt) {
        if let Some(lease) = self.held().leases.get_mut(receipt) {
            lease.ended = true;
        }
    }

    /// The handler is given up: its token fires.
    pub(crate) fn cancel(&self, receipt: &Receipt) {
        if let Some(lease) = self.held().leases.get(receipt) {
            lease.cancelled.cancel();
        }
    }

    /// Whether its handler is running and believes in it.
    pub(crate) fn is_running(&self, receipt: &Receipt) -> bool {
        self.held().leases.get(receipt).is_some_and(|lease| !lease.ended && !lease.lost)
    }

    /// Whether the handler settles the job itself, so that a stale receipt may be its own doing.
    pub(crate) fn is_transactional(&self, receipt: &Receipt) -> bool {
        self.held().leases.get(receipt).is_some_and(|lease| lease.transactional)
    }

    /// Marks the leases whose time has run out by `now` as lost, and gives those that were not told of. Their tokens fire.
    pub(crate) fn pass(&self, now: Instant) -> Vec<Receipt> {
        let mut held = self.held();
        let passed = held.leases.iter_mut().filter(|(_, lease)| !lease.lost && lease.ends() <= now);
        passed.filter_map(|(receipt, lease)| lease.lose().then_some(*receipt)).collect()
    }

    /// What is to be extended at `now`. The store is being asked for it from now on.
    pub(crate) fn due(&self, now: Instant) -> Due {
        let mut held = self.held();
        let mut beats = Vec::new();
        let waiting = |lease: &Lease| !lease.lost && !lease.beating;
        if held.leases.values().any(|lease| waiting(lease) && lease.beat_at <= now) {
            // What is nearly due goes along, so that leases of one length fall into step.
            let soon = |lease: &Lease| now + lease.deadline.saturating_duration_since(now) / 4;
            let due = |lease: &Lease| waiting(lease) && lease.beat_at <= soon(lease);
            let mut together = Vec::new();
            for (receipt, lease) in held.leases.iter_mut().filter(|(_, lease)| due(lease)) {
                lease.beating = true;
                match lease.alone {
                    true => beats.push(vec![*receipt]),
                    false => together.push(*receipt),
                }
            }
            beats.extend(together.chunks(limits::BATCH as usize).map(<[_]>::to_vec));
        }
        let next = held.leases.values().filter(|lease| !lease.lost).map(Lease::next_look).min();
        held.next_look = next;
        Due { beats, next }
    }

    /// Answers that were awaited will not come.
    pub(crate) fn none_is_beating(&self) {
        self.held().leases.values_mut().for_each(|lease| lease.beating = false);
    }

    /// From now on this lease is extended in calls of its own, until one succeeds.
    pub(crate) fn extend_alone(&self, receipt: &Receipt) {
        if let Some(lease) = self.held().leases.get_mut(receipt) {
            lease.alone = true;
        }
    }

    /// For how long the answer to a heartbeat for these is awaited: so that there is time for another.
    pub(crate) fn patience(&self, receipts: &[Receipt], now: Instant) -> Duration {
        let held = self.held();
        let leases = receipts.iter().filter_map(|receipt| held.leases.get(receipt));
        let left = leases.map(|lease| lease.deadline.saturating_duration_since(now)).min();
        (left.unwrap_or_default() / 2).max(Duration::from_millis(10))
    }

    /// The lease was extended by `left`, as asked at `sent`.
    pub(crate) fn extended(&self, receipt: &Receipt, sent: Instant, left: Duration) {
        if let Some(lease) = self.held().leases.get_mut(receipt).filter(|lease| !lease.lost) {
            lease.renew(sent, left);
        }
    }

    /// The lease was not extended: try again after a part of what is left of it.
    pub(crate) fn try_again(&self, receipt: &Receipt, now: Instant) {
        if let Some(lease) = self.held().leases.get_mut(receipt) {
            let left = lease.deadline.saturating_duration_since(now);
            lease.beat_at = now + (left / 4).max(Duration::from_millis(1));
            lease.beating = false;
        }
    }

    /// The lease was not extended, because a transaction has the job locked, as was asked at `sent`. While it has, no reclaim takes
    /// the job. A transactional handler is alive then: the transaction is its own, and its countdown starts anew. A plain handler has
    /// no transaction on the job: its lease is not lost, but nothing is promised.
    pub(crate) fn locked(&self, receipt: &Receipt, sent: Instant, now: Instant) {
        if let Some(lease) = self.held().leases.get_mut(receipt).filter(|lease| !lease.lost) {
            if lease.transactional {
                return lease.renew(sent, lease.length);
            }
            let left = lease.deadline.saturating_duration_since(now);
            let again = (left / 4).max(lease.length / 12).max(Duration::from_millis(1));
            lease.beat_at = later(now, again);
            lease.locked_until = Some(later(now, again + lease.length / BEATS));
            lease.beating = false;
        }
    }

    /// The store does not extend the lease. Whether that is to be told: not of a job that was perhaps settled meanwhile.
    pub(crate) fn lose(&self, receipt: &Receipt) -> bool {
        self.held().leases.get_mut(receipt).is_some_and(Lease::lose)
    }

    /// The store has refused the verdict. Whether nobody was told before that the lease is lost.
    pub(crate) fn refused(&self, receipt: &Receipt) -> bool {
        let mut held = self.held();
        held.leases.get_mut(receipt).is_some_and(|lease| {
            lease.ended = false;
            lease.lose()
        })
    }

    /// How long this lease is known to hold.
    pub(crate) fn left(&self, receipt: &Receipt) -> Duration {
        let deadline =
            self.held().leases.get(receipt).filter(|lease| !lease.lost).map(|lease| lease.deadline);
        deadline.map_or(Duration::ZERO, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    fn new(sent: Instant, granted: Duration, cancelled: CancellationToken) -> Self {
        let (deadline, beat_at) = (later(sent, granted), later(sent, granted / BEATS));
        Self {
            deadline,
            length: granted,
            beat_at,
            beating: false,
            alone: false,
            locked_until: None,
            cancelled,
            transactional: false,
            ended: false,
            lost: false,
            told: false,
        }
    }

    /// It holds for `left` from `sent` on, or for longer if it did before.
    fn renew(&mut self, sent: Instant, left: Duration) {
        let renewed = Self::new(sent, left, self.cancelled.clone());
        let deadline = self.deadline.max(renewed.deadline);
        let Self { transactional, ended, .. } = *self;
        *self = Self { deadline, transactional, ended, ..renewed };
    }

    /// When it is lost if the store says nothing before.
    fn ends(&self) -> Instant {
        self.locked_until.map_or(self.deadline, |until| until.max(self.deadline))
    }

    /// When the heart must look at it.
    fn next_look(&self) -> Instant {
        if self.beating { self.ends() } else { self.beat_at.min(self.ends()) }
    }

    /// Whether that is to be told.
    fn lose(&mut self) -> bool {
        self.lost = true;
        self.cancelled.cancel();
        !self.ended && !std::mem::replace(&mut self.told, true)
    }
}

#[cfg(test)]
mod tests;
