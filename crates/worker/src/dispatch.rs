//! The loop that claims jobs, starts them and sees them settled.
//!
//! It never waits for the store: claims, settlements and everything else are tasks of their own, whose answers come back
//! here. So the next batch is claimed while the last one is settled, and a store that hangs stops nothing but itself.

mod wind_down;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::{
    BatchSize, Dequeue, Job, LeaseFor, NextAvailable, Receipt, Reclaimed, Store, StoreError, WorkerId,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::call::{answer, later, patience, sleep_until};
use crate::context::Execution;
use crate::execute::{Executor, Finished};
use crate::leases::Leases;
use crate::outage::{Outage, with_causes};
use crate::report::Reporter;
use crate::settle::{Settler, released};
use crate::source::{After, Source};

/// Settlements that may be under way at once.
const SETTLEMENTS: usize = 4;
/// How long free slots wait for more to become free, while others are still running, so that one claim fills them all.
const GATHER: Duration = Duration::from_millis(1);
/// How many passed leases are taken away at once.
const RECLAIM: u32 = 1000;

/// What was said to the builder.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) worker: WorkerId,
    pub(crate) concurrency: usize,
    pub(crate) lease: LeaseFor,
    pub(crate) poll: Duration,
    pub(crate) claim_batch: usize,
    pub(crate) settle_batch: usize,
    pub(crate) settle_within: Duration,
    pub(crate) grace: Duration,
}

/// How the worker is told to stop.
#[derive(Clone, Default)]
pub(crate) struct Stop {
    /// Claim nothing more.
    pub(crate) claiming: CancellationToken,
    /// Wait for nothing more.
    pub(crate) waiting: CancellationToken,
    /// When the grace ends, if that was said.
    pub(crate) ends: Arc<OnceLock<Instant>>,
}

/// What a stopped worker has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stopped {
    /// Jobs that were running at the end of the grace period, and were given back with their attempt refunded.
    pub released: usize,
    /// Those of them that could not be given back, because the store did not answer: they come back when their leases have
    /// passed.
    pub abandoned: usize,
}

pub(crate) struct Dispatcher {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) settings: Settings,
    pub(crate) executor: Arc<Executor>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) reporter: Reporter,
    pub(crate) wake: Arc<Notify>,
    pub(crate) stop: Stop,
    pub(crate) sources: Vec<Source>,
    settler: Arc<Settler>,
    executions: JoinSet<Finished>,
    /// The jobs whose handlers are running, with their source.
    running: BTreeMap<Receipt, (Arc<Job>, usize)>,
    /// Ended and not yet sent: what the worker settles, and what handlers have settled or tried to.
    ended: [Vec<Finished>; 2],
    /// Which of the two is sent first if not all can be.
    first: usize,
    /// When the first of them must be sent.
    settle_at: Option<Instant>,
    errands: JoinSet<Answer>,
    settlements: usize,
    /// Claims wait until then for more slots to become free.
    gather_until: Option<Instant>,
    reclaim_at: Instant,
    reclaiming: bool,
    reclaim_outage: Outage,
}

/// What comes back from the store.
enum Answer {
    Claimed { source: usize, asked: usize, sent: Instant, jobs: Result<Vec<Job>, StoreError> },
    Told { source: usize, next: Result<Option<NextAvailable>, StoreError> },
    Reclaimed { source: Option<usize>, reclaimed: Result<Vec<Reclaimed>, StoreError> },
    Settled { sources: Vec<(usize, usize)> },
}

impl Dispatcher {
    #[allow(clippy::too_many_arguments, reason = "the parts of one worker, put together in one place")]
    pub(crate) fn new(
        store: Arc<dyn Store>,
        settings: Settings,
        executor: Arc<Executor>,
        leases: Arc<Leases>,
        reporter: Reporter,
        wake: Arc<Notify>,
        stop: Stop,
        sources: Vec<Source>,
    ) -> Self {
        let patience = patience(settings.lease);
        let settler = Settler::new(Arc::clone(&store), Arc::clone(&leases), reporter.clone(), patience);
        let reclaim_at = Instant::now() + reclaim_every(settings.lease);
        Self {
            store,
            settings,
            executor,
            leases,
            reporter,
            wake,
            stop,
            sources,
            settler: Arc::new(settler),
            executions: JoinSet::new(),
            running: BTreeMap::new(),
            ended: [Vec::new(), Vec::new()],
            first: 0,
            settle_at: None,
            errands: JoinSet::new(),
            settlements: 0,
            gather_until: None,
            reclaim_at,
            reclaiming: false,
            reclaim_outage: Outage::new("reclaim"),
        }
    }

