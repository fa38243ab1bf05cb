//! The leases that this worker holds, and until when it may believe in them.

use std::collections::BTreeMap;
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
    /// When it is to be extended.
    beat_at: Instant,
    cancelled: CancellationToken,
    /// The handler has ended: the store's answer to its verdict says whether the lease was lost in time to matter.
    ended: bool,
    lost: bool,
    /// Whether anybody was told of the loss.
    told: bool,
}

/// Leases whose time has run out while their handlers were running.
pub(crate) struct Passed {
    pub(crate) lost: Vec<Receipt>,
    /// When the time of the next one runs out.
    pub(crate) next: Option<Instant>,
}

/// Leases that are to be extended.
pub(crate) struct Due {
    /// All in one request.
    pub(crate) beats: Vec<Receipt>,
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

    /// The handler has ended, and its verdict is on its way.
    pub(crate) fn ended(&self, receipt: &Receipt) {
        if let Some(lease) = self.held().leases.get_mut(receipt) {
            lease.ended = true;
        }
    }

    /// Whether its handler is running and believes in it.
    pub(crate) fn is_running(&self, receipt: &Receipt) -> bool {
        self.held().leases.get(receipt).is_some_and(|lease| !lease.ended && !lease.lost)
    }

    /// Marks the leases whose time has run out by `now` as lost. Their tokens fire.
    pub(crate) fn pass(&self, now: Instant) -> Passed {
        let mut held = self.held();
        let mut passed = Passed { lost: Vec::new(), next: None };
        for (receipt, lease) in held.leases.iter_mut().filter(|(_, lease)| !lease.lost) {
            if lease.deadline > now {
                passed.next = Some(passed.next.map_or(lease.deadline, |next| next.min(lease.deadline)));
            } else if lease.lose() {
                passed.lost.push(*receipt);
            }
        }
        held.next_look = passed.next;
        passed
    }

    /// What is to be extended at `now`.
    pub(crate) fn due(&self, now: Instant) -> Due {
        let mut held = self.held();
        let live = || held.leases.iter().filter(|(_, lease)| !lease.lost);
        let mut beats = Vec::new();
        if live().any(|(_, lease)| lease.beat_at <= now) {
            // What is nearly due goes along, so that leases of one length fall into step.
            let soon = |lease: &Lease| now + lease.deadline.saturating_duration_since(now) / 4;
            beats.extend(
                live().filter(|(_, lease)| lease.beat_at <= soon(lease)).map(|(receipt, _)| *receipt),
            );
        }
        let next = live().map(|(_, lease)| lease.beat_at.max(now).min(lease.deadline)).min();
        held.next_look = next;
        Due { beats, next }
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
        let (deadline, beat_at) = (sent + granted, sent + granted / BEATS);
        Self { deadline, beat_at, cancelled, ended: false, lost: false, told: false }
    }

    /// Whether somebody is to be told.
    fn lose(&mut self) -> bool {
        self.lost = true;
        self.cancelled.cancel();
        !self.ended && !std::mem::replace(&mut self.told, true)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Epoch, JobId, Json, Kind, Lease as Granted, MaxAttempts, QueueName, WorkerId};
    use proptest::prelude::{Strategy, prop_oneof, proptest};

    use super::*;

    fn job(id: i64, lease: Duration) -> Arc<Job> {
        let now = chrono::DateTime::UNIX_EPOCH;
        Arc::new(Job {
            id: JobId::new(id),
            queue: QueueName::new("q").unwrap(),
            kind: Kind::new("k").unwrap(),
            priority: 0,
            unique_key: None,
            payload: Json::null(),
            headers: Default::default(),
            attempts: 1,
            max_attempts: MaxAttempts::new(5).unwrap(),
            available_at: now,
            lease: Some(Granted { until: now + lease, worker: WorkerId::new("w").unwrap() }),
            epoch: Epoch::new(1),
            first_leased_at: Some(now),
            last_error: None,
            redrives: 0,
            created_at: now,
            updated_at: now,
        })
    }

    #[derive(Debug, Clone)]
    enum Event {
        Hold(u64),
        Beat { answered: bool, took: u64 },
        Pass(u64),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            (3..10_000_u64).prop_map(Event::Hold),
            (proptest::bool::ANY, 0..2000_u64).prop_map(|(answered, took)| Event::Beat { answered, took }),
            (0..3000_u64).prop_map(Event::Pass),
        ];
        proptest::collection::vec(event, 1..100)
    }

    proptest! {
        /// However heartbeats go, a token fires at the end of its lease, counted from when it was last asked for, neither
        /// before nor after; and the heart never waits for longer than that.
        #[test]
        fn a_token_fires_when_its_time_has_run_out(events in events()) {
            let leases = Leases::default();
            let (mut now, mut ids, mut told) = (Instant::now(), 0, Vec::new());
            // Until when the store holds each lease, at least.
            let mut until: Vec<(Receipt, Instant, u64, CancellationToken)> = Vec::new();
            for event in events {
                match event {
                    Event::Hold(length) => {
                        ids += 1;
                        let job = job(ids, Duration::from_millis(length));
                        let token = leases.hold(std::slice::from_ref(&job), now).remove(0);
                        until.push((job.receipt(), now + Duration::from_millis(length), length, token));
                    }
                    Event::Beat { answered, took } => {
                        let (sent, beats) = (now, leases.due(now).beats);
                        now += Duration::from_millis(took);
                        told.extend(leases.pass(now).lost);
                        for receipt in beats {
                            let lease = until.iter_mut().find(|lease| lease.0 == receipt).unwrap();
                            if answered && lease.1 > now {
                                lease.1 = sent + Duration::from_millis(lease.2);
                                leases.extended(&receipt, sent, Duration::from_millis(lease.2));
                            } else {
                                leases.try_again(&receipt, now);
                            }
                        }
                    }
                    Event::Pass(millis) => now += Duration::from_millis(millis),
                }
                let passed = leases.pass(now);
                told.extend(passed.lost);
                for (receipt, end, _, token) in &until {
                    assert_eq!(token.is_cancelled(), *end <= now, "{receipt} until {end:?} at {now:?}");
                    let times = told.iter().filter(|lost| *lost == receipt).count();
                    assert_eq!(times, usize::from(*end <= now), "{receipt} is told of");
                }
                let soonest = until.iter().map(|lease| lease.1).filter(|end| *end > now).min();
                assert_eq!(passed.next, soonest, "when the next one runs out");
                assert!(leases.due(now).next <= soonest, "the heart sleeps too long");
            }
        }
    }
}
