//! What happens to jobs, told by NOTIFY to whoever wants to know. Off unless [`PgStoreBuilder::events`] switches it on.
//!
//! As hints, events go out after the operation that is their cause, from the same task: nobody who enqueues, claims or settles
//! waits for them. Only in a transaction of the user's are they part of it, since nobody else knows when it commits.
//!
//! A message is a line about its sender and a line for each event. Who tells numbers his events, so that those who listen know
//! how many they have missed, and why: too slow, or not connected.
//!
//! [`PgStoreBuilder::events`]: crate::PgStoreBuilder::events

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use leasehold_core::{
    Enqueued, Event, EventKind, Events, Fate, HeartbeatOutcome, Intervention, Job, JobId, Lagged, NewJob,
    QueueName, Queues, Receipt, ReclaimFate, Reclaimed, Result, SettleOutcome, backend,
};
use tokio::sync::broadcast;

use crate::error::{Effect, Failure};
use crate::lent::{Apart, Lent};
use crate::session::Session;
use crate::wake::MESSAGE_BYTES;
use crate::{Shared, inspect};

/// How many events a slow subscriber may be behind before it misses some.
const CAPACITY: usize = 4096;

/// Events that could not be sent yet are kept up to this number. Beyond it the oldest are missed.
const UNSENT: usize = 100_000;

/// More senders than this are not remembered at once.
const SENDERS: usize = 10_000;

impl Shared {
    /// A connection for `operation`, and the store's time if events are told of it.
    pub(crate) async fn connection_at(
        &self,
        operation: &'static str,
    ) -> Result<(Lent, Option<DateTime<Utc>>)> {
        let mut conn = self.connection(operation).await?;
        if !self.hub.has_bulletin() {
            return Ok((conn, None));
        }
        match inspect::now(&mut conn, &self.sql).await {
            Ok(now) => Ok((conn, Some(now))),
            Err(failure) => conn.judge(Err(failure), Effect::Read),
        }
    }

    /// A connection for `operation`, and where the jobs of these receipts are, if events are told of it.
    pub(crate) async fn connection_with_places(
        &self,
        operation: &'static str,
        receipts: impl Iterator<Item = &Receipt>,
    ) -> Result<(Lent, Places)> {
        let mut conn = self.connection(operation).await?;
        match self.places(&mut *conn, receipts).await {
            Ok(places) => Ok((conn, places)),
            Err(failure) => conn.judge(Err(failure), Effect::Read),
        }
    }

    /// The same for a batch of several statements.
    pub(crate) async fn connection_apart(
        &self,
        operation: &'static str,
    ) -> Result<(Apart, Option<DateTime<Utc>>)> {
        let mut conn = self.apart(operation).await?;
        if !self.hub.has_bulletin() {
            return Ok((conn, None));
        }
        match inspect::now(&mut conn, &self.sql).await {
            Ok(now) => Ok((conn, Some(now))),
            Err(failure) => conn.judge(Err(failure.before_commit())),
        }
    }

    /// The same for a batch of several statements.
    pub(crate) async fn connection_apart_with_places(
        &self,
        operation: &'static str,
        receipts: impl Iterator<Item = &Receipt>,
    ) -> Result<(Apart, Places)> {
        let mut conn = self.apart(operation).await?;
        match self.places(&mut *conn, receipts).await {
            Ok(places) => Ok((conn, places)),
            Err(failure) => conn.judge(Err(failure.before_commit())),
        }
    }

    /// Where the jobs of these receipts are, if events are told.
    pub(crate) async fn places<S: Session>(
        &self,
        session: &mut S,
        receipts: impl Iterator<Item = &Receipt>,
    ) -> Result<Places, Failure> {
        if !self.hub.has_bulletin() {
            return Ok(Places::default());
        }
        let ids = receipts.map(|receipt| receipt.job.get()).collect();
        session.places(&self.sql.places, vec![ids]).await
    }

    /// Tells of stale receipts that a heartbeat has shown. If it cannot be said where their jobs are, nothing is told.
    pub(crate) async fn tell_lost(&self, receipts: &[Receipt], outcomes: &[HeartbeatOutcome]) {
        let lost = receipts.iter().zip(outcomes).filter(|(_, outcome)| **outcome == HeartbeatOutcome::Lost);
        let lost: Vec<Receipt> = lost.map(|(receipt, _)| *receipt).collect();
        if !lost.is_empty()
            && let Ok((conn, places)) = self.connection_with_places("heartbeat", lost.iter()).await
        {
            conn.give_back();
            self.tell(|| News::lost(&lost, &places));
        }
    }
}

/// What is yet to be told, and who listens.
pub(crate) struct Bulletin {
    unsent: Mutex<Unsent>,
    heard: broadcast::Sender<Result<Event, Lagged>>,
    fences: broadcast::Sender<u64>,
    /// The number of the next event of each sender.
    expected: Mutex<HashMap<String, u64>>,
}

