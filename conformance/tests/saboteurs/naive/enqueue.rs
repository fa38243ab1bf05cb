//! Putting jobs into queues.

use chrono::{DateTime, TimeDelta, Utc};
use leasehold_core::{
    Capabilities, Enqueued, Epoch, EventKind, Headers, Job, JobId, Json, MaxAttempts, NewJob, Result,
    Schedule, StoreError, backend, time,
};

use super::{Naive, State, Store, breathe, locks};
use crate::fault::Fault;

pub(super) async fn enqueue(store: &Naive, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
    check(store, jobs, &store.capabilities())?;
    if store.has(Fault::DedupeBySelectThenInsert) {
        return select_then_insert(store, jobs).await;
    }
    if store.has(Fault::RivalsForAKeyHoldUpEveryone) {
        locks::wait_for_rivals(store, jobs).await;
    }
    if store.has(Fault::DropLeavesTheStoreBusy) {
        return busy_meanwhile(store, jobs).await;
    }
    if store.has(Fault::LargeBatchInSteps) && jobs.len() > 1000 {
        let mut answers = Vec::new();
        for step in jobs.chunks(1000) {
            answers.extend(store.atomically(|state, now| state.enqueue(step, now)).await?);
        }
        return Ok(answers);
    }
    store.atomically(|state, now| state.enqueue(jobs, now)).await
}

fn check(store: &Naive, jobs: &[NewJob], capabilities: &Capabilities) -> Result<()> {
    if store.has(Fault::EmptyBatchIsAnError) && jobs.is_empty() {
        return Err(StoreError::conflict("nothing to enqueue"));
    }
    if store.has(Fault::BatchLimitIgnored) {
        return jobs
            .iter()
            .try_for_each(|job| backend::check_document("payload", job.payload(), capabilities));
    }
    if store.has(Fault::PayloadLimitIgnored) || store.has(Fault::HalfABatch) {
        return backend::check_batch("jobs", jobs.len());
    }
    backend::check_enqueue(jobs, capabilities)
}

impl State {
    pub(super) fn enqueue(&mut self, jobs: &[NewJob], now: DateTime<Utc>) -> Result<Vec<Enqueued>> {
        let mut answers = Vec::with_capacity(jobs.len());
        let before = self.has(Fault::BatchMissesItsOwnDuplicates).then(|| self.clone());
        for new in jobs {
            if self.has(Fault::HalfABatch) {
                backend::check_document("payload", new.payload(), &Capabilities::full())?;
            }
            if self.has(Fault::PauseRefusesEnqueue) && self.effective(new.queue()).paused {
                return Err(StoreError::conflict("the queue is paused"));
            }
            let there = self.duplicate_of(new, before.as_ref());
            answers.push(match there {
                Some(id) => self.duplicate(id, new, now),
                None => Enqueued { id: self.accept(new, now), deduplicated: false },
            });
        }
        if self.has(Fault::AnswersOutOfOrder) {
            answers.reverse();
        }
        if self.has(Fault::IdsDescendInABatch) {
            self.reverse_ids(&mut answers);
        }
        Ok(answers)
    }

    fn duplicate_of(&self, new: &NewJob, before: Option<&State>) -> Option<JobId> {
        match new.unique_key() {
            Some(key) => before.unwrap_or(self).holder_of(new.queue(), key),
            None if self.has(Fault::NoKeyIsAKey) => {
                let keyless =
                    self.jobs.values().find(|job| job.unique_key.is_none() && job.queue == *new.queue());
                keyless.map(|job| job.id)
            }
            None => None,
        }
    }

    fn duplicate(&mut self, id: JobId, new: &NewJob, now: DateTime<Utc>) -> Enqueued {
        let replace = self.has(Fault::DuplicateReplacesPayload);
        let touch = self.has(Fault::DuplicateTouchesUpdatedAt);
        if let Some(job) = self.jobs.get_mut(&id) {
            if replace {
                job.payload = new.payload().clone();
            }
            if touch {
                job.updated_at = now;
            }
        }
        if self.has(Fault::DuplicateGetsNewId) {
            self.last_id += 1;
            return Enqueued { id: JobId::new(self.last_id), deduplicated: true };
        }
        Enqueued { id, deduplicated: true }
    }

    fn accept(&mut self, new: &NewJob, now: DateTime<Utc>) -> JobId {
        if self.has(Fault::IdsReusedAfterPrune) {
            let taken = self.jobs.keys().copied().chain(self.history.iter().map(|job| job.id));
            self.last_id = taken.max().map_or(0, JobId::get);
        }
        self.last_id += 1;
        let id = JobId::new(self.last_id);
        self.archives.insert(id, self.effective(new.queue()).archive);
        let mut job = backend::accepted(id, new, &self.effective(new.queue()), now);
        self.spoil_new(&mut job, new, now);
        self.add(job);
        id
    }

    /// Puts a row in, and tells.
    pub(super) fn add(&mut self, job: Job) {
        self.tell(EventKind::Enqueued, &job.queue, job.id, job.created_at);
        self.wake(&job.queue, Fault::NoWakeOnEnqueue);
        self.jobs.insert(job.id, job);
    }

