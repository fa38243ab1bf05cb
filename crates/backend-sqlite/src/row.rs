//! What the tables hold, and the jobs that it means.
//!
//! Rows are read without judging them, so that one that nobody can understand spoils no other. [`readable`] keeps the
//! rest.

use chrono::{DateTime, Utc};
use diesel::deserialize::{self, FromSql, FromSqlRow};
use diesel::prelude::Queryable;
use diesel::sql_types::{BigInt, Nullable, Text};
use diesel::sqlite::{Sqlite, SqliteValue};
use leasehold_core::backend::{stored, stored_json};
use leasehold_core::{
    Epoch, FinalStatus, FinishedJob, Headers, Job, JobId, Json, Kind, Lease, MaxAttempts, Outcome, QueueName,
    Result, StoreError, UniqueKey, WorkerId,
};

/// A text as it is stored. SQLite keeps any bytes as text; what is no UTF-8 is nobody's name and no document.
#[derive(Debug, FromSqlRow)]
pub(crate) struct Stored(Result<String, String>);

/// The text, in which what cannot be read is marked: good enough for a log, and no valid name.
impl std::ops::Deref for Stored {
    type Target = str;
    fn deref(&self) -> &str {
        match &self.0 {
            Ok(text) | Err(text) => text,
        }
    }
}

impl Stored {
    fn text(self, column: &str, id: JobId) -> Result<String> {
        self.0.map_err(|_| StoreError::corrupt(format!("{column} of job {id} is no UTF-8")))
    }
}

impl FromSql<Text, Sqlite> for Stored {
    fn from_sql(value: SqliteValue<'_, '_, '_>) -> deserialize::Result<Self> {
        let bytes = <Vec<u8> as FromSql<diesel::sql_types::Binary, Sqlite>>::from_sql(value)?;
        let marked =
            |error: std::string::FromUtf8Error| String::from_utf8_lossy(error.as_bytes()).into_owned();
        Ok(Self(String::from_utf8(bytes).map_err(marked)))
    }
}

pub(crate) type JobSql = (
    BigInt,
    Text,
    Text,
    BigInt,
    Nullable<Text>,
    Text,
    Text,
    BigInt,
    BigInt,
    BigInt,
    Nullable<BigInt>,
    Nullable<Text>,
    BigInt,
    Nullable<BigInt>,
    Nullable<Text>,
    BigInt,
    BigInt,
    BigInt,
);

/// A row of `job_queue`.
#[derive(Debug, Queryable)]
pub(crate) struct JobRow {
    pub(crate) id: i64,
    queue_name: Stored,
    kind: Stored,
    priority: i64,
    unique_key: Option<Stored>,
    payload: Stored,
    headers: Stored,
    attempts: i64,
    max_attempts: i64,
    available_at: i64,
    lease_until: Option<i64>,
    locked_by: Option<Stored>,
    lease_epoch: i64,
    first_leased_at: Option<i64>,
    last_error: Option<Stored>,
    redrives: i64,
    created_at: i64,
    updated_at: i64,
}

impl TryFrom<JobRow> for Job {
    type Error = StoreError;
    fn try_from(row: JobRow) -> Result<Self> {
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

pub(crate) type FinishedSql = (
    BigInt,
    Text,
    Text,
    BigInt,
    Nullable<Text>,
    Text,
    Text,
    BigInt,
    BigInt,
    BigInt,
    Text,
    Nullable<Text>,
    Nullable<Text>,
    BigInt,
    Nullable<Text>,
    BigInt,
    Nullable<BigInt>,
    BigInt,
);

/// A row of `job_history`.
#[derive(Debug, Queryable)]
pub(crate) struct FinishedRow {
    pub(crate) id: i64,
    queue_name: Stored,
    kind: Stored,
    priority: i64,
    unique_key: Option<Stored>,
    payload: Stored,
    headers: Stored,
    attempts: i64,
    max_attempts: i64,
    lease_epoch: i64,
    status_final: Stored,
    result: Option<Stored>,
    last_error: Option<Stored>,
    redrives: i64,
    processed_by: Option<Stored>,
    created_at: i64,
    started_at: Option<i64>,
    finished_at: i64,
}

impl TryFrom<FinishedRow> for FinishedJob {
    type Error = StoreError;
    fn try_from(row: FinishedRow) -> Result<Self> {
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
pub(crate) fn readable<R, T: TryFrom<R, Error = StoreError>>(rows: impl IntoIterator<Item = R>) -> Vec<T> {
    rows.into_iter().filter_map(|row| readable_one(T::try_from(row))).collect()
}

/// One of those.
pub(crate) fn readable_one<T>(decoded: Result<T>) -> Option<T> {
    decoded.inspect_err(|error| tracing::error!(%error, "a stored row was passed over")).ok()
}

fn time(time: i64, column: &str, id: JobId) -> Result<DateTime<Utc>> {
    DateTime::from_timestamp_micros(time)
        .ok_or_else(|| StoreError::corrupt(format!("{column} of job {id} is in no calendar")))
}

fn optional_time(value: Option<i64>, column: &str, id: JobId) -> Result<Option<DateTime<Utc>>> {
    value.map(|value| time(value, column, id)).transpose()
}

fn optional_json(document: Option<Stored>, column: &str, id: JobId) -> Result<Option<Json>> {
    document.map(|document| stored_json(document.text(column, id)?, column, id)).transpose()
}

fn key(key: Option<Stored>, id: JobId) -> Result<Option<UniqueKey>> {
    key.map(|key| stored(UniqueKey::new(key.text("unique_key", id)?), "unique_key", id)).transpose()
}

fn headers(document: &str, id: JobId) -> Result<Headers> {
    if document == "{}" {
        return Ok(Headers::new());
    }
    serde_json::from_str(document)
        .map_err(|error| StoreError::corrupt(format!("headers of job {id}: {error}")))
}

fn count(count: i64, column: &str, id: JobId) -> Result<u32> {
    u32::try_from(count).map_err(|_| StoreError::corrupt(format!("{column} of job {id} is {count}")))
}

fn max_attempts(attempts: i64, id: JobId) -> Result<MaxAttempts> {
    stored(MaxAttempts::new(count(attempts, "max_attempts", id)?), "max_attempts", id)
}

fn priority(priority: i64, id: JobId) -> Result<i32> {
    i32::try_from(priority).map_err(|_| StoreError::corrupt(format!("priority of job {id} is {priority}")))
}

/// A time of which it is known that the store has made it.
pub(crate) fn time_or_epoch(micros: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(micros).unwrap_or(DateTime::UNIX_EPOCH)
}
