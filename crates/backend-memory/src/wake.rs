//! Hints to look now.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use leasehold_core::{QueueName, Queues, Wakeups};
use tokio_stream::Stream;

/// Those who want to know when it is worth to look at their queues.
#[derive(Default)]
pub(crate) struct Subscribers(Vec<Weak<Subscriber>>);

/// One of them.
pub(crate) struct Subscriber {
    queues: Queues,
    signal: Mutex<Signal>,
}

#[derive(Default)]
struct Signal {
    /// Any number of causes come as one hint.
    raised: bool,
    waker: Option<Waker>,
}

impl Subscribers {
    /// A new subscription. It ends when the stream is dropped.
    pub(crate) fn subscribe(&mut self, queues: &Queues) -> Wakeups {
        self.0.retain(|subscriber| subscriber.strong_count() > 0);
        let subscriber = Arc::new(Subscriber { queues: queues.clone(), signal: Mutex::default() });
        self.0.push(Arc::downgrade(&subscriber));
        Box::pin(Hints(subscriber))
    }

    /// Adds the subscribers of `queue` to `woken` (W2).
    pub(crate) fn of(&self, queue: &QueueName, woken: &mut Vec<Arc<Subscriber>>) {
        let alive = self.0.iter().filter_map(Weak::upgrade);
        woken.extend(alive.filter(|subscriber| subscriber.queues.contains(queue)));
    }
}

impl Subscriber {
    /// Gives the hint. Never under the store's lock: a waker may run anything.
    pub(crate) fn wake(&self) {
        let waker = {
            let mut signal = self.signal();
            signal.raised = true;
            signal.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn signal(&self) -> std::sync::MutexGuard<'_, Signal> {
        self.signal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Hints(Arc<Subscriber>);

impl Stream for Hints {
    type Item = ();
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<()>> {
        let mut signal = self.0.signal();
        if std::mem::take(&mut signal.raised) {
            return Poll::Ready(Some(()));
        }
        signal.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
