//! Everything that the database holds, and the clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use leasehold_core::{
    Archive, Event, EventKind, FinishedJob, IdempotencyKey, Job, JobId, Policies, QueueName, Receipt,
    UniqueKey, WorkerId, backend, time,
};

use crate::fault::Fault;

/// Far from the host's clock: the ninth of September 2001, 01:46:40 UTC.
const START_SECONDS: i64 = 1_000_000_000;

#[derive(Clone)]
pub(crate) struct State {
    pub(super) fault: Option<Fault>,
    clock: DateTime<Utc>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    pub(super) history: Vec<FinishedJob>,
    pub(super) last_id: i64,
    pub(super) policies: Policies,
    /// When the bucket of each queue with a rate limit is full again.
    pub(super) buckets: BTreeMap<QueueName, DateTime<Utc>>,
    /// Idempotency keys, and until when they are kept.
    pub(super) once: BTreeMap<IdempotencyKey, DateTime<Utc>>,
    /// The user's own table.
    pub(super) ledger: Vec<String>,
    /// What subscribers are to be told when the step is over.
    pub(super) events: Vec<Event>,
    pub(super) woken: BTreeSet<QueueName>,
    /// Those of them that have got new jobs.
    pub(super) enqueued: BTreeSet<QueueName>,
    /// The handle that is at work, if it is no transaction.
    pub(super) at_work: Option<usize>,
    /// Only for faults.
    pub(super) holders: BTreeMap<Receipt, WorkerId>,
    pub(super) locked: BTreeSet<JobId>,
    pub(super) busy: bool,
    pub(super) all_done: bool,
    pub(super) archives: BTreeMap<JobId, Archive>,
    pub(super) dropped: BTreeSet<Receipt>,
    /// Whether open transactions lock what they settle.
    pub(super) row_locks: bool,
    /// What open transactions have locked, and which of them.
    pub(super) rows: BTreeMap<JobId, u64>,
    /// For a fault: whether a caller waits for the key of an open transaction.
    pub(super) has_rivals: bool,
    /// For a fault: what open transactions have enqueued, and whose it is.
    pub(super) uncommitted: Vec<(u64, Job)>,
    /// No lease has an epoch before this one: those may be of leases that were lost.
    pub(super) first_epoch: i64,
}

impl State {
    pub(super) fn new(fault: Option<Fault>) -> Self {
        Self {
            fault,
            clock: DateTime::from_timestamp(START_SECONDS, 0).unwrap_or_default(),
            jobs: BTreeMap::new(),
            history: Vec::new(),
            last_id: 0,
            policies: Policies::default(),
            buckets: BTreeMap::new(),
            once: BTreeMap::new(),
            ledger: Vec::new(),
            events: Vec::new(),
            woken: BTreeSet::new(),
            enqueued: BTreeSet::new(),
            at_work: None,
            holders: BTreeMap::new(),
            locked: BTreeSet::new(),
            busy: false,
            all_done: false,
            archives: BTreeMap::new(),
            dropped: BTreeSet::new(),
            row_locks: false,
            rows: BTreeMap::new(),
            has_rivals: false,
            uncommitted: Vec::new(),
            first_epoch: 0,
        }
    }

    /// Goes back to an earlier state, as a failover may. Ids and epochs go on, and so does the clock.
    pub(super) fn lose_all_since(&mut self, earlier: Self) {
        let last_epoch = self.jobs.values().map(|job| job.epoch.get()).max().unwrap_or_default();
        let lost = std::mem::replace(self, earlier);
        self.clock = lost.clock;
        if !self.has(Fault::LossRepeatsIds) {
            self.last_id = lost.last_id;
        }
        if !self.has(Fault::LossRepeatsEpochs) {
            self.first_epoch = last_epoch.max(lost.first_epoch) + 1;
        }
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Reads the clock, which goes on by a microsecond.
    pub(super) fn tick(&mut self) -> DateTime<Utc> {
        self.clock += TimeDelta::microseconds(1);
        self.clock
    }

    pub(super) fn age(&mut self, by: Duration) {
        self.clock = time::later(self.clock, by);
    }

    pub(super) fn set_back(&mut self, by: Duration) {
        self.clock = time::earlier(self.clock, by);
    }

    /// What a caller who asks for the time is told.
    pub(super) fn told(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        match self.fault {
            Some(Fault::NowIsTheHosts) => time::whole_micros(Utc::now()),
            Some(Fault::NowHasNanoseconds) => now + TimeDelta::nanoseconds(500),
            _ => now,
        }
    }

    /// `now`, or the host's time if that is what the fault confuses.
    pub(super) fn or_hosts(&self, now: DateTime<Utc>, confusing: Fault) -> DateTime<Utc> {
        if self.has(confusing) { time::whole_micros(Utc::now()) } else { now }
    }

    /// A number from 0 to 1 that differs from job to job and from one microsecond to the next.
    pub(super) fn random(id: JobId, now: DateTime<Utc>) -> f64 {
        let seed = (now.timestamp_micros() % 10_007 + id.get() % 10_007) as f64;
        (seed * 0.618_033_988_749_895).fract()
    }

    /// The live job that has this key.
    pub(super) fn holder_of(&self, queue: &QueueName, key: &UniqueKey) -> Option<JobId> {
        let same_key = |other: &UniqueKey| match self.fault {
            Some(Fault::KeysIgnoreCase) => other.as_str().eq_ignore_ascii_case(key.as_str()),
            Some(Fault::KeysIgnoreTrailingSpaces) => other.as_str().trim_end() == key.as_str().trim_end(),
            _ => other == key,
        };
        let same_queue = |other: &QueueName| other == queue || self.has(Fault::KeysShareQueues);
        let holds = |job: &&Job| {
            // The key first: it decides sooner, and this is asked 50 million times for a full batch of keys.
            job.unique_key.as_ref().is_some_and(same_key)
                && same_queue(&job.queue)
                && !(self.has(Fault::KeyFreeWhileLeased) && job.lease.is_some())
        };
        let live = self.jobs.values().find(holds).map(|job| job.id);
        let finished = self.history.iter().filter(|_| self.has(Fault::KeyTakenAfterTheEnd));
        live.or(finished
            .filter(|job| job.queue == *queue && job.unique_key.as_ref() == Some(key))
            .map(|job| job.id)
            .next())
    }

    pub(super) fn tell(&mut self, kind: EventKind, queue: &QueueName, job: JobId, at: DateTime<Utc>) {
        let kind = match kind {
            EventKind::Leased if self.has(Fault::EventOfLeaseMissing) => return,
            EventKind::DeadLettered if self.has(Fault::DeadLetterToldAsRetry) => EventKind::Retried,
            kind => kind,
        };
        let event = backend::event(kind, queue.clone(), job, at);
        if self.has(Fault::EventsOutOfOrder) {
            self.events.insert(0, event);
        } else {
            self.events.push(event);
        }
    }

    /// Hints that `queue` has something to look at, unless it is forgotten.
    pub(super) fn wake(&mut self, queue: &QueueName, forgetting: Fault) {
        if !self.has(forgetting) {
            self.woken.insert(queue.clone());
            if forgetting == Fault::NoWakeOnEnqueue {
                self.enqueued.insert(queue.clone());
            }
        }
    }

    /// One more handle was opened.
    pub(super) fn opened(&mut self) {
        if self.has(Fault::OpeningWipes) {
            self.jobs.clear();
        }
    }
}