    fn spoil_new(&mut self, job: &mut Job, new: &NewJob, now: DateTime<Utc>) {
        let available_at = job.available_at;
        match self.fault {
            Some(Fault::PastTimeKept) => {
                if let Schedule::At(time) = new.schedule() {
                    job.available_at = time.get();
                }
            }
            Some(Fault::DelayLost) => job.available_at = now,
            Some(Fault::DelayByTheHostsClock) => {
                job.available_at = new.schedule().available_at(time::whole_micros(Utc::now()));
            }
            Some(Fault::TimesEndIn2038) => {
                job.available_at = available_at
                    .min(DateTime::from_timestamp(i64::from(i32::MAX), 0).unwrap_or(available_at));
            }
            Some(Fault::TimesInMilliseconds) => job.available_at = whole_millis(available_at),
            Some(Fault::PayloadBigIntegersRounded) => job.payload = edited(&job.payload, &rounded),
            Some(Fault::PayloadNonAsciiLost) => job.payload = ascii(&job.payload),
            Some(Fault::PayloadEmptyObjectsBecomeLists) => job.payload = edited(&job.payload, &listed),
            Some(Fault::PayloadStringsTrimmed) => job.payload = edited(&job.payload, &trimmed),
            Some(Fault::PanicsOnNonAsciiPayloads) => {
                let text = job.payload.as_str();
                let _cut = &text[..text.len().min(text.chars().count())];
            }
            Some(Fault::HeadersLost) => job.headers = Headers::new(),
            Some(Fault::PriorityInSixteenBits) => {
                job.priority = job.priority.clamp(i16::MIN.into(), i16::MAX.into());
            }
            Some(Fault::NewJobInEpochOne) => job.epoch = Epoch::new(1),
            Some(Fault::NewJobUpdatedByTheHostsClock) => job.updated_at = time::whole_micros(Utc::now()),
            Some(Fault::AttemptsDefaultToThree) if new.max_attempts().is_none() => {
                job.max_attempts = MaxAttempts::new(3).unwrap_or(job.max_attempts);
            }
            Some(Fault::PolicysAttemptsIgnored) => {
                job.max_attempts = new.max_attempts().unwrap_or(MaxAttempts::DEFAULT);
            }
            Some(Fault::PolicysAttemptsBeatTheJobs) => {
                job.max_attempts = self.effective(new.queue()).max_attempts;
            }
            _ => {}
        }
    }

    fn reverse_ids(&mut self, answers: &mut [Enqueued]) {
        let accepted = answers.iter().filter(|answer| !answer.deduplicated).map(|answer| answer.id);
        let ids: Vec<JobId> = accepted.collect();
        let jobs: Vec<Job> = ids.iter().filter_map(|id| self.jobs.remove(id)).collect();
        for (id, job) in ids.iter().rev().zip(jobs) {
            self.jobs.insert(*id, Job { id: *id, ..job });
        }
        let fresh = answers.iter_mut().filter(|answer| !answer.deduplicated);
        fresh.zip(ids.iter().rev()).for_each(|(answer, id)| answer.id = *id);
    }
}

async fn select_then_insert(store: &Naive, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
    let before = store.atomically(|state, _| state.clone()).await;
    breathe().await;
    let insert = |state: &mut State, now| {
        let answer = |new: &NewJob, state: &mut State| match state.duplicate_of(new, Some(&before)) {
            Some(id) => Enqueued { id, deduplicated: true },
            None => Enqueued { id: state.accept(new, now), deduplicated: false },
        };
        jobs.iter().map(|new| answer(new, state)).collect()
    };
    Ok(store.atomically(insert).await)
}

async fn busy_meanwhile(store: &Naive, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
    let busy = store.atomically(|state, _| std::mem::replace(&mut state.busy, true)).await;
    if busy {
        return Err(StoreError::unavailable("enqueue", "the connection is busy"));
    }
    let answers = store.atomically(|state, now| state.enqueue(jobs, now)).await;
    store.atomically(|state, _| state.busy = false).await;
    answers
}

fn whole_millis(time: DateTime<Utc>) -> DateTime<Utc> {
    time - TimeDelta::microseconds(time.timestamp_micros().rem_euclid(1000))
}

fn ascii(document: &Json) -> Json {
    let text: String = document.as_str().chars().filter(char::is_ascii).collect();
    Json::parse(&text).unwrap_or(Json::null())
}

fn edited(document: &Json, edit: &dyn Fn(&mut serde_json::Value)) -> Json {
    fn walk(value: &mut serde_json::Value, edit: &dyn Fn(&mut serde_json::Value)) {
        edit(value);
        match value {
            serde_json::Value::Array(items) => items.iter_mut().for_each(|item| walk(item, edit)),
            serde_json::Value::Object(members) => members.values_mut().for_each(|item| walk(item, edit)),
            _ => {}
        }
    }
    let mut value = document.value();
    walk(&mut value, edit);
    Json::new(&value).unwrap_or(Json::null())
}

fn rounded(value: &mut serde_json::Value) {
    if let Some(number) = value.as_i64().filter(|number| number.unsigned_abs() > 1 << 53) {
        *value = (number as f64).into();
    }
}

fn listed(value: &mut serde_json::Value) {
    if value.as_object().is_some_and(|members| members.is_empty()) {
        *value = serde_json::Value::Array(Vec::new());
    }
}

fn trimmed(value: &mut serde_json::Value) {
    if let Some(text) = value.as_str() {
        *value = text.trim().into();
    }
}
