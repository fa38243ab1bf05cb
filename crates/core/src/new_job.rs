//! A job to be enqueued.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::bounded::MaxAttempts;
use crate::headers::Headers;
use crate::invalid::Invalid;
use crate::job_kind::JobKind;
use crate::json::Json;
use crate::name::{Kind, QueueName, UniqueKey};
use crate::time::Schedule;

/// A job to be enqueued, checked.
///
/// ```
/// use leasehold_core::NewJob;
/// use std::time::Duration;
///
/// let job = NewJob::builder("mail", "welcome")
///     .payload(&serde_json::json!({ "to": "ada@example.com" }))
///     .priority(10)
///     .unique_key("welcome:ada")
///     .delay(Duration::from_secs(60))
///     .max_attempts(3)
///     .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
///     .build()?;
/// # Ok::<(), leasehold_core::Invalid>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NewJob {
    queue: QueueName,
    kind: Kind,
    payload: Json,
    priority: i32,
    unique_key: Option<UniqueKey>,
    schedule: Schedule,
    max_attempts: Option<MaxAttempts>,
    headers: Headers,
}

impl NewJob {
    /// A job with a payload of this type, whose kind is [`JobKind::KIND`].
    pub fn of<K, Q>(queue: Q, payload: &K) -> NewJobBuilder
    where
        K: JobKind,
        Q: TryInto<QueueName>,
        Invalid: From<Q::Error>,
    {
        match queue.try_into() {
            Ok(queue) => named::<K>(queue).payload(payload),
            Err(error) => NewJobBuilder(Err(error.into())),
        }
    }

    /// Begins a job for `queue` of this `kind`. What is wrong with any part is told by [`build`](NewJobBuilder::build).
    pub fn builder<Q, K>(queue: Q, kind: K) -> NewJobBuilder
    where
        Q: TryInto<QueueName>,
        K: TryInto<Kind>,
        Invalid: From<Q::Error> + From<K::Error>,
    {
        NewJobBuilder::new(queue, kind)
    }

    /// The queue.
    pub fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// What sort of work.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// What the handler is told.
    pub fn payload(&self) -> &Json {
        &self.payload
    }

    /// Larger first.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// The key of which there may be one live job.
    pub fn unique_key(&self) -> Option<&UniqueKey> {
        self.unique_key.as_ref()
    }

    /// When it is to be available.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Its attempts, if it does not leave them to its queue's policy.
    pub fn max_attempts(&self) -> Option<MaxAttempts> {
        self.max_attempts
    }

    /// What travels along.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }
}

/// Puts a [`NewJob`] together. The first thing that is wrong is remembered and told by [`build`](Self::build).
#[derive(Debug)]
#[must_use = "call build() and enqueue the job"]
pub struct NewJobBuilder(Result<NewJob, Invalid>);

impl NewJobBuilder {
    fn new<Q, K>(queue: Q, kind: K) -> Self
    where
        Q: TryInto<QueueName>,
        K: TryInto<Kind>,
        Invalid: From<Q::Error> + From<K::Error>,
    {
        let begin = || {
            Ok(NewJob {
                queue: queue.try_into()?,
                kind: kind.try_into()?,
                payload: Json::null(),
                priority: 0,
                unique_key: None,
                schedule: Schedule::Now,
                max_attempts: None,
                headers: Headers::new(),
            })
        };
        Self(begin())
    }

    /// What the handler is told: anything that can be encoded. Without it, `null`.
    pub fn payload<T: Serialize + ?Sized>(self, payload: &T) -> Self {
        self.with(|job| {
            job.payload = Json::new(payload).map_err(|invalid| invalid.of("payload"))?;
            Ok(())
        })
    }

    /// Larger first; 0 without it.
    pub fn priority(self, priority: i32) -> Self {
        self.with(|job| {
            job.priority = priority;
            Ok(())
        })
    }

    /// At most one live job of the queue has this key; a second one is answered with the first one's id.
    pub fn unique_key<U>(self, key: U) -> Self
    where
        U: TryInto<UniqueKey>,
        Invalid: From<U::Error>,
    {
        self.with(|job| {
            job.unique_key = Some(key.try_into()?);
            Ok(())
        })
    }

    /// Available so long after the store's now.
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|job| {
            job.schedule = Schedule::after(delay)?;
            Ok(())
        })
    }

    /// Available at `time` by the store's clock. A time in the past means now.
    pub fn at(self, time: DateTime<Utc>) -> Self {
        self.with(|job| {
            job.schedule = Schedule::at(time)?;
            Ok(())
        })
    }

    /// How often it may be leased before it is a dead letter. Without it, the queue's policy or 5.
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with(|job| {
            job.max_attempts = Some(MaxAttempts::new(attempts)?);
            Ok(())
        })
    }

    /// One more header.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|job| job.headers.insert(name, value))
    }

    /// All headers, in place of those so far.
    pub fn headers(self, headers: Headers) -> Self {
        self.with(|job| {
            job.headers = headers;
            Ok(())
        })
    }

    /// The job.
    ///
    /// # Errors
    /// [`Invalid`], naming the first field that was wrong and its limit.
    pub fn build(self) -> Result<NewJob, Invalid> {
        self.0
    }

    fn with(self, set: impl FnOnce(&mut NewJob) -> Result<(), Invalid>) -> Self {
        Self(self.0.and_then(|mut job| {
            set(&mut job)?;
            Ok(job)
        }))
    }
}

/// The answer to one enqueued job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Enqueued {
    /// The job that is now in the queue for this request.
    pub id: crate::JobId,
    /// Whether it was there before, under the same unique key.
    pub deduplicated: bool,
}

/// A job of this kind, with nothing in it yet.
fn named<K: JobKind>(queue: QueueName) -> NewJobBuilder {
    NewJob::builder(queue, K::KIND)
}