#[derive(Default)]
struct Unsent {
    lines: VecDeque<String>,
    /// The number of the first of them.
    number: u64,
}

impl Default for Bulletin {
    fn default() -> Self {
        Self {
            unsent: Mutex::default(),
            heard: broadcast::Sender::new(CAPACITY),
            fences: broadcast::Sender::new(CAPACITY),
            expected: Mutex::default(),
        }
    }
}

impl Bulletin {
    /// The events of these queues from now on.
    pub(crate) fn subscribe(&self, queues: &Queues) -> Events {
        let start = (self.heard.subscribe(), queues.clone());
        Box::pin(futures_util::stream::unfold(start, |(mut receiver, queues)| async move {
            loop {
                let told = match receiver.recv().await {
                    Ok(Ok(event)) if !queues.contains(&event.queue) => continue,
                    Ok(told) => told,
                    Err(broadcast::error::RecvError::Lagged(missed)) => Err(Lagged(missed)),
                    Err(broadcast::error::RecvError::Closed) => return None,
                };
                return Some((told, (receiver, queues)));
            }
        }))
    }

    /// Puts these events behind those that are yet to be told.
    pub(crate) fn tell(&self, news: News) {
        let mut unsent = self.unsent();
        unsent.lines.extend(news.0.iter().map(Line::text));
        let surplus = unsent.lines.len().saturating_sub(UNSENT);
        unsent.lines.drain(..surplus);
        unsent.number += surplus as u64;
    }

    /// Puts a mark behind them. Whoever hears of it has heard all that was told before.
    pub(crate) fn fence(&self) -> (u64, broadcast::Receiver<u64>) {
        let (nonce, fences) = (fastrand::u64(..), self.fences.subscribe());
        self.unsent().lines.push_back(format!("fence {nonce}"));
        (nonce, fences)
    }

    /// Takes what is unsent, as messages.
    pub(crate) fn take(&self, origin: &str) -> Vec<String> {
        let mut unsent = self.unsent();
        let lines = std::mem::take(&mut unsent.lines);
        let first = unsent.number;
        unsent.number += lines.len() as u64;
        messages(lines, |place| format!("{origin} {}", first + place as u64))
    }

    /// Takes a message of a store, this one's own among them.
    pub(crate) fn hear(&self, message: &str) {
        let mut lines = message.lines();
        let Some((sender, number)) = lines.next().and_then(|head| head.split_once(' ')) else { return };
        let Ok(number) = number.parse::<u64>() else { return };
        let at = (sender == TRANSACTION).then_some(number as i64);
        if at.is_none() {
            self.follow(sender, number, lines.clone().count() as u64);
        }
        for line in lines {
            if let Some(nonce) = line.strip_prefix("fence ").and_then(|nonce| nonce.parse().ok()) {
                // An error means that nobody waits for it: another store does.
                let _ = self.fences.send(nonce);
            } else if let Some(event) = parse(line, at) {
                // An error means that nobody listens.
                let _ = self.heard.send(Ok(event));
            }
        }
    }

    /// Notes that so many events of a sender have come, and tells of those that should have come before.
    fn follow(&self, sender: &str, number: u64, count: u64) {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        if expected.len() >= SENDERS {
            expected.clear();
        }
        let missed = match expected.insert(sender.to_owned(), number + count) {
            Some(next) => number.saturating_sub(next),
            None => 0, // Who is heard for the first time may have told before anybody listened.
        };
        if missed > 0 {
            let _ = self.heard.send(Err(Lagged(missed)));
        }
    }

    fn unsent(&self) -> MutexGuard<'_, Unsent> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sender of messages that are part of a user's transaction. Instead of a number they have their time.
const TRANSACTION: &str = "transaction";

/// What an operation has done, as events.
#[derive(Debug, Default)]
pub(crate) struct News(Vec<Line>);

#[derive(Debug)]
struct Line {
    kind: EventKind,
    job: JobId,
    /// None in a transaction of the user's, where the server puts in its time.
    at: Option<DateTime<Utc>>,
    queue: String,
}

impl Line {
    fn text(&self) -> String {
        let at = self.at.map_or_else(|| "-".to_owned(), |at| at.timestamp_micros().to_string());
        format!("{} {} {at} {}", self.kind, self.job, self.queue)
    }
}

/// Where live jobs are: what is to be known before they are settled and gone.
pub(crate) type Places = HashMap<JobId, Place>;

/// Where a live job is.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) queue: String,
    pub(crate) epoch: i64,
    pub(crate) is_leased: bool,
    pub(crate) at: Option<DateTime<Utc>>,
}

