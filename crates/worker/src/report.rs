//! What the worker tells: events, numbers and metrics, all from one place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{Fate, Job, JobId, Kind, QueueName, Receipt, Reclaimed, StoreError};
use tokio::sync::broadcast;

/// How many events a subscriber may be behind.
const EVENTS: usize = 1024;

/// Something that happened in a worker.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum WorkerEvent {
    /// A job was leased, and its handler starts.
    Leased {
        /// Which job.
        job: JobId,
        /// From which queue.
        queue: QueueName,
        /// Of which kind.
        kind: Kind,
        /// Which attempt this is, from 1 on.
        attempt: u32,
    },
    /// A job was settled, by the worker or by its handler.
    Settled {
        /// Which job.
        job: JobId,
        /// From which queue.
        queue: QueueName,
        /// Of which kind.
        kind: Kind,
        /// What became of it.
        fate: Fate,
        /// How long its handler took.
        took: Duration,
    },
    /// A handler failed otherwise than by returning an error.
    Failed {
        /// Which job.
        job: JobId,
        /// Of which kind.
        kind: Kind,
        /// How.
        how: FailureKind,
    },
    /// A lease was lost while its handler was running, or its verdict was refused.
    LeaseLost {
        /// Which lease.
        receipt: Receipt,
        /// How that was seen.
        how: &'static str,
    },
    /// A transactional handler returned its proof, but the transaction was not committed. The job is tried again.
    NotCommitted {
        /// Which job.
        job: JobId,
        /// Of which kind.
        kind: Kind,
    },
    /// Somebody's lease had passed, and this worker has taken it away.
    Reclaimed(Reclaimed),
    /// The store does not answer.
    StoreDown,
    /// The store answers again.
    StoreUp,
    /// No more jobs are claimed.
    Stopping,
}

/// How a handler failed otherwise than by returning an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// It panicked.
    Panic,
    /// It took longer than its timeout.
    Timeout,
    /// There is no handler for jobs of this kind.
    UnknownKind,
    /// The payload is not what the handler takes.
    Undecodable,
    /// A layer refused the job.
    Layer,
}

impl FailureKind {
    /// The name, as in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::Timeout => "timeout",
            Self::UnknownKind => "unknown_kind",
            Self::Undecodable => "undecodable",
            Self::Layer => "layer",
        }
    }
}

macro_rules! numbers {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// A worker in numbers, since it was started.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct WorkerStats {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Whether the store answered the last time.
            pub store_is_up: bool,
        }

        #[derive(Default)]
        pub(crate) struct Numbers {
            $(pub(crate) $name: AtomicU64,)+
            store_is_down: AtomicBool,
        }

        impl Numbers {
            fn read(&self) -> WorkerStats {
                WorkerStats {
                    $($name: self.$name.load(Ordering::Relaxed),)+
                    store_is_up: !self.store_is_down.load(Ordering::Relaxed),
                }
            }
        }
    };
}

numbers! {
    /// Handlers running now.
    running,
    /// Jobs leased.
    leased,
    /// Jobs completed.
    completed,
    /// Jobs that failed and went back to their queue.
    retried,
    /// Jobs put back without harm: snoozed or released.
    snoozed,
    /// Jobs that became dead letters.
    dead_lettered,
    /// Jobs that were discarded.
    discarded,
    /// Leases lost while their handler was running, or verdicts refused.
    lease_lost,
    /// Transactional handlers that returned a proof without a commit.
    not_committed,
    /// Handlers that panicked.
    panicked,
    /// Handlers that took too long.
    timed_out,
    /// Jobs of a kind without a handler.
    unknown_kind,
    /// Jobs whose payload could not be decoded.
    undecodable,
    /// Jobs refused by a layer.
    refused,
    /// Leases of others that had passed and were taken away.
    reclaimed,
    /// Hints to look.
    wakeups,
    /// Claims sent to the store.
    claims,
}

/// Tells what happens. Clones tell the same listeners.
#[derive(Clone)]
pub(crate) struct Reporter(Arc<Inner>);

struct Inner {
    numbers: Numbers,
    events: broadcast::Sender<WorkerEvent>,
}