    /// Works until it is told to stop, and then as long as the grace allows.
    pub(crate) async fn run(mut self, hints: Vec<Arc<Notify>>) -> Stopped {
        let wake = Arc::clone(&self.wake);
        let stop = self.stop.clone();
        let mut hinted = Hinted::new(hints);
        while !stop.claiming.is_cancelled() {
            self.catch_up();
            self.claim();
            self.settle();
            let next = self.next_time();
            // Hints come first, since catching up sees to the rest in each round.
            tokio::select! {
                biased;
                () = stop.claiming.cancelled() => {}
                () = wake.notified() => self.hint(None),
                source = hinted.next() => self.hint(Some(source)),
                Some(Ok(finished)) = self.executions.join_next(), if !self.executions.is_empty() => self.finished(finished),
                Some(Ok(answer)) = self.errands.join_next(), if !self.errands.is_empty() => self.answered(answer),
                () = sleep_until(next) => {}
            }
        }
        self.reporter.stopping();
        self.wind_down().await
    }

    /// Does all that can be done without waiting, so that none of it can keep the rest from being done.
    fn catch_up(&mut self) {
        self.on_time();
        while let Some(finished) = self.executions.try_join_next() {
            finished.into_iter().for_each(|finished| self.finished(finished));
        }
        while let Some(answer) = self.errands.try_join_next() {
            answer.into_iter().for_each(|answer| self.answered(answer));
        }
    }

    /// Sends claims for the free slots.
    fn claim(&mut self) {
        let now = Instant::now();
        loop {
            let free = self.free();
            let willing = self.sources.iter().filter(|source| source.room(now) > 0);
            let wish: u64 = willing.map(|source| u64::from(source.weight)).sum();
            if free == 0 || wish == 0 {
                self.gather_until = None;
                return;
            }
            if !self.is_worth_it(free, now) {
                return;
            }
            let source = self.turn(wish, now);
            let share = (free as u64 * u64::from(self.sources[source].weight)).div_ceil(wish) as usize;
            let asked = share.min(self.sources[source].room(now)).min(self.settings.claim_batch);
            self.send_claim(source, asked, now);
        }
    }

    /// Whether to claim now rather than to wait a moment for more slots.
    fn is_worth_it(&mut self, free: usize, now: Instant) -> bool {
        let enough = (self.settings.concurrency / 4).clamp(1, self.settings.claim_batch);
        if free >= enough || self.running.is_empty() || self.gather_until.is_some_and(|until| until <= now) {
            return true;
        }
        self.gather_until.get_or_insert(now + GATHER);
        false
    }

    /// Whose turn it is: each source gets turns in proportion to its weight.
    fn turn(&mut self, wish: u64, now: Instant) -> usize {
        let mut best = 0;
        let mut most = i64::MIN;
        for (place, source) in self.sources.iter_mut().enumerate().filter(|(_, source)| source.room(now) > 0)
        {
            source.credit += i64::from(source.weight);
            if source.credit > most {
                (best, most) = (place, source.credit);
            }
        }
        self.sources[best].credit -= wish as i64;
        best
    }

    fn send_claim(&mut self, source: usize, asked: usize, sent: Instant) {
        self.gather_until = None;
        self.sources[source].claiming(asked);
        let (store, patience) = (Arc::clone(&self.store), patience(self.settings.lease));
        let limit = BatchSize::new(asked as u32).unwrap_or(BatchSize::ONE);
        let request = Dequeue {
            queues: self.sources[source].queues.clone(),
            limit,
            lease_for: self.settings.lease,
            worker: self.settings.worker.clone(),
        };
        self.errands.spawn(async move {
            let jobs = answer("dequeue", patience, async || store.dequeue(&request).await).await;
            Answer::Claimed { source, asked, sent, jobs }
        });
    }

    /// Slots to claim for. There are none while more has ended than can be settled: it would be more and more.
    fn free(&self) -> usize {
        let unsent: usize = self.ended.iter().map(Vec::len).sum();
        if self.settlements >= SETTLEMENTS && unsent >= self.settings.settle_batch {
            return 0;
        }
        let reserved: usize = self.sources.iter().map(|source| source.reserved).sum();
        self.settings.concurrency.saturating_sub(self.running.len() + reserved)
    }

