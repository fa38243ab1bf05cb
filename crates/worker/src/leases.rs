//! The leases that this worker holds, and until when it may believe in them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Job, Receipt};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Every lease that is held. Shared by the dispatcher, who adds and removes, the heart, who extends, and handlers, who ask.
#[derive(Default)]
pub(crate) struct Leases {
    held: Mutex<Held>,
    /// The heart is to look again: a lease is due for a heartbeat sooner than it knows.
    pub(crate) sooner: Notify,
}

#[derive(Default)]
struct Held {
    leases: HashMap<Receipt, Lease>,
    /// When the heart looks next, as far as it has said.
    next_look: Option<Instant>,
}

#[derive(Clone)]
struct Lease {
    /// Until when the lease holds at least, counted from when the request was sent.
    deadline: Instant,
    /// When it is to be extended.
    beat_at: Instant,
    cancelled: CancellationToken,
    lost: bool,
}

/// What the heart has to do now.
pub(crate) struct Due {
    /// To be extended, all in one request.
    pub(crate) beats: Vec<Receipt>,
    /// Their time has run out.
    pub(crate) lost: Vec<Receipt>,
    /// When to look next.
    pub(crate) next: Option<Instant>,
}

/// A lease is extended when a third of it has passed, so that two more tries fit in.
const BEATS: u32 = 3;

impl Leases {
    /// Leases that a request sent at `sent` was granted. The tokens fire when they are lost.
    pub(crate) fn hold(&self, jobs: &[Arc<Job>], sent: Instant) -> Vec<CancellationToken> {
        let mut held = self.held();
        let mut soonest: Option<Instant> = None;
        let mut hold = |job: &Arc<Job>| {
            let granted = job.leased_for().unwrap_or_default();
            let lease = Lease::new(sent, granted, CancellationToken::new());
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

    /// What the heart has to do at `now`. Leases whose time has run out are marked as lost and their tokens fire.
    pub(crate) fn due(&self, now: Instant) -> Due {
        let mut held = self.held();
        let mut due = Due { beats: Vec::new(), lost: Vec::new(), next: None };
        for (receipt, lease) in held.leases.iter_mut().filter(|(_, lease)| !lease.lost) {
            if lease.deadline <= now {
                lease.lose();
                due.lost.push(*receipt);
            } else if lease.beat_at <= now {
                due.beats.push(*receipt);
            }
        }
        // What is nearly due goes along, so that leases of one length fall into step.
        if !due.beats.is_empty() {
            let soon =
                |lease: &Lease| lease.beat_at > now && lease.beat_at <= now + (lease.deadline - now) / 4;
            let early = held.leases.iter().filter(|(_, lease)| !lease.lost && soon(lease));
            due.beats.extend(early.map(|(receipt, _)| *receipt));
        }
        let live = held.leases.values().filter(|lease| !lease.lost);
        due.next = live.map(|lease| lease.beat_at.max(now).min(lease.deadline)).min();
        held.next_look = due.next;
        due
    }

    /// The lease was extended by `left`, as asked at `sent`.
    pub(crate) fn extended(&self, receipt: &Receipt, sent: Instant, left: Duration) {
        if let Some(lease) = self.held().leases.get_mut(receipt).filter(|lease| !lease.lost) {
            let renewed = Lease::new(sent, left, lease.cancelled.clone());
            lease.deadline = lease.deadline.max(renewed.deadline);
            lease.beat_at = renewed.beat_at;
        }
    }

    /// The lease was not extended: try again after a part of what is left of it.
    pub(crate) fn try_again(&self, receipt: &Receipt, now: Instant) {
        if let Some(lease) = self.held().leases.get_mut(receipt) {
            let left = lease.deadline.saturating_duration_since(now);
            lease.beat_at = now + (left / 4).max(Duration::from_millis(1));
        }
    }

    /// The store says that the lease is lost. Whether that was news.
    pub(crate) fn lose(&self, receipt: &Receipt) -> bool {
        match self.held().leases.get_mut(receipt) {
            Some(lease) if !lease.lost => {
                lease.lose();
                true
            }
            _ => false,
        }
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
        Self { deadline: sent + granted, beat_at: sent + granted / BEATS, cancelled, lost: false }
    }

    fn lose(&mut self) {
        self.lost = true;
        self.cancelled.cancel();
    }
}
