//! Dropping a future after a number of polls.

use std::pin::Pin;
use std::task::{Context, Poll};

/// Polls `future` at most `polls` times and then drops it: its answer, or `None` if it was not ready by then.
pub(crate) fn cancelled_after<F: Future>(future: F, polls: usize) -> impl Future<Output = Option<F::Output>> {
    PollBudget { future: Some(Box::pin(future)), left: polls }
}

struct PollBudget<F> {
    future: Option<Pin<Box<F>>>,
    left: usize,
}

impl<F: Future> Future for PollBudget<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            self.future = None;
            return Poll::Ready(None);
        }
        self.left -= 1;
        let Some(future) = self.future.as_mut() else { return Poll::Ready(None) };
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.left == 0 => {
                self.future = None;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }
}
