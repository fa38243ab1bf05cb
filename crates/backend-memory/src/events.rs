//! What happened, for those who want to know.

use chrono::{DateTime, Utc};
use leasehold_core::{Event, EventKind, Events, JobId, Lagged, QueueName, Queues, backend};
use tokio::sync::broadcast;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;

/// How many events a slow subscriber may be behind before it misses some.
const CAPACITY: usize = 4096;

/// Where events go. It costs nothing while nobody listens.
#[derive(Default)]
pub(crate) struct EventHub(Option<broadcast::Sender<Event>>);

impl EventHub {
    /// The events of these queues from now on.
    pub(crate) fn subscribe(&mut self, queues: &Queues) -> Events {
        let sender = self.0.get_or_insert_with(|| broadcast::Sender::new(CAPACITY));
        let queues = queues.clone();
        Box::pin(BroadcastStream::new(sender.subscribe()).filter_map(move |event| match event {
            Ok(event) => queues.contains(&event.queue).then_some(Ok(event)),
            Err(BroadcastStreamRecvError::Lagged(missed)) => Some(Err(Lagged(missed))),
        }))
    }

    /// Tells what happened. Called under the store's lock, so that events come in the order of the changes (V1).
    pub(crate) fn send(&self, kind: EventKind, queue: &QueueName, job: JobId, at: DateTime<Utc>) {
        if let Some(sender) = self.0.as_ref().filter(|sender| sender.receiver_count() > 0) {
            // An error means that the last listener has just left.
            drop(sender.send(backend::event(kind, queue.clone(), job, at)));
        }
    }
}