impl News {
    fn of(lines: impl IntoIterator<Item = Line>) -> Self {
        Self(lines.into_iter().collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As messages for a transaction: without the first line, which the server writes.
    pub(crate) fn in_transaction(&self) -> Vec<String> {
        messages(self.0.iter().map(Line::text), |_| String::new())
            .iter()
            .map(|message| message.trim_start().to_owned())
            .collect()
    }

    /// These jobs were accepted, but for those that were there already.
    pub(crate) fn enqueued(jobs: &[NewJob], answers: &[Enqueued], at: Option<DateTime<Utc>>) -> Self {
        let new = jobs.iter().zip(answers).filter(|(_, answer)| !answer.deduplicated);
        let line = |(job, answer): (&NewJob, &Enqueued)| Line {
            kind: EventKind::Enqueued,
            job: answer.id,
            at,
            queue: job.queue().to_string(),
        };
        Self::of(new.map(line))
    }

    pub(crate) fn leased(jobs: &[Job]) -> Self {
        let line = |job: &Job| Line {
            kind: EventKind::Leased,
            job: job.id,
            at: Some(job.updated_at),
            queue: job.queue.to_string(),
        };
        Self::of(jobs.iter().map(line))
    }

    /// What became of jobs that were at `places` before.
    pub(crate) fn settled<'a>(
        settled: impl IntoIterator<Item = (&'a Receipt, &'a SettleOutcome)>,
        places: &Places,
    ) -> Self {
        let line = |(receipt, outcome): (&Receipt, &SettleOutcome)| {
            let kind = match outcome {
                SettleOutcome::Settled(settled) => kind(settled.fate()),
                SettleOutcome::LeaseLost => EventKind::LeaseLost,
                _ => return None, // nothing has happened yet
            };
            line_at(kind, receipt.job, places)
        };
        Self::of(settled.into_iter().filter_map(line))
    }

    /// Those of these receipts that are stale, and not only of leases that have passed.
    fn lost(receipts: &[Receipt], places: &Places) -> Self {
        let is_stale = |receipt: &&Receipt| {
            let place = places.get(&receipt.job);
            place.is_some_and(|place| !place.is_leased || place.epoch != receipt.epoch.get())
        };
        let stale = receipts.iter().filter(is_stale);
        Self::of(stale.filter_map(|receipt| line_at(EventKind::LeaseLost, receipt.job, places)))
    }

    pub(crate) fn reclaimed(reclaimed: &[Reclaimed], at: Option<DateTime<Utc>>) -> Self {
        let line = |job: &Reclaimed| {
            let kind = match job.fate {
                ReclaimFate::Requeued { .. } => EventKind::Reclaimed,
                _ => EventKind::DeadLettered,
            };
            Line { kind, job: job.id, at, queue: job.queue.to_string() }
        };
        Self::of(reclaimed.iter().map(line))
    }

    pub(crate) fn intervened(
        id: JobId,
        intervention: &Intervention,
        queue: &str,
        at: Option<DateTime<Utc>>,
    ) -> Self {
        let kind = match intervention {
            Intervention::Discard { .. } => EventKind::Settled,
            _ => EventKind::Retried,
        };
        Self(vec![Line { kind, job: id, at, queue: queue.to_owned() }])
    }

    pub(crate) fn redriven(jobs: &[(JobId, String)], at: Option<DateTime<Utc>>) -> Self {
        let line = |(job, queue): &(JobId, String)| Line {
            kind: EventKind::Redriven,
            job: *job,
            at,
            queue: queue.clone(),
        };
        Self::of(jobs.iter().map(line))
    }
}

/// An event of a job whose place is known. Of a finished one nothing is told.
fn line_at(kind: EventKind, job: JobId, places: &Places) -> Option<Line> {
    places.get(&job).map(|place| Line { kind, job, at: place.at, queue: place.queue.clone() })
}

fn kind(fate: Fate) -> EventKind {
    match fate {
        Fate::Completed | Fate::Discarded => EventKind::Settled,
        Fate::DeadLettered => EventKind::DeadLettered,
        Fate::Retrying { .. } | Fate::Snoozed { .. } => EventKind::Retried,
    }
}

/// Lines as messages, as few as can be, each with a head that depends on the place of its first line.
fn messages(lines: impl IntoIterator<Item = String>, head: impl Fn(usize) -> String) -> Vec<String> {
    let mut messages: Vec<String> = Vec::new();
    for (place, line) in lines.into_iter().enumerate() {
        match messages.last_mut().filter(|message| message.len() + line.len() < MESSAGE_BYTES) {
            Some(message) => {
                message.push('\n');
                message.push_str(&line);
            }
            None => messages.push(format!("{}\n{line}", head(place))),
        }
    }
    messages
}

fn parse(line: &str, at: Option<i64>) -> Option<Event> {
    let mut words = line.splitn(4, ' ');
    let kind = EventKind::named(words.next()?)?;
    let job = JobId::new(words.next()?.parse().ok()?);
    let at = at.or(words.next()?.parse().ok()).and_then(DateTime::from_timestamp_micros)?;
    Some(backend::event(kind, QueueName::new(words.next()?).ok()?, job, at))
}

#[cfg(test)]
mod tests;
