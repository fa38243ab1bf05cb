//! Where jobs come from: claims for the free slots, looking for what will be due, taking passed leases away.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    BatchSize, Delay, Dequeue, Job, LeaseFor, NextAvailable, Reclaimed, StoreError, Verdict,
};
use tokio::time::Instant;

use super::errands::{Answer, Claim, Errand};
use super::share::{Sharing, Wish};
use super::{Dispatcher, Running, Settings};
use crate::call::{answer, patience};
use crate::context::Execution;
use crate::outage::{Outage, with_causes};
use crate::settle::not_started;
use crate::source::{After, Brought, Source};

/// How long free slots wait for more to become free, while others are still running, so that one claim fills them all.
const GATHER: Duration = Duration::from_millis(1);
/// How long slots are kept free for the answer to a claim. A claim that hangs must not keep them from other sources.
const FIRM: Duration = Duration::from_secs(2);
/// How many passed leases are taken away at once.
const RECLAIM: u32 = 1000;
/// When a job is offered again whose last execution has not ended here.
const STILL_RUNNING: Duration = Duration::from_secs(1);

/// What is under way to get jobs.
pub(super) struct Claims {
    /// The number of the next claim.
    number: u64,
    /// Claims for whose answers slots are kept free, oldest first.
    firm: VecDeque<Claim>,
    sharing: Sharing,
    /// Claims wait until then for more slots to become free.
    pub(super) gather_until: Option<Instant>,
    pub(super) reclaim_at: Instant,
    reclaiming: bool,
    reclaim_outage: Outage,
}

impl Claims {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            number: 0,
            firm: VecDeque::new(),
            sharing: Sharing::default(),
            gather_until: None,
            reclaim_at: Instant::now() + reclaim_every(settings.lease),
            reclaiming: false,
            reclaim_outage: Outage::new("reclaim"),
        }
    }

    /// The claim was answered. Whether slots were kept free for that.
    fn landed(&mut self, claim: &Claim) -> bool {
        let place = self.firm.iter().position(|firm| firm.number == claim.number);
        place.and_then(|place| self.firm.remove(place)).is_some()
    }
}

impl Dispatcher {
    /// Sends claims for the free slots.
    pub(super) fn claim(&mut self) {
        let now = Instant::now();
        let free = self.free();
        let mut wishes = self.wishes(now);
        if free == 0 || wishes.is_empty() {
            self.claims.gather_until = None;
            return;
        }
        if !self.is_worth_it(free, now) {
            return;
        }
        let shares = self.claims.sharing.share(free, &mut wishes);
        for wish in wishes {
            self.sources[wish.source].position = wish.position;
            if let Some(asked) = shares.get(&wish.source) {
                self.send_claim(wish.source, *asked, now);
            }
        }
    }

    /// The sources that would claim now.
    fn wishes(&self, now: Instant) -> Vec<Wish> {
        let wish = |(place, source): (usize, &Source)| {
            let (firm, room) = (!source.is_suspect(), source.room(now));
            let most = if firm { room.min(self.settings.claim_batch) } else { room.min(1) };
            (most > 0).then_some(Wish {
                source: place,
                weight: source.weight,
                position: source.position,
                most,
                firm,
            })
        };
        self.sources.iter().enumerate().filter_map(wish).collect()
    }

    /// Slots to claim for. There are none while more has ended than can be settled: it would be more and more.
    fn free(&self) -> usize {
        if self.settlements.is_behind(&self.settings) {
            return 0;
        }
        self.settings.concurrency.saturating_sub(self.running.len() + self.reserved())
    }

    /// Slots that are kept free for answers.
    fn reserved(&self) -> usize {
        self.sources.iter().map(|source| source.reserved).sum()
    }

    /// Whether to claim now rather than to wait a moment for more slots.
    fn is_worth_it(&mut self, free: usize, now: Instant) -> bool {
        let enough = (self.settings.concurrency / 4).clamp(1, self.settings.claim_batch);
        if free >= enough
            || self.running.is_empty()
            || self.claims.gather_until.is_some_and(|until| until <= now)
        {
            return true;
        }
        self.claims.gather_until.get_or_insert(now + GATHER);
        false
    }

    fn send_claim(&mut self, source: usize, asked: usize, sent: Instant) {
        self.claims.gather_until = None;
        self.claims.number += 1;
        let claim = Claim { number: self.claims.number, source, asked, sent };
        if self.sources[source].claiming(asked) {
            self.claims.firm.push_back(claim);
        }
        self.reporter.claiming();
        let (store, patience) = (Arc::clone(&self.store), patience(self.settings.lease));
        let limit = BatchSize::new(asked as u32).unwrap_or(BatchSize::ONE);
        let request = Dequeue {
            queues: self.sources[source].queues.clone(),
            limit,
            lease_for: self.settings.lease,
            worker: self.settings.worker.clone(),
        };
        self.errands.send(Errand::Claim(claim), async move {
            let jobs = answer("dequeue", patience, async || store.dequeue(&request).await).await;
            Answer::Claimed { claim, jobs }
        });
    }

