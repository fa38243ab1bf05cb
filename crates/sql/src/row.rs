//! What the tables hold, and the jobs that it means.
//!
//! Rows are read without judging them, so that one that nobody can understand spoils no other. [`readable`] keeps the
//! rest. A text is an `S`, a document a `D`, a small number an `N` and a time a `T`, whatever the database has for them.

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use diesel::prelude::Queryable;
use leasehold_core::backend::{stored, stored_json};
use leasehold_core::{
    Epoch, FinalStatus, FinishedJob, Headers, Job, JobId, Json, Kind, Lease, MaxAttempts, Outcome, QueueName,
    Result, StoreError, UniqueKey, WorkerId,
};

use crate::stored::{StoredText, StoredTime};

/// A row of `job_queue`.
#[derive(Debug, Queryable)]
pub struct JobRow<S, D, N, T> {
    /// Its number.
    pub id: i64,
    /// `queue_name`
    pub queue_name: S,
    /// `kind`
    pub kind: S,
    /// `priority`
    pub priority: N,
    unique_key: Option<S>,
    payload: D,
    headers: D,
    /// `attempts`
    pub attempts: N,
    /// `max_attempts`
    pub max_attempts: N,
    /// `available_at`
    pub available_at: T,
    /// `lease_until`
    pub lease_until: Option<T>,
    /// `locked_by`
    pub locked_by: Option<S>,
    /// `lease_epoch`
    pub lease_epoch: i64,
    first_leased_at: Option<T>,
    last_error: Option<D>,
    redrives: N,
    created_at: T,
    updated_at: T,
}

impl<S, D, N, T> TryFrom<JobRow<S, D, N, T>> for Job
where
    S: StoredText,
    D: StoredText,
    N: Into<i64>,
    T: StoredTime,
{
    type Error = StoreError;
    fn try_from(row: JobRow<S, D, N, T>) -> Result<Self> {
        let id = JobId::new(row.id);
        let lease = match (row.lease_until, row.locked_by) {
            (Some(until), Some(worker)) => {
                let worker = stored(WorkerId::new(worker.text("locked_by", id)?), "locked_by", id)?;
                Some(Lease { until: time(until, "lease_until", id)?, worker })
            }
            _ => None,
        };
        Ok(Self {
            id,
            queue: stored(QueueName::new(row.queue_name.text("queue_name", id)?), "queue_name", id)?,
            kind: stored(Kind::new(row.kind.text("kind", id)?), "kind", id)?,
            priority: priority(row.priority, id)?,
            unique_key: key(row.unique_key, id)?,
            payload: stored_json(row.payload.text("payload", id)?, "payload", id)?,
            headers: headers(&row.headers.text("headers", id)?, id)?,
            attempts: count(row.attempts, "attempts", id)?,
            max_attempts: max_attempts(row.max_attempts, id)?,
            available_at: time(row.available_at, "available_at", id)?,
            lease,
            epoch: Epoch::new(row.lease_epoch),
            first_leased_at: optional_time(row.first_leased_at, "first_leased_at", id)?,
            last_error: optional_json(row.last_error, "last_error", id)?,
            redrives: count(row.redrives, "redrives", id)?,
            created_at: time(row.created_at, "created_at", id)?,
            updated_at: time(row.updated_at, "updated_at", id)?,
        })
    }
}

/// A row of `job_history`.
#[derive(Debug, Queryable)]
pub struct FinishedRow<S, D, N, T> {
    /// Its number.
    pub id: i64,
    /// `queue_name`
    pub queue_name: S,
    /// `kind`
    pub kind: S,
    /// `priority`
    pub priority: N,
    unique_key: Option<S>,
    payload: D,
    headers: D,
    /// `attempts`
    pub attempts: N,
    /// `max_attempts`
    pub max_attempts: N,
    /// `lease_epoch`
    pub lease_epoch: i64,
    status_final: S,
    result: Option<D>,
    last_error: Option<D>,
    redrives: N,
    processed_by: Option<S>,
    created_at: T,
    started_at: Option<T>,
    finished_at: T,
}

