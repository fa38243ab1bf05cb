//! Running one handler, whatever it does.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::{BoxError, Job, Json, RetryAfter, Verdict};
use tokio::time::Instant;
use tower::ServiceExt;

use crate::context::Execution;
use crate::panics::{log, message};
use crate::report::{FailureKind, Reporter};
use crate::router::{Ending, Router, Unhandled};
use crate::span::JobSpan;

/// How the span of an execution is made.
pub(crate) type MakeSpan = Arc<dyn Fn(&Job) -> tracing::Span + Send + Sync>;

/// A handler that has ended.
pub(crate) struct Finished {
    pub(crate) job: Arc<Job>,
    /// Where it came from.
    pub(crate) source: usize,
    pub(crate) ending: Ending,
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
        // Around everything that is not ours: a span, a handler or the drop of its future may panic.
        let running = AssertUnwindSafe(self.run(execution)).catch_unwind().await;
        let ending = running.unwrap_or_else(|panic| self.panicked(&job, message(panic)));
        let ending = self.with_backoff(&job, ending);
        Finished { job, source, ending, took: start.elapsed() }
    }

    /// The ending of a job whose handler, or the task around it, has panicked: a failed attempt.
    pub(crate) fn panicked(&self, job: &Job, text: String) -> Ending {
        let failure = Failure::panic(text);
        self.reporter.failed(job, failure.how);
        log!(warn, job = %job.id, how = failure.how.as_str(), error = failure.message, "a job failed");
        Ending::Verdict(Verdict::retry(failure.message))
    }

    async fn run(&self, execution: Execution) -> Ending {
        let job = Arc::clone(&execution.job);
        // Fires when the handler panics, times out or is dropped: what it has spawned must not work on.
        let given_up = execution.cancelled.clone().drop_guard();
        let span = JobSpan::new((self.make_span)(&job));
        let start = Instant::now();
        let result = span.run(self.call(execution)).await;
        self.reporter.handled(&job, start.elapsed());
        if !matches!(&result, Err(failure) if failure.how.is_given_up()) {
            given_up.disarm();
        }
        result.unwrap_or_else(|failure| {
            self.reporter.failed(&job, failure.how);
            span.scope(|| {
                log!(warn, how = failure.how.as_str(), error = failure.message, "a job failed");
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
        ended.map_err(|panic| Failure::panic(message(panic)))?.map_err(Failure::of)
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

    fn panic(text: String) -> Self {
        Self { how: FailureKind::Panic, message: format!("panicked: {text}") }
    }
}

/// The verdict for a job whose handler returned the proof of a transaction that was not committed.
pub(crate) fn not_committed() -> Verdict {
    let error = Json::error("the handler returned Settled, but its transaction was not committed");
    Verdict::Retry { error, after: RetryAfter::Delay(leasehold_core::Delay::ZERO) }
}
