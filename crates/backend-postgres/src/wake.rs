//! Hints to look now.
//!
//! Within the process they go from hand to hand. To other processes they go by NOTIFY, from a task of its own and after the
//! operation that is their cause: a NOTIFY inside the enqueueing transaction would make all committers wait for each
//! other. Names pile up while a message is on its way, so that a thousand causes are one message.
//!
//! There are two exceptions. A job that comes after a silence tells of itself, unless another one is doing so at that
//! moment: idle workers hear of it sooner, and nobody waits. And of a transaction of the user's nobody else knows when it
//! commits, so there the message is part of it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use deadpool::managed::Manager;
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use futures_util::StreamExt;
use leasehold_core::{Events, NewJob, Queues, Result, StoreError, Wakeups};
use leasehold_sql::Subscribers;
use tokio::sync::{Notify, watch};

use crate::error::{self, Effect, Failure};
use crate::events::{Bulletin, News};
use crate::lent::{Connections, give_up_after};
use crate::schema::Schema;
use crate::session::Session;
use crate::sql::Statements;

/// Changes whenever connections are retired.
type Retirements = watch::Receiver<Option<Instant>>;

/// How hints get from one process to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WakeupMode {
    /// By LISTEN and NOTIFY: one more connection for those who listen, and hints from every process.
    #[default]
    Notify,
    /// Not at all: hints stay within the store, and other processes find work by polling. For PgBouncer in transaction
    /// mode, through which nobody can listen, and for transactions that are prepared for two-phase commit, which cannot contain a NOTIFY.
    Local,
}

/// Messages are sent no more often than this. The first one after a pause does not wait.
const PAUSE: Duration = Duration::from_millis(5);

/// A job that comes after a silence of this length may tell of itself.
const SILENCE: Duration = Duration::from_millis(10);

/// Postgres refuses messages of 8000 bytes.
pub(crate) const MESSAGE_BYTES: usize = 7900;

/// How long a new subscriber to events waits until what happened before has gone by.
const FENCE: Duration = Duration::from_secs(1);

/// How long to wait before the listener connects again: doubled up to the second.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Who is to be woken, and how.
pub(crate) struct Hub {
    subscribers: Subscribers,
    mode: WakeupMode,
    channel: String,
    /// Tells this store's own messages from those of others.
    origin: String,
    /// What is yet to be told to other processes.
    unsent: Mutex<BTreeSet<String>>,
    is_unsent: Notify,
    /// When something was last said.
    last_said: Mutex<Option<Instant>>,
    /// What is told of jobs, if anything is.
    bulletin: Option<Bulletin>,
    notifier: std::sync::Once,
    listener: tokio::sync::Mutex<bool>,
}

impl Hub {
    pub(crate) fn new(schema: &Schema, mode: WakeupMode, events: bool) -> Arc<Self> {
        Arc::new(Self {
            subscribers: Subscribers::default(),
            mode,
            channel: format!("leasehold_{:016x}", schema.number()),
            origin: format!("{:016x}", fastrand::u64(..)),
            unsent: Mutex::default(),
            is_unsent: Notify::new(),
            last_said: Mutex::default(),
            bulletin: events.then(Bulletin::default),
            notifier: std::sync::Once::new(),
            listener: tokio::sync::Mutex::new(false),
        })
    }

