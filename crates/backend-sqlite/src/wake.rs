//! Hints to look now. They stay within the store: other processes find work by polling.

use std::sync::{Mutex, PoisonError};

use leasehold_core::{QueuePattern, Queues, Wakeups};
use tokio::sync::watch;

/// Who is to be woken.
#[derive(Default)]
pub(crate) struct Hub(Mutex<Vec<(Queues, watch::Sender<()>)>>);

impl Hub {
    /// A subscription. It ends when the stream is dropped.
    pub(crate) fn subscribe(&self, queues: &Queues) -> Wakeups {
        let (sender, receiver) = watch::channel(());
        let mut subscribers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.retain(|(_, sender)| !sender.is_closed());
        subscribers.push((queues.clone(), sender));
        Box::pin(futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.changed().await.ok().map(|()| ((), receiver))
        }))
    }

    /// Something became leasable in queues of these names or patterns.
    pub(crate) fn wake<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let subscribers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            let woken = subscribers.iter().filter(|(queues, _)| concerns(name, queues));
            woken.for_each(|(_, sender)| sender.send_replace(()));
        }
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