    /// Keeps no slots free any longer for claims that are under way for too long.
    pub(super) fn lapse(&mut self, now: Instant) {
        while let Some(claim) = self.claims.firm.front().filter(|claim| claim.sent + FIRM <= now) {
            self.sources[claim.source].lapsed(claim.asked);
            self.claims.firm.pop_front();
        }
    }

    pub(super) fn next_lapse(&self) -> Option<Instant> {
        self.claims.firm.front().map(|claim| claim.sent + FIRM)
    }

    pub(super) fn claimed(&mut self, claim: Claim, jobs: Result<Vec<Job>, StoreError>) {
        self.reporter.store_said(&jobs);
        let firm = self.claims.landed(&claim);
        let source = &mut self.sources[claim.source];
        let jobs = match jobs {
            Ok(jobs) => jobs,
            Err(error) => return source.failed(claim.asked, firm, &error, Instant::now()),
        };
        self.reporter.claim_took(claim.sent.elapsed());
        source.landed(claim.asked, firm);
        if self.stop.claiming.is_cancelled() {
            let jobs = jobs.into_iter().map(Arc::new).collect();
            return self.give_back(claim.source, jobs, Delay::ZERO);
        }
        let brought = jobs.len();
        let jobs = self.that_can_start(claim, firm, jobs.into_iter().map(Arc::new).collect());
        let (asked, late) = (claim.asked, claim.sent.elapsed() >= FIRM);
        let brought = Brought { asked, jobs: brought, started: jobs.len(), late };
        let after = self.sources[claim.source].claimed(brought);
        self.start(claim.source, jobs, claim.sent);
        self.follow(claim.source, after);
    }

