//! What the worker tells: events, numbers and metrics, all from one place.
//!
//! The metrics recorder and the tracing subscriber are called where a panic of theirs costs nothing.

mod event;
mod labels;
mod stats;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{Fate, Job, Receipt, Reclaimed, StoreError};
use tokio::sync::broadcast;

pub use self::event::{FailureKind, WorkerEvent};
pub(crate) use self::labels::{Labels, queue_label};
use self::stats::Numbers;
pub use self::stats::WorkerStats;
use crate::panics::{contain, log};

/// How many events a subscriber may be behind.
const EVENTS: usize = 1024;

/// Tells what happens. Clones tell the same listeners.
#[derive(Clone)]
pub(crate) struct Reporter(Arc<Inner>);

struct Inner {
    numbers: Numbers,
    events: broadcast::Sender<WorkerEvent>,
    labels: Labels,
}

impl Reporter {
    pub(crate) fn new(labels: Labels) -> Self {
        let (numbers, events) = (Numbers::default(), broadcast::Sender::new(EVENTS));
        Self(Arc::new(Inner { numbers, events, labels }))
    }

    pub(crate) fn labels(&self) -> &Labels {
        &self.0.labels
    }

    pub(crate) fn stats(&self) -> WorkerStats {
        self.0.numbers.read()
    }

    pub(crate) fn events(&self) -> broadcast::Receiver<WorkerEvent> {
        self.0.events.subscribe()
    }

    /// Mostly there are no listeners: then the event is not even made.
    fn tell(&self, event: impl FnOnce() -> WorkerEvent) {
        if self.0.events.receiver_count() > 0 {
            // A listener that has gone since misses nothing that it wants.
            let _ = self.0.events.send(event());
        }
    }

    pub(crate) fn wakeup(&self) {
        add(&self.0.numbers.wakeups, 1);
        contain(|| metrics::counter!("leasehold_wakeups_total").increment(1));
    }

    /// A claim is sent.
    pub(crate) fn claiming(&self) {
        add(&self.0.numbers.claims, 1);
    }

    /// A claim was answered.
    pub(crate) fn claim_took(&self, took: Duration) {
        contain(|| metrics::histogram!("leasehold_claim_seconds").record(took));
    }

    /// The handlers of these jobs start.
    pub(crate) fn started(&self, source: usize, jobs: &[Arc<Job>]) {
        if jobs.is_empty() {
            return;
        }
        add(&self.0.numbers.leased, jobs.len() as u64);
        let labels = jobs.iter().map(|job| self.labels().queue(source, &job.queue));
        for (queue, count) in counted(labels) {
            contain(|| {
                metrics::counter!("leasehold_leased_total", "queue" => queue.into_owned()).increment(count);
            });
        }
        for job in jobs {
            self.tell(|| WorkerEvent::Leased {
                job: job.id,
                queue: job.queue.clone(),
                kind: job.kind.clone(),
                attempt: job.attempts,
            });
        }
    }

    /// Jobs that were leased and are given back without being started.
    pub(crate) fn not_started(&self, jobs: usize, why: &'static str) {
        log!(warn, jobs, why, "leased jobs are given back and not started");
    }

    pub(crate) fn running(&self, running: usize) {
        self.0.numbers.running.store(running as u64, Ordering::Relaxed);
        let worker = self.labels().worker();
        contain(|| metrics::gauge!("leasehold_in_flight", "worker" => worker).set(running as f64));
    }

    pub(crate) fn failed(&self, job: &Job, how: FailureKind) {
        let numbers = &self.0.numbers;
        let number = match how {
            FailureKind::Panic => &numbers.panicked,
            FailureKind::Timeout => &numbers.timed_out,
            FailureKind::UnknownKind => &numbers.unknown_kind,
            FailureKind::Undecodable => &numbers.undecodable,
            FailureKind::Layer => &numbers.refused,
        };
        add(number, 1);
        let labels = [("kind", self.labels().kind(&job.kind)), ("how", how.as_str().to_owned())];
        contain(|| metrics::counter!("leasehold_handler_failures_total", &labels).increment(1));
        self.tell(|| WorkerEvent::Failed { job: job.id, kind: job.kind.clone(), how });
    }

    pub(crate) fn handled(&self, job: &Job, took: Duration) {
        let kind = self.labels().kind(&job.kind);
        contain(|| metrics::histogram!("leasehold_handler_seconds", "kind" => kind).record(took));
    }

