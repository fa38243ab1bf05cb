//! What the tests of this crate share.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::{Dequeue, Enqueued, Job, JobId, NewJob, NewJobBuilder, Queues, Store};
use leasehold_memory::{ManualClock, MemoryStore};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// A store, and the clock by which it goes.
pub(crate) fn store() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new("2026-11-16T12:00:00Z".parse().unwrap());
    (MemoryStore::builder().clock(clock.clone()).seed(7).build(), clock)
}

/// The answer of an operation, none of which ever waits.
pub(crate) fn now<T>(operation: impl Future<Output = T>) -> T {
    operation.now_or_never().expect("an operation in memory does not wait")
}

pub(crate) fn job(queue: &str) -> NewJobBuilder {
    NewJob::builder(queue, "test")
}

pub(crate) fn enqueue(store: &MemoryStore, job: NewJobBuilder) -> Enqueued {
    now(store.enqueue(&[job.build().unwrap()])).unwrap()[0]
}

/// Leases up to `limit` jobs for a minute.
pub(crate) fn claim(store: &impl Store, queues: &str, limit: u32) -> Vec<Job> {
    let queues: Queues = queues.parse().unwrap();
    now(store.dequeue(&Dequeue::new(queues, "worker").unwrap().limit(limit).unwrap())).unwrap()
}

pub(crate) fn ids(jobs: &[Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

pub(crate) fn queues_of(jobs: &[Job]) -> Vec<&str> {
    jobs.iter().map(|job| job.queue.as_str()).collect()
}
