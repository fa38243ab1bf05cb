//! What a handler knows besides its payload.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Headers, Job, JobId, NewJobBuilder, QueueName, Receipt, Store};
use tokio_util::sync::CancellationToken;

use crate::leases::Leases;

/// Headers that carry the trace of a request from job to job.
const TRACE: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// One job being executed: what layers see, and what a [`Context`] is made from.
#[derive(Clone)]
pub struct Execution {
    pub(crate) job: Arc<Job>,
    pub(crate) source: usize,
    pub(crate) cancelled: CancellationToken,
    pub(crate) stopping: CancellationToken,
    pub(crate) leases: Arc<Leases>,
    pub(crate) store: Arc<dyn Store>,
}

impl Execution {
    /// The job, as it was leased.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Fires when the lease is lost, or the handler is given up.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution").field("job", &self.job.id).finish_non_exhaustive()
    }
}

/// What a handler knows besides its payload: the job, the state that the worker was built with, and when to stop.
pub struct Context<S = ()> {
    execution: Execution,
    state: Arc<S>,
}

impl<S> Context<S> {
    pub(crate) fn new(execution: Execution, state: Arc<S>) -> Self {
        Self { execution, state }
    }

    /// What was given to [`WorkerBuilder::state`](crate::WorkerBuilder::state).
    pub fn state(&self) -> &S {
        &self.state
    }

    /// The job, as it was leased.
    pub fn job(&self) -> &Job {
        &self.execution.job
    }

    /// The number of the job.
    pub fn id(&self) -> JobId {
        self.job().id
    }

    /// The queue of the job.
    pub fn queue(&self) -> &QueueName {
        &self.job().queue
    }

    /// What to show the store, in `ack_in` for example.
    pub fn receipt(&self) -> Receipt {
        self.job().receipt()
    }

    /// Which attempt this is, from 1 on.
    pub fn attempt(&self) -> u32 {
        self.job().attempts
    }

    /// Whether there is no other attempt after this one.
    pub fn is_last_attempt(&self) -> bool {
        self.job().attempts >= self.job().max_attempts.get()
    }

    /// What travels along with the job.
    pub fn headers(&self) -> &Headers {
        &self.job().headers
    }

    /// The store that the worker claims from, to enqueue more.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.execution.store
    }

    /// Hands the trace on: `job` gets those of this job's headers that say which trace it belongs to.
    pub fn continue_trace(&self, job: NewJobBuilder) -> NewJobBuilder {
        let traced = TRACE.iter().filter_map(|name| Some((*name, self.headers().get(name)?)));
        traced.fold(job, |job, (name, value)| job.header(name, value))
    }

    /// How long the lease is known to hold, by this process's own clock, counted from the moment at which the last request
    /// was sent. Nothing, once it is lost.
    pub fn lease_left(&self) -> Duration {
        self.execution.leases.left(&self.receipt())
    }

    /// Whether the lease is lost, or the worker has given this attempt up (timeout, panic, end of the grace): another worker
    /// may have the job, and whatever is settled now is refused. Stop the work.
    pub fn is_cancelled(&self) -> bool {
        self.execution.cancelled.is_cancelled()
    }

    /// Waits until [`is_cancelled`](Self::is_cancelled). For `tokio::select!`.
    pub async fn cancelled(&self) {
        self.execution.cancelled.cancelled().await;
    }

    /// [`cancelled`](Self::cancelled) as a token, for what the handler spawns.
    pub fn cancellation(&self) -> CancellationToken {
        self.execution.cancelled.clone()
    }

    /// Whether the worker was told to stop. There is time until the end of its grace; a handler that cannot be done by then
    /// may return [`Verdict::release`](leasehold_core::Verdict::release), and is dropped otherwise.
    pub fn is_stopping(&self) -> bool {
        self.execution.stopping.is_cancelled()
    }

    /// Waits until the worker is told to stop. For `tokio::select!`.
    pub async fn stopping(&self) {
        self.execution.stopping.cancelled().await;
    }
}

impl<S> Clone for Context<S> {
    fn clone(&self) -> Self {
        Self { execution: self.execution.clone(), state: Arc::clone(&self.state) }
    }
}

impl<S> fmt::Debug for Context<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("job", &self.job().id).finish_non_exhaustive()
    }
}