    pub(crate) fn settled(&self, source: usize, job: &Job, fate: Fate, took: Duration) {
        let numbers = &self.0.numbers;
        let (number, name) = match fate {
            Fate::Completed => (&numbers.completed, "completed"),
            Fate::Retrying { .. } => (&numbers.retried, "retrying"),
            Fate::Snoozed { .. } => (&numbers.snoozed, "snoozed"),
            Fate::DeadLettered => (&numbers.dead_lettered, "dead_lettered"),
            Fate::Discarded => (&numbers.discarded, "discarded"),
        };
        add(number, 1);
        let (queue, kind) = (self.labels().queue(source, &job.queue), self.labels().kind(&job.kind));
        contain(|| {
            let labels = [("queue", queue.into_owned()), ("kind", kind.clone()), ("fate", name.to_owned())];
            metrics::counter!("leasehold_settled_total", &labels).increment(1);
            if !matches!(fate, Fate::Snoozed { .. } | Fate::Retrying { .. }) {
                metrics::histogram!("leasehold_attempts", "kind" => kind).record(f64::from(job.attempts));
            }
        });
        self.tell(|| WorkerEvent::Settled {
            job: job.id,
            queue: job.queue.clone(),
            kind: job.kind.clone(),
            fate,
            took,
        });
    }

    pub(crate) fn settling_took(&self, took: Duration) {
        contain(|| metrics::histogram!("leasehold_settle_seconds").record(took));
    }

    /// So many verdicts are not applied yet.
    pub(crate) fn unsettled(&self, jobs: usize) {
        self.0.numbers.unsettled.store(jobs as u64, Ordering::Relaxed);
    }

    /// So many verdicts must be sent again.
    pub(crate) fn settle_again(&self, jobs: usize, why: &'static str) {
        add(&self.0.numbers.settle_retries, jobs as u64);
        contain(|| {
            metrics::counter!("leasehold_settle_retries_total", "why" => why).increment(jobs as u64);
        });
    }

    pub(crate) fn heartbeat(&self, leases: usize, took: Duration) {
        contain(|| {
            metrics::histogram!("leasehold_heartbeat_seconds").record(took);
            metrics::counter!("leasehold_heartbeats_total").increment(leases as u64);
        });
    }

    pub(crate) fn lease_lost(&self, receipt: Receipt, how: &'static str) {
        add(&self.0.numbers.lease_lost, 1);
        contain(|| metrics::counter!("leasehold_lease_lost_total").increment(1));
        log!(warn, %receipt, how, "a lease is lost");
        self.tell(|| WorkerEvent::LeaseLost { receipt, how });
    }

    pub(crate) fn not_committed(&self, job: &Job) {
        add(&self.0.numbers.not_committed, 1);
        let kind = self.labels().kind(&job.kind);
        contain(|| metrics::counter!("leasehold_not_committed_total", "kind" => kind).increment(1));
        log!(
            error,
            job = %job.id, kind = %job.kind,
            "the handler returned the proof of a transaction that was not committed; trying again"
        );
        self.tell(|| WorkerEvent::NotCommitted { job: job.id, kind: job.kind.clone() });
    }

    pub(crate) fn reclaimed(&self, reclaimed: Vec<Reclaimed>) {
        let count = reclaimed.len() as u64;
        add(&self.0.numbers.reclaimed, count);
        contain(|| metrics::counter!("leasehold_reclaimed_total").increment(count));
        for reclaimed in reclaimed {
            let (job, queue, fate) = (reclaimed.id, &reclaimed.queue, reclaimed.fate);
            log!(info, %job, %queue, ?fate, "reclaimed a job");
            self.tell(|| WorkerEvent::Reclaimed(reclaimed));
        }
    }

    /// The store has answered something, or not at all.
    pub(crate) fn store_said<T>(&self, answer: &Result<T, StoreError>) {
        let up = !matches!(answer, Err(StoreError::Unavailable { .. } | StoreError::Unknown { .. }));
        if self.0.numbers.store_is_down.swap(!up, Ordering::Relaxed) == up {
            let (worker, value) = (self.labels().worker(), if up { 1.0 } else { 0.0 });
            contain(|| metrics::gauge!("leasehold_store_up", "worker" => worker).set(value));
            self.tell(|| if up { WorkerEvent::StoreUp } else { WorkerEvent::StoreDown });
        }
    }

    pub(crate) fn stopping(&self) {
        log!(info, "the worker stops claiming");
        self.tell(|| WorkerEvent::Stopping);
    }
}

fn add(number: &AtomicU64, count: u64) {
    number.fetch_add(count, Ordering::Relaxed);
}

