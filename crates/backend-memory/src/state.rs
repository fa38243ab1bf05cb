//! The whole data of a store, and the few steps of which every operation is made.
//!
//! An operation runs between [`begin`](State::begin) and [`end`](State::end) under the store's lock. In between, jobs
//! change only through [`insert`](State::insert), [`remove`](State::remove) and [`update`](State::update), which keep
//! the index of the job's queue in step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use leasehold_core::time::whole_micros;
use leasehold_core::{
    EffectivePolicy, EventKind, FinishedJob, Job, JobId, JobState, QueueName, QueueOrder, Receipt,
};

use crate::clock::Clock;
use crate::dequeue::Turns;
use crate::directory::{Directory, Slot};
use crate::events::EventHub;
use crate::history::History;
use crate::locks::Locks;
use crate::policy::PolicyBook;
use crate::queue::{Rank, rank};
use crate::tx::Ledger;
use crate::wake::{Subscriber, Subscribers};

/// The whole data of a store.
pub(crate) struct State {
    /// The time of the operation under way (C4).
    pub(crate) now: DateTime<Utc>,
    pub(crate) jobs: BTreeMap<JobId, Box<Row>>,
    pub(crate) queues: Directory,
    /// Expired and Exhausted jobs: what the next reclaim takes.
    pub(crate) reclaimable: BTreeSet<(DateTime<Utc>, JobId)>,
    pub(crate) history: History,
    pub(crate) policies: PolicyBook,
    pub(crate) turns: Turns,
    pub(crate) ledger: Ledger,
    pub(crate) locks: Locks,
    pub(crate) events: EventHub,
    pub(crate) subscribers: Subscribers,
    clock: Arc<dyn Clock>,
    random: fastrand::Rng,
    last_id: i64,
}

/// A live job, and where its queue is.
pub(crate) struct Row {
    pub(crate) job: Job,
    pub(crate) slot: Slot,
}

impl State {
    pub(crate) fn new(clock: Arc<dyn Clock>, random: fastrand::Rng) -> Self {
        Self {
            now: DateTime::<Utc>::MIN_UTC,
            jobs: BTreeMap::new(),
            queues: Directory::default(),
            reclaimable: BTreeSet::new(),
            history: History::default(),
            policies: PolicyBook::default(),
            turns: Turns::default(),
            ledger: Ledger::default(),
            locks: Locks::default(),
            events: EventHub::default(),
            subscribers: Subscribers::default(),
            clock,
            random,
            last_id: 0,
        }
    }

    /// Reads the clock, once for the operation, and moves what has become due by then.
    pub(crate) fn begin(&mut self) {
        self.now = self.now.max(whole_micros(self.clock.now())); // C4
        while let Some(slot) = self.queues.next_due(self.now) {
            self.advance(slot);
        }
    }

    /// Brings the queues that were changed up to date, and says whom to wake.
    pub(crate) fn end(&mut self) -> Vec<Arc<Subscriber>> {
        let mut woken = Vec::new();
        while let Some((slot, news)) = self.queues.next_touched() {
            if news {
                self.subscribers.of(&self.queues[slot].name, &mut woken);
            }
            self.queues[slot].take_tokens(self.now);
            self.refresh(slot);
        }
        woken
    }

    /// A number for a new job (E10).
    pub(crate) fn next_id(&mut self) -> JobId {
        self.last_id += 1;
        JobId::new(self.last_id)
    }

    /// A number between 0 and 1, for jitter.
    pub(crate) fn random(&mut self) -> f64 {
        self.random.f64()
    }

    /// What holds for a queue, whether or not there is anything in it.
    pub(crate) fn policy(&self, queue: &QueueName) -> Arc<EffectivePolicy> {
        match self.queues.find(queue) {
            Some(slot) => self.queues[slot].policy.clone(),
            None => self.policies.effective(queue),
        }
    }

    /// The queue with this name, made if need be.
    pub(crate) fn slot(&mut self, queue: &QueueName) -> Slot {
        match self.queues.find(queue) {
            Some(slot) => slot,
            None => self.queues.add(queue, self.policies.effective(queue)),
        }
    }

    /// The job of a good receipt: live, leased, and in that epoch. Whether the lease has passed is another question.
    pub(crate) fn held(&self, receipt: &Receipt) -> Option<&Row> {
        let row = self.jobs.get(&receipt.job)?;
        (row.job.lease.is_some() && row.job.epoch == receipt.epoch).then_some(row)
    }