impl<S, D, N, T> TryFrom<FinishedRow<S, D, N, T>> for FinishedJob
where
    S: StoredText,
    D: StoredText,
    N: Into<i64>,
    T: StoredTime,
{
    type Error = StoreError;
    fn try_from(row: FinishedRow<S, D, N, T>) -> Result<Self> {
        let id = JobId::new(row.id);
        let status: FinalStatus =
            stored(row.status_final.text("status_final", id)?.parse(), "status_final", id)?;
        let last_error = optional_json(row.last_error, "last_error", id)?;
        let document = match status {
            FinalStatus::DeadLetter => last_error.clone(),
            FinalStatus::Completed | FinalStatus::Discarded => optional_json(row.result, "result", id)?,
        };
        let document = document
            .ok_or_else(|| StoreError::corrupt(format!("job {id} is {status} without a document")))?;
        let worker = row.processed_by.map(|worker| worker.text("processed_by", id)).transpose()?;
        let worker = worker.map(|worker| stored(WorkerId::new(worker), "processed_by", id));
        Ok(Self {
            id,
            queue: stored(QueueName::new(row.queue_name.text("queue_name", id)?), "queue_name", id)?,
            kind: stored(Kind::new(row.kind.text("kind", id)?), "kind", id)?,
            priority: priority(row.priority, id)?,
            unique_key: key(row.unique_key, id)?,
            payload: stored_json(row.payload.text("payload", id)?, "payload", id)?,
            headers: headers(&row.headers.text("headers", id)?, id)?,
            attempts: count(row.attempts, "attempts", id)?,
            max_attempts: max_attempts(row.max_attempts, id)?,
            epoch: Epoch::new(row.lease_epoch),
            outcome: Outcome::new(status, document),
            last_error,
            redrives: count(row.redrives, "redrives", id)?,
            processed_by: worker.transpose()?,
            created_at: time(row.created_at, "created_at", id)?,
            started_at: optional_time(row.started_at, "started_at", id)?,
            finished_at: time(row.finished_at, "finished_at", id)?,
        })
    }
}

/// The rows that can be understood. The others are logged: they are for a person to look at, and block nothing.
pub fn readable<R, T: TryFrom<R, Error = StoreError>>(rows: impl IntoIterator<Item = R>) -> Vec<T> {
    rows.into_iter().filter_map(|row| readable_one(T::try_from(row))).collect()
}

/// One of those.
pub fn readable_one<T>(decoded: Result<T>) -> Option<T> {
    decoded.inspect_err(|error| tracing::error!(%error, "a stored row was passed over")).ok()
}

/// Headers as JSON. Text and text make an object that can always be written.
pub fn headers_json(headers: &Headers) -> Cow<'static, str> {
    if headers.is_empty() {
        return Cow::Borrowed("{}");
    }
    let object = headers.iter().map(|(name, value)| (name.to_owned(), value.into()));
    Cow::Owned(serde_json::Value::Object(object.collect()).to_string())
}

fn time(time: impl StoredTime, column: &str, id: JobId) -> Result<DateTime<Utc>> {
    time.get().ok_or_else(|| StoreError::corrupt(format!("{column} of job {id} is in no calendar")))
}

fn optional_time(value: Option<impl StoredTime>, column: &str, id: JobId) -> Result<Option<DateTime<Utc>>> {
    value.map(|value| time(value, column, id)).transpose()
}

fn optional_json(document: Option<impl StoredText>, column: &str, id: JobId) -> Result<Option<Json>> {
    document.map(|document| stored_json(document.text(column, id)?, column, id)).transpose()
}

fn key(key: Option<impl StoredText>, id: JobId) -> Result<Option<UniqueKey>> {
    key.map(|key| stored(UniqueKey::new(key.text("unique_key", id)?), "unique_key", id)).transpose()
}

fn headers(document: &str, id: JobId) -> Result<Headers> {
    if document == "{}" {
        return Ok(Headers::new());
    }
    serde_json::from_str(document)
        .map_err(|error| StoreError::corrupt(format!("headers of job {id}: {error}")))
}

fn count(count: impl Into<i64>, column: &str, id: JobId) -> Result<u32> {
    let count = count.into();
    u32::try_from(count).map_err(|_| StoreError::corrupt(format!("{column} of job {id} is {count}")))
}

fn max_attempts(attempts: impl Into<i64>, id: JobId) -> Result<MaxAttempts> {
    stored(MaxAttempts::new(count(attempts, "max_attempts", id)?), "max_attempts", id)
}

fn priority(priority: impl Into<i64>, id: JobId) -> Result<i32> {
    let priority = priority.into();
    i32::try_from(priority).map_err(|_| StoreError::corrupt(format!("priority of job {id} is {priority}")))
}
