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
    use super::counted;

    #[test]
    fn each_value_is_counted_by_itself() {
        assert_eq!(counted(["a", "b", "a", "c", "b", "a"].into_iter()), [("a", 3), ("b", 2), ("c", 1)]);
        assert_eq!(counted(std::iter::empty::<u8>()), []);
    }
}
