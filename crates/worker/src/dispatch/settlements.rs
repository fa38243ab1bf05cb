//! What has ended and is not settled yet.
//!
//! Batches that are sent for the first time and those that are sent again have places of their own, so that jobs which cannot
//! be settled keep no others waiting.

use std::sync::Arc;

use leasehold_core::StoreError;
use tokio::time::Instant;

use super::errands::{Answer, Errand, Sent};
use super::{Dispatcher, Settings};
use crate::call::later;
use crate::execute::Finished;
use crate::outage::{Outage, pause, with_causes};
use crate::router::Ending;
use crate::settle::{Batch, Round, Settler};

/// Batches that may be under way at once for the first time.
const FIRST: usize = 4;
/// Batches that may be under way at once again. Half of these places are for those that have not failed often.
const AGAIN: usize = 8;
/// With so many jobs to be settled again, or four batches if that is more, nothing is claimed.
const MOST: usize = 1000;

/// What has ended and is not settled yet.
pub(super) struct Settlements {
    pub(super) settler: Arc<Settler>,
    /// Not yet sent: what the worker settles, and what handlers have settled or tried to.
    ended: [Vec<Finished>; 2],
    /// Which of the two is sent first if not all can be.
    first: usize,
    /// When the first of them must be sent.
    due: Option<Instant>,
    /// To be sent again.
    again: Vec<Batch>,
    /// Batches under way, for the first time and again.
    under_way: [usize; 2],
    /// Jobs in batches under way for the first time.
    first_jobs: usize,
    /// Jobs in batches to be sent again, or under way again.
    again_jobs: usize,
    outage: Outage,
    /// While nothing succeeds: no verdict that has failed alone is sent again before.
    paused_until: Option<Instant>,
    /// How often in a row the store was unavailable for a batch that was sent for the first time.
    unavailable: u32,
    /// While the store is unavailable: nothing is sent for the first time before.
    held_until: Option<Instant>,
    batch: usize,
}

impl Settlements {
    pub(super) fn new(settler: Settler, settings: &Settings) -> Self {
        Self {
            settler: Arc::new(settler),
            ended: [Vec::new(), Vec::new()],
            first: 0,
            due: None,
            again: Vec::new(),
            under_way: [0, 0],
            first_jobs: 0,
            again_jobs: 0,
            outage: Outage::new("settle"),
            paused_until: None,
            unavailable: 0,
            held_until: None,
            batch: settings.settle_batch,
        }
    }

    /// A handler has ended.
    pub(super) fn add(&mut self, finished: Finished, settings: &Settings) {
        self.due.get_or_insert(later(Instant::now(), settings.settle_within));
        let proof = matches!(finished.ending, Ending::Settled(_));
        self.ended[usize::from(proof)].push(finished);
    }

    /// The same for one that is to be sent at once, with what is there.
    pub(super) fn add_now(&mut self, finished: Finished) {
        self.ended[0].push(finished);
        self.due = Some(Instant::now());
    }

    /// Whether more has ended than can be settled.
    pub(super) fn is_behind(&self, settings: &Settings) -> bool {
        let blocked = self.under_way[0] >= FIRST || self.held_until(Instant::now()).is_some();
        let most = MOST.max(FIRST * settings.settle_batch);
        blocked && self.unsent() >= settings.settle_batch || self.again_jobs >= most
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unsent() == 0 && self.again.is_empty() && self.under_way == [0, 0]
    }

    fn unsent(&self) -> usize {
        self.ended.iter().map(Vec::len).sum()
    }

    /// Jobs whose verdicts are not under way.
    pub(super) fn waiting(&self) -> usize {
        self.unsent() + self.again.iter().map(Batch::len).sum::<usize>()
    }

    /// From now on nothing waits for company, and answers are not awaited for long.
    pub(super) fn hurry(&mut self) {
        self.settler.hurry.cancel();
        self.due = Some(Instant::now());
        self.again.iter_mut().for_each(Batch::hurry);
        (self.paused_until, self.held_until) = (None, None);
    }

    /// The next batch to send, if one may be sent now.
    fn next(&mut self) -> Option<(Batch, bool)> {
        let now = Instant::now();
        self.next_ended(now)
            .map(|batch| (batch, false))
            .or_else(|| self.next_again(now).map(|batch| (batch, true)))
    }

    /// What has ended, if it is enough or has waited long enough.
    fn next_ended(&mut self, now: Instant) -> Option<Batch> {
        if self.under_way[0] >= FIRST || self.held_until(now).is_some() {
            return None;
        }
        let late = self.due.is_some_and(|at| at <= now);
        let is_due = |sort: &usize| {
            let ended = &self.ended[*sort];
            ended.len() >= self.batch || late && !ended.is_empty()
        };
        let sort = [self.first, 1 - self.first].into_iter().find(is_due)?;
        self.first = 1 - sort;
        let count = self.ended[sort].len().min(self.batch);
        let jobs = self.ended[sort].drain(..count).collect();
        if self.unsent() == 0 {
            self.due = None;
        }
        Some(self.settler.batch(jobs))
    }