    /// The jobs to start. The others are given back.
    fn that_can_start(&mut self, claim: Claim, firm: bool, jobs: Vec<Arc<Job>>) -> Vec<Arc<Job>> {
        let (jobs, late): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| job.leased_for().unwrap_or_default() > claim.sent.elapsed());
        self.not_started(
            claim.source,
            late,
            Delay::ZERO,
            "the answer to the claim took longer than their lease",
        );
        let (running, mut jobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| self.is_running(job));
        let later = Delay::new(STILL_RUNNING).unwrap_or(Delay::ZERO);
        self.not_started(claim.source, running, later, "an earlier attempt is still running here");
        let slots = self.settings.concurrency.saturating_sub(self.running.len() + self.reserved());
        if !firm && jobs.len() > slots {
            let surplus = jobs.split_off(slots);
            self.not_started(claim.source, surplus, Delay::ZERO, "the answer to the claim came late");
        }
        jobs
    }

    /// Whether an earlier attempt of this job has lost its lease and not ended. Its token fires.
    fn is_running(&self, job: &Job) -> bool {
        let attempts = leasehold_core::Receipt { job: job.id, epoch: leasehold_core::Epoch::ZERO }..;
        let earlier = self.running.range(attempts).next().map(|(receipt, _)| receipt);
        let earlier = earlier.filter(|receipt| receipt.job == job.id);
        if let Some(receipt) = earlier
            && self.leases.lose(receipt)
        {
            self.reporter.lease_lost(*receipt, "the job was leased again");
        }
        earlier.is_some()
    }

    /// Jobs that cannot be started are told of and given back.
    fn not_started(&mut self, source: usize, jobs: Vec<Arc<Job>>, after: Delay, why: &'static str) {
        if !jobs.is_empty() {
            self.reporter.not_started(jobs.len(), why);
            self.give_back(source, jobs, after);
        }
    }

    fn give_back(&mut self, source: usize, jobs: Vec<Arc<Job>>, after: Delay) {
        self.sources[source].put_back(jobs.len());
        for job in jobs {
            self.settlements.add_now(not_started(job, source, Verdict::Snooze { after }));
        }
    }

    /// Starts the handlers. The claim is committed by now.
    fn start(&mut self, source: usize, jobs: Vec<Arc<Job>>, sent: Instant) {
        self.reporter.started(source, &jobs);
        let router = &self.executor.router;
        let tokens = self.leases.hold(&jobs, sent, |job| router.is_transactional(&job.kind));
        for (job, cancelled) in jobs.into_iter().zip(tokens) {
            let receipt = job.receipt();
            self.running.insert(receipt, Running { job: Arc::clone(&job), source });
            let execution = Execution {
                job,
                source,
                cancelled,
                stopping: self.stop.claiming.clone(),
                leases: Arc::clone(&self.leases),
                store: Arc::clone(&self.store),
            };
            let task = self.executions.spawn(Arc::clone(&self.executor).execute(execution));
            self.tasks.insert(task.id(), receipt);
        }
        self.reporter.running(self.running.len());
    }

    fn follow(&mut self, source: usize, after: After) {
        match after {
            After::Go => {}
            After::Ask => self.ask(source),
            After::Reclaim => self.reclaim(Some(source)),
        }
    }

    /// Asks when there will be something to claim.
    pub(super) fn ask(&mut self, source: usize) {
        self.sources[source].asking();
        let (store, patience) = (Arc::clone(&self.store), patience(self.settings.lease));
        let queues = self.sources[source].queues.clone();
        self.errands.send(Errand::Ask { source }, async move {
            let next =
                answer("next_available_at", patience, async || store.next_available_at(&queues).await).await;
            Answer::Told { source, next }
        });
    }

    pub(super) fn told(&mut self, source: usize, next: Result<Option<NextAvailable>, StoreError>) {
        self.reporter.store_said(&next);
        let (source, now) = (&mut self.sources[source], Instant::now());
        match next {
            Ok(next) => source.told(next.map(|next| next.wait), self.settings.poll, now),
            Err(error) => source.not_told(&error, now),
        }
    }

    /// Takes passed leases away, whichever worker has them.
    pub(super) fn reclaim(&mut self, source: Option<usize>) {
        self.claims.reclaim_at = Instant::now() + reclaim_every(self.settings.lease);
        match source {
            Some(source) => self.sources[source].asking(),
            None if self.claims.reclaiming => return,
            None => {}
        }
        self.claims.reclaiming = true;
        let (store, patience) = (Arc::clone(&self.store), patience(self.settings.lease));
        self.errands.send(Errand::Reclaim { source }, async move {
            let limit = BatchSize::new(RECLAIM).unwrap_or(BatchSize::ONE);
            let reclaimed = answer("reclaim", patience, async || store.reclaim(limit).await).await;
            Answer::Reclaimed { source, reclaimed }
        });
    }

    pub(super) fn reclaimed(&mut self, source: Option<usize>, reclaimed: Result<Vec<Reclaimed>, StoreError>) {
        self.claims.reclaiming = false;
        self.reporter.store_said(&reclaimed);
        let (source, now) = (source.map(|source| &mut self.sources[source]), Instant::now());
        match (reclaimed, source) {
            (Ok(reclaimed), source) => {
                self.claims.reclaim_outage.over();
                if let Some(source) = source {
                    source.reclaimed(!reclaimed.is_empty(), self.settings.poll, now);
                }
                if !reclaimed.is_empty() {
                    self.sources.iter_mut().for_each(Source::hint);
                }
                if reclaimed.len() >= RECLAIM as usize {
                    self.claims.reclaim_at = now;
                }
                self.reporter.reclaimed(reclaimed);
            }
            (Err(error), Some(source)) => source.not_told(&error, now),
            (Err(error), None) => {
                self.claims.reclaim_outage.failed(&with_causes(&error));
            }
        }
    }
}

/// How often passed leases are looked for: never at the same moment in two workers.
fn reclaim_every(lease: LeaseFor) -> Duration {
    let half = (lease.get() / 2).clamp(Duration::from_millis(100), Duration::from_secs(30));
    half.mul_f64(0.75 + 0.5 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_leases_are_looked_for_after_half_a_lease_give_or_take_a_quarter() {
        let millis = Duration::from_millis;
        // As long as a lease is, half of it within bounds.
        for (lease, half) in [(1, 100), (200, 100), (10_000, 5000), (60_000, 30_000), (3_600_000, 30_000)] {
            let lease = LeaseFor::new(millis(lease)).unwrap();
            let draws: Vec<_> = (0..100).map(|_| reclaim_every(lease)).collect();
            let (soonest, latest) = (millis(half).mul_f64(0.75), millis(half).mul_f64(1.25));
            assert!(draws.iter().all(|every| (soonest..=latest).contains(every)), "{lease:?}: {draws:?}");
            // A hundred draws from the lower or the upper half alone have a chance of one in 2^99.
            assert!(draws.iter().any(|every| *every > millis(half)), "{lease:?}: {draws:?}");
            assert!(draws.iter().any(|every| *every < millis(half)), "{lease:?}: {draws:?}");
        }
    }
}
