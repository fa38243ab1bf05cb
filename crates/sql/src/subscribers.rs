//! Hints within a process.

use std::sync::{Mutex, PoisonError};

use leasehold_core::{QueuePattern, Queues, Wakeups};
use tokio::sync::watch;

/// Who is to be woken.
#[derive(Debug, Default)]
pub struct Subscribers(Mutex<Vec<(Queues, watch::Sender<()>)>>);

impl Subscribers {
    /// A subscription. It ends when the stream is dropped.
    pub fn subscribe(&self, queues: &Queues) -> Wakeups {
        let (sender, receiver) = watch::channel(());
        let mut subscribers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.retain(|(_, sender)| !sender.is_closed());
        subscribers.push((queues.clone(), sender));
        Box::pin(futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.changed().await.ok().map(|()| ((), receiver))
        }))
    }

    /// Whether nobody listens.
    pub fn is_empty(&self) -> bool {
        let subscribers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.iter().all(|(_, sender)| sender.is_closed())
    }

    /// Whether anybody listens to a queue of this name, or to queues of this pattern.
    pub fn concerns(&self, name: &str) -> bool {
        let subscribers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.iter().any(|(queues, sender)| !sender.is_closed() && concerns(name, queues))
    }

    /// Something became leasable in queues of these names or patterns.
    pub fn wake<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let subscribers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            let woken = subscribers.iter().filter(|(queues, _)| concerns(name, queues));
            woken.for_each(|(_, sender)| sender.send_replace(()));
        }
    }

    /// Something may have become leasable in any queue.
    pub fn wake_all(&self) {
        let subscribers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.iter().for_each(|(_, sender)| sender.send_replace(()));
    }
}

/// Whether a queue name, or a prefix with a star at its end, concerns somebody who looks at `queues` (W2).
fn concerns(name: &str, queues: &Queues) -> bool {
    match (name.parse(), queues) {
        (Ok(QueuePattern::Exact(queue)), queues) => queues.contains(&queue),
        (Ok(QueuePattern::Prefix(prefix)), Queues::Named(names)) => {
            names.iter().any(|name| prefix.matches(name))
        }
        (Ok(QueuePattern::Prefix(prefix)), Queues::Matching(other)) => {
            prefix.as_str().starts_with(other.as_str()) || other.as_str().starts_with(prefix.as_str())
        }
        (Err(_), _) => false,
    }
}