    /// Puts a job into its queue, which is at `slot`.
    pub(crate) fn insert(&mut self, slot: Slot, job: Job) {
        self.queues[slot].enter(&job, self.now);
        self.reclaimable.extend(reclaim_key(&job, self.now));
        self.queues.touch_with_news(slot); // W1
        self.jobs.insert(job.id, Box::new(Row { job, slot }));
    }

    /// Takes a job out of its queue.
    pub(crate) fn remove(&mut self, id: JobId) -> Option<Row> {
        let row = *self.jobs.remove(&id)?;
        let Row { job, slot } = &row;
        let (slot, queue) = (*slot, &mut self.queues[*slot]);
        queue.leave(job, self.now);
        match queue.has_limits() {
            true => self.queues.touch_with_news(slot), // The next one may have its place.
            false => self.queues.touch(slot),
        }
        reclaim_key(job, self.now).map(|key| self.reclaimable.remove(&key));
        Some(row)
    }

    /// Changes the lease of a job, where it stands. The caller touches or refreshes the queue.
    pub(crate) fn update(
        &mut self,
        id: JobId,
        change: impl FnOnce(&mut Job, &EffectivePolicy),
    ) -> Option<&Row> {
        let row = self.jobs.get_mut(&id)?;
        let queue = &mut self.queues[row.slot];
        queue.unindex(&row.job, self.now);
        change(&mut row.job, &queue.policy);
        queue.index(&row.job, self.now);
        // Leases end after now, but for those at the end of time.
        self.reclaimable.extend(reclaim_key(&row.job, self.now));
        Some(row)
    }

    /// Writes the history row of a job that was removed, if its queue's policy keeps it.
    pub(crate) fn archive(&mut self, slot: Slot, finished: FinishedJob) {
        let status = finished.outcome.status();
        if self.queues[slot].policy.archive.keeps(status) {
            // S12, P7
            self.queues[slot].dead_letters += u64::from(self.history.insert(finished));
        }
    }

    /// The job that the queue gives out first, if it is Ready. Limits are another question.
    pub(crate) fn head(&self, slot: Slot) -> Option<Rank> {
        let queue = &self.queues[slot];
        match queue.policy.order {
            QueueOrder::Priority => queue.first_ready().copied(),
            QueueOrder::Fifo => {
                // P4, P5: the smallest id of all live jobs, or nothing.
                let first = &self.jobs.get(queue.live.first()?)?.job;
                (first.state(self.now) == JobState::Ready).then(|| rank(first))
            }
        }
    }

    /// Works out anew whether something can be leased from a queue, and when time next changes it.
    pub(crate) fn refresh(&mut self, slot: Slot) {
        let queue = &self.queues[slot];
        let claimable = queue.is_open(self.now) && self.head(slot).is_some();
        let timer = queue.next_change(self.now);
        let idle = queue.is_empty() && timer.is_none();
        self.queues.set_claimable(slot, claimable);
        self.queues.set_timer(slot, timer);
        if idle {
            self.queues.remove(slot);
        }
    }

    /// Tells subscribers what happened to a job.
    pub(crate) fn tell(&self, kind: EventKind, queue: &QueueName, job: JobId) {
        self.events.send(kind, queue, job, self.now);
    }

    /// Tells subscribers that a stale receipt was shown.
    pub(crate) fn tell_lost(&self, receipt: &Receipt) {
        let live = self.jobs.get(&receipt.job).map(|row| &row.job.queue);
        if let Some(queue) = live.or_else(|| self.history.get(receipt.job).map(|job| &job.queue)) {
            self.tell(EventKind::LeaseLost, queue, receipt.job);
        }
    }

    /// Makes jobs Ready whose time has come, and leases Expired that have passed.
    fn advance(&mut self, slot: Slot) {
        let queue = &mut self.queues[slot];
        while let Some(id) = queue.next_due(self.now) {
            if let Some(row) = self.jobs.get(&id) {
                queue.make_due(&row.job);
            }
        }
        while let Some(passed) = queue.next_passed(self.now) {
            self.reclaimable.insert(passed);
        }
        queue.take_tokens(self.now);
        self.refresh(slot);
    }
}

/// Where a job that can be reclaimed stands in the order of reclaiming.
fn reclaim_key(job: &Job, now: DateTime<Utc>) -> Option<(DateTime<Utc>, JobId)> {
    match (job.state(now), &job.lease) {
        (JobState::Expired, Some(lease)) => Some((lease.until, job.id)),
        (JobState::Exhausted, _) => Some((job.available_at, job.id)),
        _ => None,
    }
}