    /// A subscription. It ends when the stream is dropped.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        connections: &Arc<Connections>,
        queues: &Queues,
    ) -> Result<Wakeups> {
        if self.mode == WakeupMode::Notify {
            self.listen(connections).await?;
        }
        Ok(self.subscribers.subscribe(queues))
    }

    /// A subscription to events. It ends when the stream is dropped, and never begins if none are told.
    pub(crate) async fn events(
        self: &Arc<Self>,
        connections: &Arc<Connections>,
        sql: &Arc<Statements>,
        queues: &Queues,
    ) -> Result<Events> {
        let Some(bulletin) = &self.bulletin else {
            return Ok(Box::pin(futures_util::stream::pending()));
        };
        self.listen(connections).await?;
        let (nonce, mut fences) = bulletin.fence();
        self.send_soon(connections, sql);
        let heard = async { while fences.recv().await.is_ok_and(|fence| fence != nonce) {} };
        if tokio::time::timeout(FENCE, heard).await.is_err() {
            tracing::debug!("events from before may still come");
        }
        Ok(bulletin.subscribe(queues))
    }

    /// Whether events are told.
    pub(crate) fn has_bulletin(&self) -> bool {
        self.bulletin.is_some()
    }

    /// Tells what has happened.
    pub(crate) fn tell(self: &Arc<Self>, connections: &Arc<Connections>, sql: &Arc<Statements>, news: News) {
        if let Some(bulletin) = self.bulletin.as_ref().filter(|_| !news.is_empty()) {
            bulletin.tell(news);
            self.send_soon(connections, sql);
        }
    }

    /// The same as part of the caller's transaction: told when it commits.
    pub(crate) async fn tell_in<S: Session>(
        &self,
        session: &mut S,
        sql: &Statements,
        news: News,
    ) -> Result<(), Failure> {
        if self.bulletin.is_none() || news.is_empty() {
            return Ok(());
        }
        let (channel, messages) = (self.events_channel(), news.in_transaction());
        let params = vec![channel.as_str().into(), messages.iter().map(String::as_str).collect()];
        session.count(&sql.notify_events, params).await.map(drop)
    }

    fn events_channel(&self) -> String {
        format!("{}_events", self.channel)
    }

    /// What to say together with these jobs: a message about the first job after a silence. It is the one that somebody who
    /// has nothing to do waits for. With more, or with those that may have to wait for a unique key, it would hold up others.
    pub(crate) fn first_word<'a>(&self, jobs: &'a [NewJob]) -> Option<(&'a NewJob, String)> {
        let was_silent = self.says();
        match jobs {
            [job] if was_silent && self.mode == WakeupMode::Notify && job.unique_key().is_none() => {
                Some((job, format!("{}\n{}", self.origin, job.queue())))
            }
            _ => None,
        }
    }

    /// Notes that something is said now. Answers whether nothing was for a while.
    fn says(&self) -> bool {
        let now = Instant::now();
        let last = self.last_said.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        last.is_none_or(|last| now.duration_since(last) >= SILENCE)
    }

    /// Where messages are sent.
    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// Something became leasable in queues of these names or patterns: tells everybody.
    pub(crate) fn wake<N: AsRef<str>>(
        self: &Arc<Self>,
        connections: &Arc<Connections>,
        sql: &Arc<Statements>,
        names: impl IntoIterator<Item = N>,
    ) {
        let names: BTreeSet<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        if names.is_empty() {
            return;
        }
        self.subscribers.wake(names.iter().map(String::as_str));
        if self.mode == WakeupMode::Notify {
            self.unsent.lock().unwrap_or_else(PoisonError::into_inner).extend(names);
            self.send_soon(connections, sql);
        }
    }

    /// Sees that somebody sends what is unsent.
    fn send_soon(self: &Arc<Self>, connections: &Arc<Connections>, sql: &Arc<Statements>) {
        self.is_unsent.notify_one();
        self.notifier.call_once(|| {
            tokio::spawn(notify(Arc::downgrade(self), Arc::clone(connections), Arc::clone(sql)));
        });
    }

    /// The same as part of the caller's transaction: told when it commits.
    pub(crate) async fn wake_in<S: Session>(
        &self,
        session: &mut S,
        sql: &Statements,
        names: impl IntoIterator<Item = &str>,
    ) -> Result<(), Failure> {
        let names: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        if names.is_empty() || self.mode != WakeupMode::Notify {
            return Ok(());
        }
        let messages = messages("", names);
        let params = vec![self.channel.as_str().into(), messages.iter().map(String::as_str).collect()];
        session.count(&sql.notify, params).await.map(drop)
    }

    /// Tells those in this process.
    pub(crate) fn wake_here<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        self.subscribers.wake(names);
    }

    /// Takes a message of another store, or an event.
    fn hear(&self, channel: &str, message: &str) {
        if let Some(bulletin) = self.bulletin.as_ref().filter(|_| channel != self.channel) {
            return bulletin.hear(message);
        }
        let mut lines = message.split('\n');
        if lines.next() != Some(&self.origin) {
            self.subscribers.wake(lines);
        }
    }

    /// Sees that somebody listens for this store.
    async fn listen(self: &Arc<Self>, connections: &Arc<Connections>) -> Result<()> {
        let mut listening = self.listener.lock().await;
        if !*listening {
            let retirements = connections.retirement().changes();
            let conn = self.open(connections).await?;
            tokio::spawn(listen(Arc::downgrade(self), Arc::clone(connections), conn, retirements));
            *listening = true;
        }
        Ok(())
    }

    /// A connection that listens. Not one of the pool's: it would never come back.
    async fn open(&self, connections: &Connections) -> Result<AsyncPgConnection> {
        let opened = connections.own().manager().create().await;
        let mut conn = opened.map_err(|error| StoreError::unavailable("wakeups", error))?;
        let mut listen = format!("LISTEN {}", self.channel);
        if self.has_bulletin() {
            listen = format!("{listen}; LISTEN {}", self.events_channel());
        }
        match conn.batch_execute(&listen).await {
            Ok(()) => Ok(conn),
            Err(error) => Err(error::of_statement(&conn, error).await.told("wakeups", Effect::Read)),
        }
    }
}