/// How often each value comes, of the few that a batch has.
fn counted<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<(T, u64)> {
    let mut counts: Vec<(T, u64)> = Vec::new();
    for value in values {
        match counts.iter_mut().find(|(other, _)| *other == value) {
            Some((_, count)) => *count += 1,
            None => counts.push((value, 1)),
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use leasehold_core::{Epoch, JobId, Kind, NewJob, Queues, ReclaimFate, WorkerId, backend};
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    use super::*;

    fn reporter() -> Reporter {
        Reporter::new(Labels {
            worker: WorkerId::new("w").unwrap(),
            queues: vec![Queues::named(["q"]).unwrap()],
            kinds: HashSet::from([Kind::new("k").unwrap()]),
        })
    }

    fn job() -> Job {
        let new = NewJob::builder("q", "k").build().unwrap();
        let job = backend::accepted(JobId::new(1), &new, &Default::default(), Default::default());
        Job { attempts: 2, ..job }
    }

    /// The metrics that this leaves, by name and by the values of their labels: counters and gauges as numbers, histograms as how
    /// often a value was recorded.
    fn metrics_of(reports: impl FnOnce()) -> BTreeMap<String, f64> {
        let recorder = DebuggingRecorder::new();
        metrics::with_local_recorder(&recorder, reports);
        let metrics = recorder.snapshotter().snapshot().into_vec().into_iter().map(|(key, _, _, value)| {
            let labels = key.key().labels().map(metrics::Label::value);
            let words: Vec<_> = std::iter::once(key.key().name()).chain(labels).collect();
            let value = match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(value) => value.into_inner(),
                DebugValue::Histogram(values) => values.len() as f64,
            };
            (words.join(" "), value)
        });
        metrics.collect()
    }

    fn named<const N: usize>(metrics: [(&str, f64); N]) -> BTreeMap<String, f64> {
        metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    #[test]
    fn every_end_of_a_job_has_a_number_a_metric_and_an_event() {
        let (reporter, job, at) = (reporter(), job(), Default::default());
        let mut events = reporter.events();
        let fates = [
            Fate::Completed,
            Fate::Retrying { available_at: at },
            Fate::Snoozed { available_at: at },
            Fate::DeadLettered,
            Fate::Discarded,
        ];
        let took = Duration::from_secs(1);
        let metrics = metrics_of(|| fates.iter().for_each(|fate| reporter.settled(0, &job, *fate, took)));
        let expected = named([
            ("leasehold_settled_total q k completed", 1.0),
            ("leasehold_settled_total q k retrying", 1.0),
            ("leasehold_settled_total q k snoozed", 1.0),
            ("leasehold_settled_total q k dead_lettered", 1.0),
            ("leasehold_settled_total q k discarded", 1.0),
            // Those that will be tried again are not at their last attempt.
            ("leasehold_attempts k", 3.0),
        ]);
        assert_eq!(metrics, expected);
        let stats = reporter.stats();
        let ends = [stats.completed, stats.retried, stats.snoozed, stats.dead_lettered, stats.discarded];
        assert_eq!(ends, [1; 5]);
        for fate in fates {
            let (queue, kind) = (job.queue.clone(), job.kind.clone());
            assert_eq!(events.try_recv(), Ok(WorkerEvent::Settled { job: job.id, queue, kind, fate, took }));
        }
    }

    #[test]
    fn every_failure_of_a_handler_has_a_number_a_metric_and_an_event() {
        use FailureKind::{Layer, Panic, Timeout, Undecodable, UnknownKind};
        let (reporter, job) = (reporter(), job());
        let mut events = reporter.events();
        let all = [Panic, Timeout, UnknownKind, Undecodable, Layer];
        let metrics = metrics_of(|| all.iter().for_each(|how| reporter.failed(&job, *how)));
        let expected = named([
            ("leasehold_handler_failures_total k panic", 1.0),
            ("leasehold_handler_failures_total k timeout", 1.0),
            ("leasehold_handler_failures_total k unknown_kind", 1.0),
            ("leasehold_handler_failures_total k undecodable", 1.0),
            ("leasehold_handler_failures_total k layer", 1.0),
        ]);
        assert_eq!(metrics, expected);
        let stats = reporter.stats();
        let failures =
            [stats.panicked, stats.timed_out, stats.unknown_kind, stats.undecodable, stats.refused];
        assert_eq!(failures, [1; 5]);
        for how in all {
            assert_eq!(
                events.try_recv(),
                Ok(WorkerEvent::Failed { job: job.id, kind: job.kind.clone(), how })
            );
        }
        assert_eq!(all.map(FailureKind::is_given_up), [true, true, false, false, false]);
    }

    #[test]
    fn whatever_else_happens_has_a_number_a_metric_or_an_event() {
        let (reporter, job, took) = (reporter(), job(), Duration::from_secs(1));
        let mut events = reporter.events();
        let receipt = Receipt { job: JobId::new(1), epoch: Epoch::new(1) };
        let reclaimed = Reclaimed::new(&job, ReclaimFate::DeadLettered);
        let metrics = metrics_of(|| {
            reporter.wakeup();
            reporter.claiming();
            reporter.claim_took(took);
            reporter.started(0, &[Arc::new(job.clone()), Arc::new(job.clone())]);
            reporter.started(0, &[]);
            reporter.running(2);
            reporter.handled(&job, took);
            reporter.settling_took(took);
            reporter.unsettled(3);
            reporter.settle_again(4, "locked");
            reporter.heartbeat(5, took);
            reporter.lease_lost(receipt, "as the test wants");
            reporter.not_committed(&job);
            reporter.reclaimed(vec![reclaimed.clone(), reclaimed.clone()]);
            reporter.stopping();
        });
        let expected = named([
            ("leasehold_wakeups_total", 1.0),
            ("leasehold_claim_seconds", 1.0),
            ("leasehold_leased_total q", 2.0),
            ("leasehold_in_flight w", 2.0),
            ("leasehold_handler_seconds k", 1.0),
            ("leasehold_settle_seconds", 1.0),
            ("leasehold_settle_retries_total locked", 4.0),
            ("leasehold_heartbeat_seconds", 1.0),
            ("leasehold_heartbeats_total", 5.0),
            ("leasehold_lease_lost_total", 1.0),
            ("leasehold_not_committed_total k", 1.0),
            ("leasehold_reclaimed_total", 2.0),
        ]);
        assert_eq!(metrics, expected);
        let stats = reporter.stats();
        assert_eq!([stats.wakeups, stats.claims, stats.leased, stats.running], [1, 1, 2, 2]);
        assert_eq!([stats.unsettled, stats.settle_retries, stats.reclaimed], [3, 4, 2]);
        assert_eq!([stats.lease_lost, stats.not_committed], [1, 1]);
        let leased = WorkerEvent::Leased {
            job: job.id,
            queue: job.queue.clone(),
            kind: job.kind.clone(),
            attempt: job.attempts,
        };
        for event in [
            leased.clone(),
            leased,
            WorkerEvent::LeaseLost { receipt, how: "as the test wants" },
            WorkerEvent::NotCommitted { job: job.id, kind: job.kind.clone() },
            WorkerEvent::Reclaimed(reclaimed.clone()),
            WorkerEvent::Reclaimed(reclaimed),
            WorkerEvent::Stopping,
        ] {
            assert_eq!(events.try_recv(), Ok(event));
        }
    }

    #[test]
    fn the_store_is_told_of_when_it_goes_and_when_it_comes_back() {
        let reporter = reporter();
        let mut events = reporter.events();
        let said = |answer: Result<(), StoreError>| {
            let metrics = metrics_of(|| reporter.store_said(&answer));
            (metrics.get("leasehold_store_up w").copied(), reporter.stats().store_is_up)
        };
        let down = || Err(StoreError::unavailable("settle", "gone"));
        assert_eq!(said(Ok(())), (None, true));
        assert_eq!((said(down()), said(down())), ((Some(0.0), false), (None, false)));
        assert_eq!((said(Ok(())), said(Ok(()))), ((Some(1.0), true), (None, true)));
        assert_eq!(said(Err(StoreError::unknown("settle", "gone"))), (Some(0.0), false));
        assert_eq!(said(Err(StoreError::corrupt("a row"))), (Some(1.0), true), "it has answered");
        for event in
            [WorkerEvent::StoreDown, WorkerEvent::StoreUp, WorkerEvent::StoreDown, WorkerEvent::StoreUp]
        {
            assert_eq!(events.try_recv(), Ok(event));
        }
        assert!(events.try_recv().is_err());
    }

    #[test]
    fn each_value_is_counted_by_itself() {
        assert_eq!(counted(["a", "b", "a", "c", "b", "a"].into_iter()), [("a", 3), ("b", 2), ("c", 1)]);
        assert_eq!(counted(std::iter::empty::<u8>()), []);
    }

    #[test]
    fn an_event_is_made_only_for_those_who_listen() {
        let (reporter, made) = (reporter(), std::cell::Cell::new(0));
        let event = || {
            made.set(made.get() + 1);
            WorkerEvent::Stopping
        };
        reporter.tell(event);
        assert_eq!(made.get(), 0);
        let mut events = reporter.events();
        reporter.tell(event);
        assert!(matches!(events.try_recv(), Ok(WorkerEvent::Stopping)));
        assert_eq!(made.get(), 1);
    }
}