impl Reporter {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner { numbers: Numbers::default(), events: broadcast::Sender::new(EVENTS) }))
    }

    pub(crate) fn stats(&self) -> WorkerStats {
        self.0.numbers.read()
    }

    pub(crate) fn events(&self) -> broadcast::Receiver<WorkerEvent> {
        self.0.events.subscribe()
    }

    /// Nobody listens, mostly: then the event is not even made.
    fn tell(&self, event: impl FnOnce() -> WorkerEvent) {
        if self.0.events.receiver_count() > 0 {
            // Whoever has stopped to listen since misses nothing that he wants.
            let _ = self.0.events.send(event());
        }
    }

    pub(crate) fn wakeup(&self) {
        add(&self.0.numbers.wakeups, 1);
        metrics::counter!("leasehold_wakeups_total").increment(1);
    }

    pub(crate) fn claimed(&self, jobs: &[Arc<Job>], took: Duration) {
        let numbers = &self.0.numbers;
        add(&numbers.claims, 1);
        metrics::histogram!("leasehold_claim_seconds").record(took);
        if jobs.is_empty() {
            return;
        }
        add(&numbers.leased, jobs.len() as u64);
        for (queue, count) in by(jobs, |job| &job.queue) {
            metrics::counter!("leasehold_leased_total", "queue" => queue.to_string()).increment(count);
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

    pub(crate) fn running(&self, running: usize) {
        self.0.numbers.running.store(running as u64, Ordering::Relaxed);
        metrics::gauge!("leasehold_in_flight").set(running as f64);
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
        let labels = [("kind", job.kind.to_string()), ("how", how.as_str().to_owned())];
        metrics::counter!("leasehold_handler_failures_total", &labels).increment(1);
        self.tell(|| WorkerEvent::Failed { job: job.id, kind: job.kind.clone(), how });
    }

    pub(crate) fn handled(&self, job: &Job, took: Duration) {
        metrics::histogram!("leasehold_handler_seconds", "kind" => job.kind.to_string()).record(took);
    }

    pub(crate) fn settled(&self, job: &Job, fate: Fate, took: Duration) {
        let numbers = &self.0.numbers;
        let (number, name) = match fate {
            Fate::Completed => (&numbers.completed, "completed"),
            Fate::Retrying { .. } => (&numbers.retried, "retrying"),
            Fate::Snoozed { .. } => (&numbers.snoozed, "snoozed"),
            Fate::DeadLettered => (&numbers.dead_lettered, "dead_lettered"),
            Fate::Discarded => (&numbers.discarded, "discarded"),
        };
        add(number, 1);
        let labels =
            [("queue", job.queue.to_string()), ("kind", job.kind.to_string()), ("fate", name.to_owned())];
        metrics::counter!("leasehold_settled_total", &labels).increment(1);
        if !matches!(fate, Fate::Snoozed { .. } | Fate::Retrying { .. }) {
            let kind = job.kind.to_string();
            metrics::histogram!("leasehold_attempts", "kind" => kind).record(f64::from(job.attempts));
        }
        self.tell(|| WorkerEvent::Settled {
            job: job.id,
            queue: job.queue.clone(),
            kind: job.kind.clone(),
            fate,
            took,
        });
    }

    pub(crate) fn settling_took(&self, took: Duration) {
        metrics::histogram!("leasehold_settle_seconds").record(took);
    }

    pub(crate) fn heartbeat(&self, leases: usize, took: Duration) {
        metrics::histogram!("leasehold_heartbeat_seconds").record(took);
        metrics::counter!("leasehold_heartbeats_total").increment(leases as u64);
    }

    pub(crate) fn lease_lost(&self, receipt: Receipt, how: &'static str) {
        add(&self.0.numbers.lease_lost, 1);
        metrics::counter!("leasehold_lease_lost_total").increment(1);
        tracing::warn!(%receipt, how, "a lease is lost");
        self.tell(|| WorkerEvent::LeaseLost { receipt, how });
    }

    pub(crate) fn not_committed(&self, job: &Job) {
        add(&self.0.numbers.not_committed, 1);
        metrics::counter!("leasehold_not_committed_total", "kind" => job.kind.to_string()).increment(1);
        tracing::error!(
            job = %job.id, kind = %job.kind,
            "the handler returned the proof of a transaction that was not committed; trying again"
        );
        self.tell(|| WorkerEvent::NotCommitted { job: job.id, kind: job.kind.clone() });
    }

    pub(crate) fn reclaimed(&self, reclaimed: Vec<Reclaimed>) {
        add(&self.0.numbers.reclaimed, reclaimed.len() as u64);
        metrics::counter!("leasehold_reclaimed_total").increment(reclaimed.len() as u64);
        for reclaimed in reclaimed {
            tracing::info!(job = %reclaimed.id, queue = %reclaimed.queue, fate = ?reclaimed.fate, "reclaimed a job");
            self.tell(|| WorkerEvent::Reclaimed(reclaimed));
        }
    }

    /// The store has answered something, or not at all.
    pub(crate) fn store_said<T>(&self, answer: &Result<T, StoreError>) {
        let up = !matches!(answer, Err(StoreError::Unavailable { .. } | StoreError::Unknown { .. }));
        if self.0.numbers.store_is_down.swap(!up, Ordering::Relaxed) == up {
            metrics::gauge!("leasehold_store_up").set(if up { 1.0 } else { 0.0 });
            self.tell(|| if up { WorkerEvent::StoreUp } else { WorkerEvent::StoreDown });
        }
    }

    pub(crate) fn stopping(&self) {
        tracing::info!("the worker stops claiming");
        self.tell(|| WorkerEvent::Stopping);
    }
}

fn add(number: &AtomicU64, count: u64) {
    number.fetch_add(count, Ordering::Relaxed);
}

/// How many jobs have each value, for the few values that a batch has.
fn by<'a, T: PartialEq>(jobs: &'a [Arc<Job>], value: impl Fn(&'a Job) -> &'a T) -> Vec<(&'a T, u64)> {
    let mut counts: Vec<(&T, u64)> = Vec::new();
    for job in jobs {
        let value = value(job);
        match counts.iter_mut().find(|(other, _)| *other == value) {
            Some((_, count)) => *count += 1,
            None => counts.push((value, 1)),
        }
    }
    counts
}
