//! What a hash of the server holds, and the job that it means.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use leasehold_core::backend::{stored, stored_json};
use leasehold_core::{
    Epoch, FinalStatus, FinishedJob, Headers, Job, JobId, Json, Kind, Lease, MaxAttempts, Outcome, QueueName,
    Record, Result, StoreError, UniqueKey, WorkerId,
};

/// The fields that a job can have. `dequeue.lua` answers those before `status` in this order.
const FIELDS: [&str; 19] = [
    "kind",
    "priority",
    "unique_key",
    "payload",
    "headers",
    "attempts",
    "max_attempts",
    "available_at",
    "lease_until",
    "worker",
    "epoch",
    "first_leased_at",
    "last_error",
    "redrives",
    "created_at",
    "updated_at",
    "status",
    "finished_at",
    "document",
];

/// The fields of one job, live or finished, as they are stored.
pub(crate) struct Row {
    id: JobId,
    queue: QueueName,
    /// In the order of [`FIELDS`].
    fields: Vec<Option<Vec<u8>>>,
}

impl Row {
    /// A job whose fields come in order; those that are missing have no value.
    pub(crate) fn new(id: JobId, queue: QueueName, fields: Vec<Option<Vec<u8>>>) -> Self {
        Self { id, queue, fields }
    }

    /// A job whose fields come with their names; `None` if there is nothing.
    pub(crate) fn named(id: JobId, queue: QueueName, mut fields: HashMap<String, Vec<u8>>) -> Option<Self> {
        let values = FIELDS.iter().map(|name| fields.remove(*name)).collect::<Vec<_>>();
        values.iter().any(Option::is_some).then_some(Self { id, queue, fields: values })
    }

    fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        let place = FIELDS.iter().position(|field| *field == name)?;
        self.fields.get_mut(place)?.take()
    }

    /// The job, wherever it is.
    pub(crate) fn record(mut self) -> Result<Record> {
        match self.text("status")? {
            None => self.job().map(Record::Live),
            Some(status) => {
                let status = stored(status.parse(), "status", self.id)?;
                self.finished(status).map(Record::Finished)
            }
        }
    }

    fn job(mut self) -> Result<Job> {
        let id = self.id;
        let lease = match (self.time("lease_until")?, self.worker()?) {
            (Some(until), Some(worker)) => Some(Lease { until, worker }),
            _ => None,
        };
        Ok(Job {
            id,
            kind: self.kind()?,
            priority: self.number("priority")?,
            unique_key: self.unique_key()?,
            payload: self.document("payload")?,
            headers: self.headers()?,
            attempts: self.number("attempts")?,
            max_attempts: self.max_attempts()?,
            available_at: self.needed_time("available_at")?,
            lease,
            epoch: Epoch::new(self.number("epoch")?),
            first_leased_at: self.time("first_leased_at")?,
            last_error: self.json("last_error")?,
            redrives: self.number("redrives")?,
            created_at: self.needed_time("created_at")?,
            updated_at: self.needed_time("updated_at")?,
            queue: self.queue,
        })
    }

    fn finished(mut self, status: FinalStatus) -> Result<FinishedJob> {
        let id = self.id;
        let last_error = self.json("last_error")?;
        let document = match (status, &last_error) {
            (FinalStatus::DeadLetter, Some(error)) => error.clone(),
            _ => self.document("document")?,
        };
        Ok(FinishedJob {
            id,
            kind: self.kind()?,
            priority: self.number("priority")?,
            unique_key: self.unique_key()?,
            payload: self.document("payload")?,
            headers: self.headers()?,
            attempts: self.number("attempts")?,
            max_attempts: self.max_attempts()?,
            epoch: Epoch::new(self.number("epoch")?),
            outcome: Outcome::new(status, document),
            last_error,
            redrives: self.number("redrives")?,
            processed_by: self.worker()?,
            created_at: self.needed_time("created_at")?,
            started_at: self.time("first_leased_at")?,
            finished_at: self.needed_time("finished_at")?,
            queue: self.queue,
        })
    }

    fn text(&mut self, field: &str) -> Result<Option<String>> {
        let text = self.take(field).map(String::from_utf8).transpose();
        text.map_err(|_| StoreError::corrupt(format!("{field} of job {} is no UTF-8", self.id)))
    }

    fn needed(&mut self, field: &str) -> Result<String> {
        self.text(field)?.ok_or_else(|| StoreError::corrupt(format!("job {} has no {field}", self.id)))
    }

    fn number<T: std::str::FromStr>(&mut self, field: &str) -> Result<T> {
        let text = self.needed(field)?;
        text.parse().map_err(|_| StoreError::corrupt(format!("{field} of job {} is {text}", self.id)))
    }

    fn time(&mut self, field: &str) -> Result<Option<DateTime<Utc>>> {
        let time = self.text(field)?.map(|text| time(&text).ok_or(text)).transpose();
        time.map_err(|text| StoreError::corrupt(format!("{field} of job {} is {text}", self.id)))
    }

    fn needed_time(&mut self, field: &str) -> Result<DateTime<Utc>> {
        self.time(field)?.ok_or_else(|| StoreError::corrupt(format!("job {} has no {field}", self.id)))
    }

    fn json(&mut self, field: &str) -> Result<Option<Json>> {
        let id = self.id;
        self.text(field)?.map(|text| stored_json(text, field, id)).transpose()
    }

    fn document(&mut self, field: &str) -> Result<Json> {
        let text = self.needed(field)?;
        stored_json(text, field, self.id)
    }

    fn kind(&mut self) -> Result<Kind> {
        stored(Kind::new(self.needed("kind")?), "kind", self.id)
    }

    fn worker(&mut self) -> Result<Option<WorkerId>> {
        let id = self.id;
        self.text("worker")?.map(|worker| stored(WorkerId::new(worker), "worker", id)).transpose()
    }

    fn unique_key(&mut self) -> Result<Option<UniqueKey>> {
        let id = self.id;
        self.text("unique_key")?.map(|key| stored(UniqueKey::new(key), "unique_key", id)).transpose()
    }

    fn max_attempts(&mut self) -> Result<MaxAttempts> {
        let attempts = self.number("max_attempts")?;
        stored(MaxAttempts::new(attempts), "max_attempts", self.id)
    }

    fn headers(&mut self) -> Result<Headers> {
        let text = self.needed("headers")?;
        serde_json::from_str(&text)
            .map_err(|error| StoreError::corrupt(format!("headers of job {}: {error}", self.id)))
    }
}

/// What can be understood. The rest is logged: it is for a person to look at, and blocks nothing.
pub(crate) fn readable<T>(decoded: Result<T>) -> Option<T> {
    decoded.inspect_err(|error| tracing::error!(%error, "a stored job was passed over")).ok()
}

/// A time as the scripts have it: 18 digits of microseconds, which sort as time does.
pub(crate) fn time_text(time: DateTime<Utc>) -> String {
    format!("{:018}", time.timestamp_micros().max(0))
}

/// The time that was written so.
pub(crate) fn time(text: &str) -> Option<DateTime<Utc>> {
    text.parse().ok().and_then(DateTime::from_timestamp_micros)
}

/// A time that a script has answered.
pub(crate) fn answered_time(text: &str) -> Result<DateTime<Utc>> {
    time(text).ok_or_else(|| StoreError::corrupt(format!("a script answered the time {text:?}")))
}
