//! The loop that claims jobs, starts them and sees them settled.
//!
//! It never waits for the store: claims, settlements and everything else are tasks of their own, whose answers come back
//! here. So the next batch is claimed while the last one is settled, and a store that hangs stops nothing but itself.

mod claims;
mod errands;
mod settlements;
mod share;
mod wind_down;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::{Job, LeaseFor, Receipt, Store, WorkerId};
use tokio::sync::Notify;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::claims::Claims;
use self::errands::Errands;
use self::settlements::Settlements;
pub(crate) use self::share::Position;
use crate::call::sleep_until;
use crate::execute::{Executor, Finished};
use crate::leases::Leases;
use crate::panics::message;
use crate::report::Reporter;
use crate::settle::Settler;
use crate::source::Source;

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
    /// Jobs that are left to their leases, and come back when those have passed: the store did not take their verdict, or did
    /// not take them back, or their handler did not let go of its thread.
    pub abandoned: usize,
}

/// A job whose handler is running.
struct Running {
    job: Arc<Job>,
    source: usize,
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
    executions: JoinSet<Finished>,
    /// Which job each of these tasks executes.
    tasks: HashMap<Id, Receipt>,
    running: BTreeMap<Receipt, Running>,
    errands: Errands,
    claims: Claims,
    settlements: Settlements,
    /// Jobs whose handlers were dropped, and that are given back.
    releasing: BTreeSet<Receipt>,
    stopped: Stopped,
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
        let settler = Settler::new(Arc::clone(&store), Arc::clone(&leases), reporter.clone());
        Self {
            claims: Claims::new(&settings),
            settlements: Settlements::new(settler, &settings),
            store,
            settings,
            executor,
            leases,
            reporter,
            wake,
            stop,
            sources,
            executions: JoinSet::new(),
            tasks: HashMap::new(),
            running: BTreeMap::new(),
            errands: Errands::default(),
            releasing: BTreeSet::new(),
            stopped: Stopped::default(),
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
                Some(ended) = self.executions.join_next_with_id() => self.execution_ended(ended),
                Some(answer) = self.errands.next() => self.answered(answer),
                () = sleep_until(next) => {}
            }
        }
        self.reporter.stopping();
        self.wind_down().await
    }

    /// Does all that can be done without waiting, so that none of it can keep the rest from being done.
    fn catch_up(&mut self) {
        self.on_time();
        while let Some(ended) = self.executions.try_join_next_with_id() {
            self.execution_ended(ended);
        }
        while let Some(answer) = self.errands.try_next() {
            self.answered(answer);
        }
    }

    /// The task of an execution has ended. If it panicked, that is a failed attempt of its job.
    fn execution_ended(&mut self, ended: Result<(Id, Finished), JoinError>) {
        if let Some(finished) = self.ending_of(ended) {
            self.finished(finished);
        }
    }

    fn ending_of(&mut self, ended: Result<(Id, Finished), JoinError>) -> Option<Finished> {
        let error = match ended {
            Ok((id, finished)) => {
                self.tasks.remove(&id);
                return Some(finished);
            }
            Err(error) => error,
        };
        let receipt = self.tasks.remove(&error.id())?;
        let Running { job, source } = self.running.get(&receipt)?;
        let text = error.try_into_panic().map_or_else(|error| error.to_string(), message);
        let ending = self.executor.panicked(job, text);
        Some(Finished { job: Arc::clone(job), source: *source, ending, took: Duration::ZERO })
    }

    /// A handler has ended: its slot is free at once.
    fn finished(&mut self, finished: Finished) {
        let receipt = finished.job.receipt();
        self.leases.ended(&receipt);
        if self.running.remove(&receipt).is_some() {
            self.sources[finished.source].ended();
        }
        self.settlements.add(finished, &self.settings);
        self.reporter.running(self.running.len());
    }

    /// There may be something to claim, in this source or in any.
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
        if self.claims.reclaim_at <= now && !self.running.is_empty() {
            self.reclaim(None);
        }
        self.lapse(now);
    }

    /// When the loop must go round again, if nothing happens.
    fn next_time(&mut self) -> Option<Instant> {
        let (now, poll) = (Instant::now(), self.settings.poll);
        let sources = self.sources.iter_mut().filter_map(|source| source.next_time(poll, now)).min();
        let reclaim = (!self.running.is_empty()).then_some(self.claims.reclaim_at);
        let times =
            [sources, reclaim, self.claims.gather_until, self.next_lapse(), self.settlements.next_time()];
        times.into_iter().flatten().min()
    }
}

/// The hints of all sources.
struct Hinted(Vec<Arc<Notify>>);

impl Hinted {
    fn new(hints: Vec<Arc<Notify>>) -> Self {
        Self(hints)
    }

    /// The next source that is hinted at.
    async fn next(&mut self) -> usize {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let notified = self.0.iter().map(|hint| Box::pin(hint.notified()));
        futures_util::future::select_all(notified).await.1
    }
}
