//! The loop that claims jobs, starts them and sees them settled.
//!
//! It never waits for the store: claims, settlements and everything else are tasks of their own, whose answers come back
//! here. So the next batch is claimed while the last one is settled, and a store that hangs stops nothing but itself.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::{
    BatchSize, Dequeue, Job, LeaseFor, NextAvailable, Receipt, Reclaimed, Store, StoreError, WorkerId,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

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
/// How long jobs that are given back at the end may take.
const LAST: Duration = Duration::from_secs(5);

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
    running: HashMap<Receipt, (Arc<Job>, usize)>,
    /// Ended and not yet sent: what the worker settles, and what handlers have settled or tried to.
    ended: [Vec<Finished>; 2],
    /// When the first of them must be sent.
    settle_at: Option<Instant>,
    errands: JoinSet<Answer>,
    settlements: usize,
    /// Claims wait until then for more slots to become free.
    gather_until: Option<Instant>,
    outage: Outage,
    /// Nothing is asked of the store before.
    pause_until: Option<Instant>,
    reclaim_at: Instant,
    reclaiming: bool,
}

/// What comes back from the store.
enum Answer {
    Claimed { source: usize, asked: usize, sent: Instant, jobs: Result<Vec<Job>, StoreError> },
    Told { source: usize, next: Result<Option<NextAvailable>, StoreError> },
    Reclaimed { source: Option<usize>, reclaimed: Result<Vec<Reclaimed>, StoreError> },
    Settled { sources: Vec<usize> },
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
        let settler = Settler {
            store: Arc::clone(&store),
            leases: Arc::clone(&leases),
            reporter: reporter.clone(),
            said: Default::default(),
        };
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
            running: HashMap::new(),
            ended: [Vec::new(), Vec::new()],
            settle_at: None,
            errands: JoinSet::new(),
            settlements: 0,
            gather_until: None,
            outage: Outage::new("claim"),
            pause_until: None,
            reclaim_at,
            reclaiming: false,
        }
    }

    /// Works until it is told to stop, and then as long as the grace allows.
    pub(crate) async fn run(mut self, hints: Vec<Arc<Notify>>) -> Stopped {
        let wake = Arc::clone(&self.wake);
        let stop = self.stop.clone();
        let mut hinted = Hinted::new(hints);
        while !stop.claiming.is_cancelled() {
            self.claim();
            self.settle();
            let next = self.next_time();
            tokio::select! {
                biased;
                () = stop.claiming.cancelled() => {}
                Some(Ok(finished)) = self.executions.join_next(), if !self.executions.is_empty() => self.finished(finished),
                Some(Ok(answer)) = self.errands.join_next(), if !self.errands.is_empty() => self.answered(answer),
                () = wake.notified() => self.hint(None),
                source = hinted.next() => self.hint(Some(source)),
                () = sleep_until(next) => self.on_time(),
            }
        }
        self.reporter.stopping();
        self.wind_down().await
    }

    /// Sends claims for the free slots.
    fn claim(&mut self) {
        let now = Instant::now();
        if self.pause_until.is_some_and(|until| now < until) {
            return;
        }
        self.pause_until = None;
        if self.is_behind() {
            return;
        }
        loop {
            let free = self.free();
            let wish: u64 =
                self.sources.iter().filter(|source| source.room() > 0).map(|s| u64::from(s.weight)).sum();
            if free == 0 || wish == 0 || !self.is_worth_it(free, now) {
                return;
            }
            let source = self.turn(wish);
            let share = (free as u64 * u64::from(self.sources[source].weight)).div_ceil(wish) as usize;
            let asked = share.min(self.sources[source].room()).min(self.settings.claim_batch);
            self.send_claim(source, asked, now);
        }
    }

    /// Whether so much waits to be settled that more of it would only wait longer. The next settlement ends it.
    fn is_behind(&self) -> bool {
        let waiting: usize = self.ended.iter().map(Vec::len).sum();
        self.settlements >= SETTLEMENTS
            && waiting >= self.settings.concurrency.max(self.settings.settle_batch)
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
    fn turn(&mut self, wish: u64) -> usize {
        let mut best = 0;
        let mut most = i64::MIN;
        for (place, source) in self.sources.iter_mut().enumerate().filter(|(_, source)| source.room() > 0) {
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
        let store = Arc::clone(&self.store);
        let limit = BatchSize::new(asked as u32).unwrap_or(BatchSize::ONE);
        let request = Dequeue {
            queues: self.sources[source].queues.clone(),
            limit,
            lease_for: self.settings.lease,
            worker: self.settings.worker.clone(),
        };
        self.errands.spawn(async move {
            let jobs = unpanicked("dequeue", store.dequeue(&request)).await;
            Answer::Claimed { source, asked, sent, jobs }
        });
    }

    fn free(&self) -> usize {
        let reserved: usize = self.sources.iter().map(|source| source.reserved).sum();
        self.settings.concurrency.saturating_sub(self.running.len() + reserved)
    }

    /// A handler has ended: its slot is free at once.
    fn finished(&mut self, finished: Finished) {
        self.ended(finished);
        while let Some(finished) = self.executions.try_join_next() {
            if let Ok(finished) = finished {
                self.ended(finished);
            }
        }
        self.reporter.running(self.running.len());
    }

    fn ended(&mut self, finished: Finished) {
        if let Some((_, source)) = self.running.remove(&finished.job.receipt()) {
            self.sources[source].running -= 1;
        }
        self.settle_at.get_or_insert(Instant::now() + self.settings.settle_within);
        self.ended[usize::from(finished.transactional)].push(finished);
    }

    /// Sends what has ended, if it is enough or has waited long enough.
    fn settle(&mut self) {
        let late = self.settle_at.is_some_and(|at| at <= Instant::now());
        for transactional in [0, 1] {
            while self.settlements < SETTLEMENTS && !self.ended[transactional].is_empty() {
                let ended = &mut self.ended[transactional];
                if ended.len() < self.settings.settle_batch && !late {
                    break;
                }
                let batch: Vec<_> = ended.drain(..ended.len().min(self.settings.settle_batch)).collect();
                self.send_settlement(batch);
            }
        }
        if self.ended.iter().all(Vec::is_empty) {
            self.settle_at = None;
        }
    }

    fn send_settlement(&mut self, batch: Vec<Finished>) {
        self.settlements += 1;
        let mut sources: Vec<usize> = Vec::new();
        for finished in &batch {
            let source = self.sources.iter().position(|source| source.queues.contains(&finished.job.queue));
            if let Some(source) = source.filter(|source| !sources.contains(source)) {
                sources.push(source);
            }
        }
        let settler = Arc::clone(&self.settler);
        self.errands.spawn(async move {
            let settling = AssertUnwindSafe(settler.settle(batch)).catch_unwind().await;
            if settling.is_err() {
                tracing::error!(
                    "the store panicked in settle; the jobs come back when their leases have passed"
                );
            }
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
                sources.into_iter().for_each(|source| self.sources[source].settled());
            }
        }
    }

    fn claimed(&mut self, source: usize, asked: usize, sent: Instant, jobs: Result<Vec<Job>, StoreError>) {
        match jobs {
            Ok(jobs) => {
                self.store_answered();
                let jobs: Vec<Arc<Job>> = jobs.into_iter().map(Arc::new).collect();
                let after = self.sources[source].claimed(asked, jobs.len());
                self.reporter.claimed(&jobs, sent.elapsed());
                self.start(source, jobs, sent);
                self.follow(source, after);
            }
            Err(error) => {
                self.sources[source].failed(asked);
                self.store_failed(&error);
            }
        }
    }

    /// Starts the handlers. The claim is committed by now.
    fn start(&mut self, source: usize, jobs: Vec<Arc<Job>>, sent: Instant) {
        let tokens = self.leases.hold(&jobs, sent);
        for (job, cancelled) in jobs.into_iter().zip(tokens) {
            self.running.insert(job.receipt(), (Arc::clone(&job), source));
            let execution = Execution {
                job,
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
        let (store, queues) = (Arc::clone(&self.store), self.sources[source].queues.clone());
        self.sources[source].poll_at = None;
        self.errands.spawn(async move {
            let next = unpanicked("next_available_at", store.next_available_at(&queues)).await;
            Answer::Told { source, next }
        });
    }

    fn told(&mut self, source: usize, next: Result<Option<NextAvailable>, StoreError>) {
        match next {
            Ok(next) => {
                self.store_answered();
                let wait = next.map(|next| next.wait);
                self.sources[source].told(wait, self.settings.poll, Instant::now());
            }
            Err(error) => {
                self.sources[source].wanted = true;
                self.store_failed(&error);
            }
        }
    }

    /// Takes passed leases away from whoever holds them.
    fn reclaim(&mut self, source: Option<usize>) {
        self.reclaim_at = Instant::now() + reclaim_every(self.settings.lease);
        if self.reclaiming && source.is_none() {
            return;
        }
        self.reclaiming = true;
        let store = Arc::clone(&self.store);
        self.errands.spawn(async move {
            let limit = BatchSize::new(RECLAIM).unwrap_or(BatchSize::ONE);
            let reclaimed = unpanicked("reclaim", store.reclaim(limit)).await;
            Answer::Reclaimed { source, reclaimed }
        });
    }

    fn reclaimed(&mut self, source: Option<usize>, reclaimed: Result<Vec<Reclaimed>, StoreError>) {
        self.reclaiming = false;
        match reclaimed {
            Ok(reclaimed) => {
                self.store_answered();
                let any = !reclaimed.is_empty();
                if reclaimed.len() >= RECLAIM as usize {
                    self.reclaim_at = Instant::now();
                }
                self.reporter.reclaimed(reclaimed);
                if let Some(source) = source {
                    let after = self.sources[source].reclaimed(any);
                    self.follow(source, after);
                }
                if any {
                    self.sources.iter_mut().for_each(Source::hint);
                }
            }
            Err(error) => {
                if let Some(source) = source {
                    self.sources[source].wanted = true;
                }
                self.store_failed(&error);
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

    /// A time has come: for polling, for taking leases away, or merely for another round of the loop.
    fn on_time(&mut self) {
        let now = Instant::now();
        if self.pause_until.is_some_and(|until| now < until) {
            return;
        }
        for source in 0..self.sources.len() {
            if self.sources[source].poll_at.is_some_and(|at| at <= now) {
                self.ask(source);
            }
        }
        if self.reclaim_at <= now && !self.running.is_empty() {
            self.reclaim(None);
        }
    }

    /// When the loop must go round again, if nothing happens.
    fn next_time(&mut self) -> Option<Instant> {
        let now = Instant::now();
        for source in self.sources.iter_mut().filter(|source| source.is_asleep()) {
            source.poll_at = Some(now + self.settings.poll);
        }
        if let Some(until) = self.pause_until {
            return Some(self.settle_at().map_or(until, |at| at.min(until)));
        }
        let polls = self.sources.iter().filter_map(|source| source.poll_at);
        let reclaim = (!self.running.is_empty()).then_some(self.reclaim_at);
        polls.chain(reclaim).chain(self.settle_at()).chain(self.gather_until).min()
    }

    /// When what has ended is to be sent; not while as much is under way as may be.
    fn settle_at(&self) -> Option<Instant> {
        self.settle_at.filter(|_| self.settlements < SETTLEMENTS)
    }

    fn store_answered(&mut self) {
        // Nothing was asked since the store failed: this was, before.
        if self.pause_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        if self.outage.over() {
            self.reporter.store(true);
        }
        self.pause_until = None;
    }

    fn store_failed(&mut self, error: &StoreError) {
        if !self.outage.is_on() {
            self.reporter.store(false);
        }
        let pause = self.outage.failed(&with_causes(error));
        self.pause_until = Some(Instant::now() + pause);
    }

    /// No more claims. Waits for what runs, and gives back the rest.
    async fn wind_down(mut self) -> Stopped {
        let stop = self.stop.clone();
        let grace_ends = Instant::now() + self.settings.grace;
        while !self.is_done() {
            self.settle();
            let next = self.settle_at().map_or(grace_ends, |at| at.min(grace_ends));
            tokio::select! {
                biased;
                () = stop.waiting.cancelled() => break,
                Some(Ok(finished)) = self.executions.join_next(), if !self.executions.is_empty() => self.finished(finished),
                Some(Ok(answer)) = self.errands.join_next(), if !self.errands.is_empty() => self.answered_late(answer),
                () = sleep_until(Some(next)) => if Instant::now() >= grace_ends { break },
            }
        }
        self.give_back().await
    }

    /// A claim that was under way when the worker was told to stop has brought jobs: they are not even started.
    fn answered_late(&mut self, answer: Answer) {
        match answer {
            Answer::Claimed { source, asked, jobs: Ok(jobs), .. } => {
                self.sources[source].claimed(asked, 0);
                self.ended[0].extend(jobs.into_iter().map(Arc::new).map(released));
                self.settle_at = Some(Instant::now());
            }
            Answer::Claimed { .. } | Answer::Told { .. } => {}
            answer => self.answered(answer),
        }
    }

    fn is_done(&self) -> bool {
        self.running.is_empty() && self.errands.is_empty() && self.ended.iter().all(Vec::is_empty)
    }

    /// The grace is over: stops what still runs, and gives it back with the attempt refunded.
    async fn give_back(mut self) -> Stopped {
        let jobs: Vec<Arc<Job>> = self.running.drain().map(|(_, (job, _))| job).collect();
        if tokio::time::timeout(LAST, self.executions.shutdown()).await.is_err() {
            tracing::warn!(
                "a handler blocks its thread and cannot be stopped; its job is given back all the same"
            );
        }
        let released_jobs = jobs.len();
        let mut left: Vec<Finished> = self.ended.iter_mut().flat_map(std::mem::take).collect();
        left.extend(jobs.into_iter().map(released));
        let settler = Arc::clone(&self.settler);
        let batch = self.settings.settle_batch;
        let mut abandoned = left.len();
        let give_back = async {
            while !left.is_empty() {
                let some: Vec<Finished> = left.drain(..left.len().min(batch)).collect();
                let count = some.len();
                settler.settle(some).await;
                abandoned -= count;
            }
            while self.errands.join_next().await.is_some() {}
        };
        if tokio::time::timeout(LAST, give_back).await.is_err() {
            tracing::warn!(
                jobs = abandoned,
                "the store does not answer; the jobs come back when their leases have passed"
            );
        }
        Stopped { released: released_jobs, abandoned }
    }
}

/// How often passed leases are looked for: never at the same moment in two workers.
fn reclaim_every(lease: LeaseFor) -> Duration {
    let half = (lease.get() / 2).clamp(Duration::from_millis(100), Duration::from_secs(30));
    half.mul_f64(0.75 + 0.5 * fastrand::f64())
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// A store that panics has failed, no more.
async fn unpanicked<T>(
    operation: &'static str,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let ended = AssertUnwindSafe(work).catch_unwind().await;
    ended.unwrap_or_else(|_| Err(StoreError::backend(operation, "the store panicked")))
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
