//! The span of an execution, whose subscriber may panic.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;

use leasehold_core::Job;
use tracing::Span;

use crate::panics::contain;

/// A span. Entering, leaving and closing it call the subscriber; a panic there is not one of the handler.
pub(crate) struct JobSpan(Option<Span>);

impl JobSpan {
    pub(crate) fn new(span: Span) -> Self {
        Self(Some(span))
    }

    /// Runs this inside the span.
    pub(crate) fn scope<T>(&self, work: impl FnOnce() -> T) -> T {
        let entered = self.0.as_ref().and_then(|span| contain(|| span.enter()));
        let result = catch_unwind(AssertUnwindSafe(work));
        contain(|| drop(entered));
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Runs this future inside the span, and drops it there.
    pub(crate) async fn run<F: Future>(&self, work: F) -> F::Output {
        let mut inside = Inside { span: self, work: Some(Box::pin(work)) };
        poll_fn(|cx| match &mut inside.work {
            Some(work) => self.scope(|| work.as_mut().poll(cx)),
            None => std::task::Poll::Pending,
        })
        .await
    }
}

impl Drop for JobSpan {
    fn drop(&mut self) {
        let span = self.0.take();
        contain(|| drop(span));
    }
}

struct Inside<'a, F> {
    span: &'a JobSpan,
    work: Option<Pin<Box<F>>>,
}

impl<F> Drop for Inside<'_, F> {
    fn drop(&mut self) {
        let work = self.work.take();
        self.span.scope(|| drop(work));
    }
}

/// The usual span, with what one wants to find a job by.
pub(crate) fn job_span(job: &Job) -> Span {
    let span = contain(|| {
        tracing::info_span!(
            "job",
            id = %job.id,
            queue = %job.queue,
            kind = %job.kind,
            attempt = job.attempts,
            traceparent = job.headers.get("traceparent"),
        )
    });
    span.unwrap_or_else(Span::none)
}
