//! Hints and events, by Pub/Sub.
//!
//! Each script publishes what it has done as its last step, in one message, so that messages come in the order of the
//! changes. A store listens from the first subscription on, on a connection of its own. Hints follow from events: what
//! became available, and what ended where there are limits.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use leasehold_core::{
    Event, EventKind, Events, JobId, Lagged, QueueName, QueueOrder, QueuePattern, Queues, Result, StoreError,
    Wakeups, backend,
};
use redis::Msg;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::{broadcast, watch};

use crate::connect::everywhere;
use crate::link::{Link, queue_name};
use crate::{Shared, id, row};

/// How many events a slow subscriber may be behind before it misses some.
const CAPACITY: usize = 4096;

/// How often a listener looks whether its store is still there, and how many looks later it asks whether the server is.
const LOOK: Duration = Duration::from_secs(1);
const LOOKS: u32 = 15;

/// How long to wait before the listener connects again: doubled up to the second.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Who is to be told.
pub(crate) struct Hub {
    subscribers: Mutex<Vec<(Queues, watch::Sender<()>)>>,
    events: broadcast::Sender<Event>,
    listening: tokio::sync::Mutex<bool>,
    fences: broadcast::Sender<u64>,
}

impl Default for Hub {
    fn default() -> Self {
        let events = broadcast::Sender::new(CAPACITY);
        let fences = broadcast::Sender::new(CAPACITY);
        Self { subscribers: Mutex::default(), events, listening: tokio::sync::Mutex::default(), fences }
    }
}

impl Hub {
    fn wake(&self, concerns: impl Fn(&Queues) -> bool) {
        let subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = subscribers.iter().filter(|(queues, _)| concerns(queues));
        woken.for_each(|(_, sender)| sender.send_replace(()));
    }
}

/// Hints for these queues.
pub(crate) async fn wakeups(shared: &Arc<Shared>, queues: &Queues) -> Result<Wakeups> {
    listen(shared, "wakeups").await?;
    let (sender, receiver) = watch::channel(());
    let mut subscribers = shared.hub.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
    subscribers.retain(|(_, sender)| !sender.is_closed());
    subscribers.push((queues.clone(), sender));
    Ok(Box::pin(futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.changed().await.ok().map(|()| ((), receiver))
    })))
}