    /// A handler has ended: its slot is free at once.
    fn finished(&mut self, finished: Finished) {
        let receipt = finished.job.receipt();
        self.leases.ended(&receipt);
        if self.running.remove(&receipt).is_some() {
            self.sources[finished.source].ended();
        }
        self.settle_at.get_or_insert(later(Instant::now(), self.settings.settle_within));
        self.ended[usize::from(finished.transactional)].push(finished);
        self.reporter.running(self.running.len());
    }

    /// Sends what has ended, if it is enough or has waited long enough.
    fn settle(&mut self) {
        let late = self.settle_at.is_some_and(|at| at <= Instant::now());
        for transactional in [self.first, 1 - self.first] {
            while self.settlements < SETTLEMENTS && !self.ended[transactional].is_empty() {
                let ended = &mut self.ended[transactional];
                if ended.len() < self.settings.settle_batch && !late {
                    break;
                }
                let batch: Vec<_> = ended.drain(..ended.len().min(self.settings.settle_batch)).collect();
                self.first = 1 - transactional;
                self.send_settlement(batch);
            }
        }
        if self.ended.iter().all(Vec::is_empty) {
            self.settle_at = None;
        }
    }

    fn send_settlement(&mut self, batch: Vec<Finished>) {
        self.settlements += 1;
        let mut sources: Vec<(usize, usize)> = Vec::new();
        for finished in &batch {
            match sources.iter_mut().find(|(source, _)| *source == finished.source) {
                Some((_, jobs)) => *jobs += 1,
                None => sources.push((finished.source, 1)),
            }
        }
        let settler = Arc::clone(&self.settler);
        self.errands.spawn(async move {
            settler.settle(batch).await;
            Answer::Settled { sources }
        });
    }

    fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Claimed { source, asked, sent, jobs } => self.claimed(source, asked, sent, jobs),
            Answer::Told { source, next } => self.told(source, next),
            Answer::Reclaimed { source, reclaimed } => self.reclaimed(source, reclaimed),
            Answer::Settled { sources } => {
                self.settlements -= 1;
                let now = Instant::now();
                sources.into_iter().for_each(|(source, jobs)| self.sources[source].settled(jobs, now));
            }
        }
    }

    fn claimed(&mut self, source: usize, asked: usize, sent: Instant, jobs: Result<Vec<Job>, StoreError>) {
        self.reporter.store_said(&jobs);
        match jobs {
            Ok(jobs) => {
                let jobs: Vec<Arc<Job>> = jobs.into_iter().map(Arc::new).collect();
                self.reporter.claimed(&jobs, sent.elapsed());
                let (jobs, late): (Vec<_>, Vec<_>) =
                    jobs.into_iter().partition(|job| job.leased_for().unwrap_or_default() > sent.elapsed());
                let after = self.sources[source].claimed(asked, jobs.len());
                self.start(source, jobs, sent);
                self.put_back(source, late);
                self.follow(source, after);
            }
            Err(error) => self.sources[source].failed(asked, &error, Instant::now()),
        }
    }

    /// Jobs that are not even started, because the answer took longer than their leases or the worker is stopping.
    fn put_back(&mut self, source: usize, jobs: Vec<Arc<Job>>) {
        if !jobs.is_empty() {
            self.sources[source].put_back(jobs.len());
            self.ended[0].extend(jobs.into_iter().map(|job| released(job, source)));
            self.settle_at = Some(Instant::now());
        }
    }

    /// Starts the handlers. The claim is committed by now.
    fn start(&mut self, source: usize, jobs: Vec<Arc<Job>>, sent: Instant) {
        let tokens = self.leases.hold(&jobs, sent);
        for (job, cancelled) in jobs.into_iter().zip(tokens) {
            self.running.insert(job.receipt(), (Arc::clone(&job), source));
            let execution = Execution {
                job,
                source,
                cancelled,
                stopping: self.stop.claiming.clone(),
                leases: Arc::clone(&self.leases),
                store: Arc::clone(&self.store),
            };
            self.executions.spawn(Arc::clone(&self.executor).execute(execution));
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
    fn ask(&mut self, source: usize) {
        self.sources[source].asking();
        let (store, patience) = (Arc::clone(&self.store), patience(self.settings.lease));
        let queues = self.sources[source].queues.clone();
        self.errands.spawn(async move {
            let next =
                answer("next_available_at", patience, async || store.next_available_at(&queues).await).await;
            Answer::Told { source, next }
        });
    }

    fn told(&mut self, source: usize, next: Result<Option<NextAvailable>, StoreError>) {
        self.reporter.store_said(&next);
        let (source, now) = (&mut self.sources[source], Instant::now());
        match next {
            Ok(next) => source.told(next.map(|next| next.wait), self.settings.poll, now),
            Err(error) => source.not_told(&error, now),
        }
    }

    /// Takes passed leases away from whoever holds them.
    fn reclaim(&mut self, source: Option<usize>) {
        self.reclaim_at = Instant::now() + reclaim_every(self.settings.lease);
        match source {
            Some(source) => self.sources[source].asking(),
            None if self.reclaiming => return,
            None => {}
        }
        self.reclaiming = true;
        let (store, patience) = (Arc::clone(&self.store), patience(self.settings.lease));
        self.errands.spawn(async move {
            let limit = BatchSize::new(RECLAIM).unwrap_or(BatchSize::ONE);
            let reclaimed = answer("reclaim", patience, async || store.reclaim(limit).await).await;
            Answer::Reclaimed { source, reclaimed }
        });
    }

    fn reclaimed(&mut self, source: Option<usize>, reclaimed: Result<Vec<Reclaimed>, StoreError>) {
        self.reclaiming = false;
        self.reporter.store_said(&reclaimed);
        let (source, now) = (source.map(|source| &mut self.sources[source]), Instant::now());
        match (reclaimed, source) {
            (Ok(reclaimed), source) => {
                self.reclaim_outage.over();
                if let Some(source) = source {
                    source.reclaimed(!reclaimed.is_empty(), self.settings.poll, now);
                }
                if !reclaimed.is_empty() {
                    self.sources.iter_mut().for_each(Source::hint);
                }
                if reclaimed.len() >= RECLAIM as usize {
                    self.reclaim_at = now;
                }
                self.reporter.reclaimed(reclaimed);
            }
            (Err(error), Some(source)) => source.not_told(&error, now),
            (Err(error), None) => {
                self.reclaim_outage.failed(&with_causes(&error));
            }
        }
    }

    /// Somebody says that there is something.
    fn hint(&mut self, source: Option<usize>) {
        self.reporter.wakeup();
        match source {
            Some(source) => self.sources[source].hint(),
            None => self.sources.iter_mut().for_each(Source::hint),
        }
    }

    /// Does what its time has come for: polling, and taking leases away.
    fn on_time(&mut self) {
        let now = Instant::now();
        for source in 0..self.sources.len() {
            if self.sources[source].is_to_ask(now) {
                self.ask(source);
            }
        }
        if self.reclaim_at <= now && !self.running.is_empty() {
            self.reclaim(None);
        }
    }

    /// When the loop must go round again, if nothing happens.
    fn next_time(&mut self) -> Option<Instant> {
        let (now, poll) = (Instant::now(), self.settings.poll);
        let sources = self.sources.iter_mut().filter_map(|source| source.next_time(poll, now));
        let reclaim = (!self.running.is_empty()).then_some(self.reclaim_at);
        let soonest = sources.chain(reclaim).chain(self.gather_until).min();
        soonest.into_iter().chain(self.settle_at()).min()
    }

    /// When what has ended is to be sent; not while as much is under way as may be.
    fn settle_at(&self) -> Option<Instant> {
        self.settle_at.filter(|_| self.settlements < SETTLEMENTS)
    }
}

/// How often passed leases are looked for: never at the same moment in two workers.
fn reclaim_every(lease: LeaseFor) -> Duration {
    let half = (lease.get() / 2).clamp(Duration::from_millis(100), Duration::from_secs(30));
    half.mul_f64(0.75 + 0.5 * fastrand::f64())
}

/// The hints of all sources.
struct Hinted(Vec<Arc<Notify>>);

impl Hinted {
    fn new(hints: Vec<Arc<Notify>>) -> Self {
        Self(hints)
    }

    /// The next source that somebody hints at.
    async fn next(&mut self) -> usize {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let notified = self.0.iter().map(|hint| Box::pin(hint.notified()));
        futures_util::future::select_all(notified).await.1
    }
}
