//! Running one handler, whatever it does.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::{BoxError, Job, Json, RetryAfter, Verdict};
use tokio::time::Instant;
use tower::ServiceExt;
use tracing::Instrument;

use crate::context::Execution;
use crate::report::{FailureKind, Reporter};
use crate::router::{Ending, Router, Unhandled};

/// How the span of an execution is made.
pub(crate) type MakeSpan = Arc<dyn Fn(&Job) -> tracing::Span + Send + Sync>;

/// A handler that has ended.
pub(crate) struct Finished {
    pub(crate) job: Arc<Job>,
    /// Where it came from.
    pub(crate) source: usize,
    pub(crate) ending: Ending,
    /// Whether the handler settles its jobs itself, so that a stale receipt may be its own doing.
    pub(crate) transactional: bool,
    pub(crate) took: Duration,
}

/// What every execution needs.
pub(crate) struct Executor {
    pub(crate) router: Router,
    pub(crate) timeout: Option<Duration>,
    pub(crate) make_span: MakeSpan,
    pub(crate) reporter: Reporter,
}

impl Executor {
    /// Runs the handler of the job to its end: return, error, panic or timeout.
    pub(crate) async fn execute(self: Arc<Self>, execution: Execution) -> Finished {
        let (job, source) = (Arc::clone(&execution.job), execution.source);
        let start = Instant::now();
        let transactional = self.router.route(&job.kind).is_some_and(|route| route.transactional);
        // Around everything that is not ours: a span, a handler or the drop of its future may panic.
        let running = AssertUnwindSafe(self.run(execution)).catch_unwind().await;
        let ending = running.unwrap_or_else(|panic| {
            let failure = Failure::panic(&*panic);
            self.reporter.failed(&job, failure.how);
            tracing::warn!(job = %job.id, how = failure.how.as_str(), error = failure.message, "a job failed");
            Ending::Verdict(Verdict::retry(failure.message))
        });
        let ending = self.with_backoff(&job, ending);
        Finished { job, source, ending, transactional, took: start.elapsed() }
    }

    async fn run(&self, execution: Execution) -> Ending {
        let job = Arc::clone(&execution.job);
        let span = (self.make_span)(&job);
        let start = Instant::now();
        let result = self.call(execution).instrument(span.clone()).await;
        self.reporter.handled(&job, start.elapsed());
        result.unwrap_or_else(|failure| {
            self.reporter.failed(&job, failure.how);
            span.in_scope(|| {
                tracing::warn!(how = failure.how.as_str(), error = failure.message, "a job failed");
            });
            Ending::Verdict(Verdict::retry(failure.message))
        })
    }

    async fn call(&self, execution: Execution) -> Result<Ending, Failure> {
        let kind = &execution.job.kind;
        let timeout = self.router.options(kind).timeout.or(self.timeout);
        let Some(route) = self.router.route(kind) else {
            return Err(Failure::of(Unhandled::UnknownKind(kind.clone()).into()));
        };
        let work = AssertUnwindSafe(route.service.clone().oneshot(execution)).catch_unwind();
        let ended = match timeout {
            Some(timeout) => {
                tokio::time::timeout(timeout, work).await.map_err(|_| Failure::timeout(timeout))?
            }
            None => work.await,
        };
        ended.map_err(|panic| Failure::panic(&*panic))?.map_err(Failure::of)
    }

    /// A retry that leaves its time to the queue gets it from its kind, if that has something to say.
    fn with_backoff(&self, job: &Job, ending: Ending) -> Ending {
        match (ending, self.router.options(&job.kind).backoff) {
            (Ending::Verdict(Verdict::Retry { error, after: RetryAfter::Backoff }), Some(backoff)) => {
                let after = RetryAfter::Delay(backoff.delay(job.attempts, fastrand::f64()));
                Ending::Verdict(Verdict::Retry { error, after })
            }
            (ending, _) => ending,
        }
    }
}

/// A handler that did not return.
struct Failure {
    how: FailureKind,
    message: String,
}

impl Failure {
    fn of(error: BoxError) -> Self {
        let how = match error.downcast_ref::<Unhandled>() {
            Some(Unhandled::UnknownKind(_)) => FailureKind::UnknownKind,
            Some(Unhandled::Undecodable { .. }) => FailureKind::Undecodable,
            None => FailureKind::Layer,
        };
        Self { how, message: crate::outage::with_causes(&*error) }
    }

    fn timeout(timeout: Duration) -> Self {
        Self { how: FailureKind::Timeout, message: format!("timed out after {timeout:?}") }
    }

    fn panic(panic: &(dyn Any + Send)) -> Self {
        let said = panic.downcast_ref::<&str>().copied();
        let said =
            said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        Self { how: FailureKind::Panic, message: format!("panicked: {said}") }
    }
}

/// A span with what one wants to find a job by.
pub(crate) fn job_span(job: &Job) -> tracing::Span {
    tracing::info_span!(
        "job",
        id = %job.id,
        queue = %job.queue,
        kind = %job.kind,
        attempt = job.attempts,
        traceparent = job.headers.get("traceparent"),
    )
}

/// The verdict for a job whose handler returned the proof of a transaction that was not committed.
pub(crate) fn not_committed() -> Verdict {
    let error = Json::error("the handler returned Settled, but its transaction was not committed");
    Verdict::Retry { error, after: RetryAfter::Delay(leasehold_core::Delay::ZERO) }
}