/// Events of these queues.
pub(crate) async fn subscribe(shared: &Arc<Shared>, queues: &Queues) -> Result<Events> {
    listen(shared, "subscribe").await?;
    fence(shared).await;
    let receiver = shared.hub.events.subscribe();
    let start = (receiver, queues.clone());
    Ok(Box::pin(futures_util::stream::unfold(start, |(mut receiver, queues)| async move {
        loop {
            match receiver.recv().await {
                Ok(event) if queues.contains(&event.queue) => return Some((Ok(event), (receiver, queues))),
                Ok(_) => {}
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    return Some((Err(Lagged(missed)), (receiver, queues)));
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    })))
}

/// Waits until what was published before now has come, so that a new subscriber is told nothing of it. From each server
/// messages come in the order in which they were published there. Best effort, as all of it is.
async fn fence(shared: &Shared) {
    let mut fences = shared.hub.fences.subscribe();
    let nonce = fastrand::u64(..);
    let mut command = redis::cmd("PUBLISH");
    command.arg(shared.link.layout.prefix.events()).arg(format!("fence {nonce}"));
    let heard = async {
        let mut missing = everywhere::<u64>(shared.link.wire(), &command).await.map_or(0, |told| told.len());
        while missing > 0 {
            match fences.recv().await {
                Ok(fence) if fence == nonce => missing -= 1,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    };
    if tokio::time::timeout(LOOK, heard).await.is_err() {
        tracing::debug!("messages from before may still come");
    }
}

/// Sees that somebody listens for this store.
async fn listen(shared: &Arc<Shared>, operation: &'static str) -> Result<()> {
    let mut listening = shared.hub.listening.lock().await;
    if !*listening {
        let connection = open(shared).await.map_err(|error| StoreError::unavailable(operation, error))?;
        tokio::spawn(keep_listening(Arc::downgrade(shared), connection));
        *listening = true;
    }
    Ok(())
}

async fn open(shared: &Shared) -> Result<(PubSubSink, PubSubStream), redis::RedisError> {
    let channel = shared.link.layout.prefix.events();
    Ok(shared.address.listener(shared.link.wire(), &channel).await?.split())
}

/// Hears messages for as long as the store is there, and connects again when the connection is lost.
async fn keep_listening(store: Weak<Shared>, mut connection: (PubSubSink, PubSubStream)) {
    loop {
        hear_all(&store, &mut connection).await;
        let mut wait = RECONNECT.0;
        connection = loop {
            let Some(shared) = store.upgrade() else {
                return;
            };
            match open(&shared).await {
                Ok(connection) => {
                    tracing::info!("the listener for wake-ups has a connection again");
                    shared.hub.wake(|_| true); // What was said meanwhile was missed: everybody looks once.
                    break connection;
                }
                Err(error) => {
                    tracing::debug!(%error, "the listener for wake-ups has no connection; trying again");
                }
            }
            drop(shared);
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RECONNECT.1);
        };
    }
}

/// Hears messages until the connection is lost or the store is gone.
async fn hear_all(store: &Weak<Shared>, (sink, messages): &mut (PubSubSink, PubSubStream)) {
    let mut quiet = 0;
    loop {
        let next = tokio::time::timeout(LOOK, messages.next()).await;
        let Some(shared) = store.upgrade() else {
            return;
        };
        match next {
            Ok(Some(message)) => {
                quiet = 0;
                if let Err(error) = hear(&shared, &message).await {
                    tracing::debug!(%error, "a message was lost");
                    shared.hub.wake(|_| true);
                }
            }
            Ok(None) => return,
            Err(_) => quiet += 1,
        }
        if quiet >= LOOKS {
            quiet = 0;
            // A connection can be dead without a word.
            let alive = tokio::time::timeout(LOOK * LOOKS, sink.ping::<redis::Value>()).await;
            if !matches!(alive, Ok(Ok(_))) {
                return;
            }
        }
    }
}

/// Takes one message: a policy that was set, or the time, and under each queue what happened to which jobs.
async fn hear(shared: &Shared, message: &Msg) -> Result<()> {
    let text = String::from_utf8_lossy(message.get_payload_bytes()).into_owned();
    if let Some(pattern) = text.strip_prefix("policy ") {
        shared.link.catch_up("wakeups", None).await?;
        let pattern = pattern.parse::<QueuePattern>();
        shared.hub.wake(|queues| pattern.as_ref().is_ok_and(|pattern| concerns(pattern, queues)));
        return Ok(());
    }
    if let Some(nonce) = text.strip_prefix("fence ").and_then(|nonce| nonce.parse().ok()) {
        // An error means that nobody waits for it: another store does.
        let _ = shared.hub.fences.send(nonce);
        return Ok(());
    }
    let mut lines = text.lines();
    let at = lines.next().and_then(row::time).unwrap_or_default();
    let mut woken = BTreeSet::new();
    let mut queue = None;
    for line in lines {
        if let Some(name) = line.strip_prefix("in ") {
            queue = queue_name(name.to_owned());
            continue;
        }
        let (Some((kind, job)), Some(queue)) = (parse(line), &queue) else { continue };
        // An error means that nobody listens.
        let _ = shared.hub.events.send(backend::event(kind, queue.clone(), job, at));
        if wakes(&shared.link, kind, queue) {
            woken.insert(queue.clone());
        }
    }
    shared.hub.wake(|queues| woken.iter().any(|queue| queues.contains(queue)));
    Ok(())
}

fn parse(line: &str) -> Option<(EventKind, JobId)> {
    let (kind, job) = line.split_once(' ')?;
    Some((EventKind::named(kind)?, id::parse(job)?))
}

/// Whether a job of the queue may have become leasable by this (W1).
fn wakes(link: &Link, kind: EventKind, queue: &QueueName) -> bool {
    match kind {
        EventKind::Enqueued | EventKind::Retried | EventKind::Reclaimed | EventKind::Redriven => true,
        EventKind::Settled | EventKind::DeadLettered => {
            let policy = link.known(|directory| directory.policy(queue));
            policy.concurrency_limit.is_some() || policy.order == QueueOrder::Fifo
        }
        _ => false,
    }
}

/// Whether a pattern concerns somebody who looks at `queues` (W2).
fn concerns(pattern: &QueuePattern, queues: &Queues) -> bool {
    match (pattern, queues) {
        (QueuePattern::Exact(queue), queues) => queues.contains(queue),
        (QueuePattern::Prefix(prefix), Queues::Named(names)) => names.iter().any(|name| prefix.matches(name)),
        (QueuePattern::Prefix(prefix), Queues::Matching(other)) => {
            prefix.as_str().starts_with(other.as_str()) || other.as_str().starts_with(prefix.as_str())
        }
    }
}