/// Sends what is unsent, for as long as the store is there.
async fn notify(hub: Weak<Hub>, connections: Arc<Connections>, sql: Arc<Statements>) {
    loop {
        let Some(hub) = hub.upgrade() else {
            return;
        };
        let names = std::mem::take(&mut *hub.unsent.lock().unwrap_or_else(PoisonError::into_inner));
        let events = hub.bulletin.as_ref().map(|bulletin| bulletin.take(&hub.origin)).unwrap_or_default();
        if names.is_empty() && events.is_empty() {
            // Wakes now and then to see whether the store is still there.
            let _ = tokio::time::timeout(Duration::from_secs(1), hub.is_unsent.notified()).await;
            continue;
        }
        if let Err(error) = send(&connections, &sql, &hub.channel, &messages(&hub.origin, names)).await {
            tracing::debug!(%error, "a hint was lost: others find the work at their next poll");
        }
        if let Err(error) = send(&connections, &sql, &hub.events_channel(), &events).await {
            tracing::debug!(%error, "events were lost");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn send(connections: &Connections, sql: &Statements, channel: &str, messages: &[String]) -> Result<()> {
    if messages.is_empty() {
        return Ok(());
    }
    let mut conn = connections.get().await.map_err(|error| StoreError::unavailable("notify", error))?;
    let params = vec![channel.into(), messages.iter().map(String::as_str).collect()];
    let sent = conn.count(&sql.notify_apart, params).await;
    if let Err(failure) = &sent {
        give_up_after(connections, &mut conn, failure);
    }
    sent.map(drop).map_err(|failure| failure.told("notify", Effect::Read))
}

/// Hears messages for as long as the store is there, and connects again when the connection is lost or retired.
async fn listen(
    hub: Weak<Hub>,
    connections: Arc<Connections>,
    mut conn: AsyncPgConnection,
    mut retirements: Retirements,
) {
    loop {
        hear(&hub, &mut conn, &retirements).await;
        let (mut wait, mut tries) = (RECONNECT.0, 0);
        conn = loop {
            let Some(hub) = hub.upgrade() else {
                return;
            };
            retirements.mark_unchanged();
            match hub.open(&connections).await {
                Ok(conn) => {
                    hub.subscribers.wake_all(); // What was said meanwhile was missed: everybody looks once.
                    if tries > 0 {
                        tracing::info!(tries, "the listener for wake-ups has a connection again");
                    }
                    break conn;
                }
                Err(error) if tries == 0 => {
                    tracing::warn!(%error, "the listener for wake-ups has no connection; trying again");
                }
                Err(error) => tracing::debug!(%error, tries, "still no connection for wake-ups"),
            }
            tries += 1;
            drop(hub);
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RECONNECT.1);
        };
    }
}

/// Hears messages until the connection is lost or retired, or the store is gone. A node that has become read-only says nothing more, so
/// within a second it is noticed that connections were retired; no sooner, so that a server that stays read-only is asked once in a second.
async fn hear(hub: &Weak<Hub>, conn: &mut AsyncPgConnection, retirements: &Retirements) {
    let mut messages = std::pin::pin!(conn.notifications_stream());
    loop {
        // A connection can be dead without a word: the server, if it is there, hears from us by TCP keep-alives.
        let next = tokio::time::timeout(Duration::from_secs(1), messages.next()).await;
        let Some(hub) = hub.upgrade() else {
            return;
        };
        match next {
            Ok(Some(Ok(message))) => hub.hear(&message.channel, &message.payload),
            Ok(Some(Err(_)) | None) => return,
            Err(_) if retirements.has_changed().unwrap_or_default() => return,
            Err(_) => {}
        }
    }
}

/// Messages with an origin in the first line and names in the others, as few as can be.
fn messages(origin: &str, names: BTreeSet<String>) -> Vec<String> {
    let mut messages: Vec<String> = Vec::new();
    for name in names {
        match messages.last_mut().filter(|message| message.len() + name.len() < MESSAGE_BYTES) {
            Some(message) => {
                message.push('\n');
                message.push_str(&name);
            }
            None => messages.push(format!("{origin}\n{name}")),
        }
    }
    messages
}