    fn next_again(&mut self, now: Instant) -> Option<Batch> {
        let ready = |batch: &Batch| self.ready_at(batch).is_some_and(|at| at <= now);
        let ready = self.again.iter().enumerate().filter(|(_, batch)| ready(batch));
        let (place, _) = ready.min_by_key(|(_, batch)| (batch.failures(), batch.due()))?;
        let mut batch = self.again.remove(place);
        // What would be sent soon goes along.
        let soon = now + pause(batch.failures());
        let most = self.batch;
        self.again.retain_mut(|other| other.due() > soon || !batch.join(other, most));
        Some(batch)
    }

    /// When this one may be sent again; not while there is no place for it.
    fn ready_at(&self, batch: &Batch) -> Option<Instant> {
        let places = if batch.is_stubborn() { AGAIN / 2 } else { AGAIN };
        let alone = batch.is_repeated() && self.paused_until.is_some();
        match self.under_way[1] {
            under_way if under_way >= places || alone && under_way > 0 => None,
            _ if alone => Some(self.paused_until.map_or(batch.due(), |until| until.max(batch.due()))),
            _ => Some(batch.due()),
        }
    }

    /// The store is unavailable: nothing is sent for the first time before this.
    fn held_until(&self, now: Instant) -> Option<Instant> {
        self.held_until.filter(|until| now < *until)
    }

    /// When something is to be sent, if nothing happens before.
    pub(super) fn next_time(&self) -> Option<Instant> {
        let held = self.held_until(Instant::now());
        let due = self.due.filter(|_| self.unsent() > 0 && self.under_way[0] < FIRST);
        let ended = due.map(|due| held.map_or(due, |held| held.max(due)));
        let again = self.again.iter().filter_map(|batch| self.ready_at(batch)).min();
        ended.into_iter().chain(again).min()
    }

    fn sent(&mut self, batch: &Batch, again: bool) {
        self.under_way[usize::from(again)] += 1;
        self.first_jobs += if again { 0 } else { batch.len() };
    }

    fn landed(&mut self, sent: &Sent, round: &mut Round) {
        self.under_way[usize::from(sent.again)] -= 1;
        match sent.again {
            true => self.again_jobs -= sent.jobs.len(),
            false => self.first_jobs -= sent.jobs.len(),
        }
        self.again_jobs += round.again.iter().map(Batch::len).sum::<usize>();
        match &round.error {
            Some(error) => self.failed(error, sent),
            None => {
                self.outage.over();
                (self.paused_until, self.unavailable, self.held_until) = (None, 0, None);
            }
        }
        self.again.append(&mut round.again);
    }

    fn failed(&mut self, error: &StoreError, sent: &Sent) {
        if !sent.again {
            self.first_failed(error);
        }
        // What fails while others are settled is the trouble of that job.
        if sent.again && sent.jobs.len() == 1 && !self.outage.is_on() {
            return;
        }
        self.paused_until = Some(Instant::now() + self.outage.failed(&with_causes(error)));
    }

    /// A batch has failed that was sent for the first time. The reason may be one of its jobs, so only the next such failure
    /// holds up others.
    fn first_failed(&mut self, error: &StoreError) {
        self.unavailable = if error.is_retryable() { self.unavailable.saturating_add(1) } else { 0 };
        let pauses = self.unavailable.saturating_sub(1);
        self.held_until = (pauses > 0).then(|| Instant::now() + pause(pauses));
    }

    fn unsettled(&self) -> usize {
        self.unsent() + self.first_jobs + self.again_jobs
    }
}

impl Dispatcher {
    /// Sends what may be sent now.
    pub(super) fn settle(&mut self) {
        while let Some((batch, again)) = self.settlements.next() {
            self.settlements.sent(&batch, again);
            let sent = Arc::new(Sent { jobs: batch.jobs(), again });
            let settler = Arc::clone(&self.settlements.settler);
            let about = Errand::Settle(Arc::clone(&sent));
            self.errands.send(about, async move {
                let round = settler.round(batch).await;
                Answer::Settled { sent, round }
            });
        }
    }

    pub(super) fn settled(&mut self, sent: &Sent, mut round: Round) {
        self.settlements.landed(sent, &mut round);
        self.leases.let_go(round.done.iter().map(|done| &done.job.receipt));
        let now = Instant::now();
        if sent.again {
            // What waited behind these may be ready now.
            round.done.iter().for_each(|done| self.sources[done.job.source].hint());
        } else {
            // Nothing waits for what must be sent again.
            let sources = by_source(sent.jobs.iter().map(|job| job.source));
            sources.into_iter().for_each(|(source, jobs)| self.sources[source].settled(jobs, now));
        }
        self.count_ends(&round.done);
        self.reporter.unsettled(self.settlements.unsettled());
    }
}

/// How many jobs each source has, of the few that a batch has.
fn by_source(sources: impl Iterator<Item = usize>) -> Vec<(usize, usize)> {
    let mut counts: Vec<(usize, usize)> = Vec::new();
    for source in sources {
        match counts.iter_mut().find(|(other, _)| *other == source) {
            Some((_, jobs)) => *jobs += 1,
            None => counts.push((source, 1)),
        }
    }
    counts
}

#[cfg(test)]
mod tests;
