//! What several checks set up and compare: jobs in every state, policies, brackets of time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::contract::Clause;
use leasehold_core::{
    ConcurrencyLimit, Dequeue, Job, JobId, JobState, NewJobBuilder, QueueOrder, QueuePattern, QueuePolicy,
    Queues, RateLimit, Schedule, Store, Verdict,
};
use tokio::sync::Barrier;

use crate::dump::Dump;
use crate::failure::{Outcome, Problem, ensure_eq};
use crate::stage::{HOUR, Stage, new_job};

/// One job of each state.
pub(super) type ByState = BTreeMap<JobState, JobId>;

/// The slowest rate that there is: a token in a thousand seconds, so that none comes while a check runs, and 3.6 an hour.
pub(super) const SLOW: f64 = 0.001;
/// How long a token of [`SLOW`] takes.
pub(super) const TOKEN: Duration = Duration::from_secs(1000);

/// Puts one job of each state into each of these queues, in which nothing may be leasable before. The leased ones and
/// the retrying one have failed with `earlier` before. Ages the store by two hours.
pub(super) async fn every_state<const N: usize>(stage: &Stage, queues: [&str; N]) -> Outcome<[ByState; N]> {
    let mut scene = std::array::from_fn(|_| ByState::new());
    for (jobs, queue) in scene.iter_mut().zip(queues) {
        jobs.insert(JobState::Expired, leased_again(stage, queue).await?.id);
    }
    stage.age(2 * HOUR).await?;
    for (jobs, queue) in scene.iter_mut().zip(queues) {
        let exhausted = stage.leased(new_job(queue).max_attempts(1)).await?.id;
        stage.store.retry_later(exhausted, Schedule::Now).await?;
        let state = stage.live(exhausted).await?.state(stage.now().await?);
        ensure_eq!(A1, "state of a job on its last attempt that was sent back", state, JobState::Exhausted);
        let retrying = stage.leased(new_job(queue)).await?;
        stage.settle(retrying.receipt(), Verdict::retry_after("earlier", 5 * HOUR)?).await?;
        jobs.insert(JobState::Exhausted, exhausted);
        jobs.insert(JobState::Retrying, retrying.id);
        jobs.insert(JobState::Running, leased_again(stage, queue).await?.id);
        jobs.insert(JobState::Scheduled, stage.enqueue(new_job(queue).delay(6 * HOUR)).await?);
        jobs.insert(JobState::Ready, stage.enqueue(new_job(queue)).await?);
    }
    let now = stage.now().await?;
    for (state, id) in scene.iter().flatten() {
        ensure_eq!(C3, format!("state of job {id}"), stage.live(*id).await?.state(now), *state);
    }
    Ok(scene)
}

/// A job that has failed once and is leased for the second time.
pub(super) async fn leased_again(stage: &Stage, queue: &str) -> Outcome<Job> {
    let job = stage.leased(new_job(queue)).await?;
    stage.settle(job.receipt(), Verdict::retry_after("earlier", Duration::ZERO)?).await?;
    stage.claim_one(queue).await
}

/// Makes a dead letter of a new job; nothing else may be leasable in its queue.
pub(super) async fn dead_letter(stage: &Stage, job: NewJobBuilder, error: &str) -> Outcome<JobId> {
    let job = stage.leased(job).await?;
    stage.settle(job.receipt(), Verdict::dead(error)).await?;
    Ok(job.id)
}

/// Enqueues jobs with a priority of 9.
pub(super) async fn urgent(stage: &Stage, queue: &str, count: usize) -> Outcome<Vec<JobId>> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(stage.enqueue(new_job(queue).priority(9)).await?);
    }
    Ok(ids)
}

pub(super) fn fifo() -> QueuePolicy {
    QueuePolicy { order: Some(QueueOrder::Fifo), ..QueuePolicy::default() }
}

pub(super) fn paused() -> QueuePolicy {
    QueuePolicy { paused: Some(true), ..QueuePolicy::default() }
}

pub(super) fn at_most(leases: u32) -> Outcome<QueuePolicy> {
    let concurrency_limit = Some(ConcurrencyLimit::new(leases)?);
    Ok(QueuePolicy { concurrency_limit, ..QueuePolicy::default() })
}

/// A bucket of `burst` tokens that is filled as slowly as can be.
pub(super) fn slow_rate(burst: u32) -> Outcome<QueuePolicy> {
    Ok(QueuePolicy { rate: Some(RateLimit::new(SLOW, burst)?), ..QueuePolicy::default() })
}

pub(super) fn pattern(text: &str) -> Outcome<QueuePattern> {
    Ok(text.parse::<QueuePattern>()?)
}

pub(super) fn queues(text: &str) -> Outcome<Queues> {
    Ok(text.parse::<Queues>()?)
}

/// Fails unless the store holds exactly `expected`.
pub(super) async fn holds(clause: Clause, stage: &Stage, expected: &Dump, what: &str) -> Outcome {
    match stage.dump().await?.difference(expected) {
        None => Ok(()),
        Some(difference) => Err(Problem::Broken(clause, format!("{what}: {difference}"))),
    }
}

/// `dump` with this job in the place of the one that it has under the same id.
pub(super) fn with_job(dump: &Dump, job: Job) -> Dump {
    let mut changed = dump.clone();
    changed.jobs.iter_mut().filter(|old| old.id == job.id).for_each(|old| *old = job.clone());
    changed
}

/// Fails unless `seen` lies between two readings of the store's clock.
pub(super) fn within(
    clause: Clause,
    what: &str,
    seen: DateTime<Utc>,
    (from, to): (DateTime<Utc>, DateTime<Utc>),
) -> Outcome {
    if (from..=to).contains(&seen) {
        return Ok(());
    }
    Err(Problem::Broken(clause, format!("{what} is {seen}, expected {from} to {to}")))
}

/// So many handles on the stage's database, each used once before.
pub(super) async fn handles(stage: &Stage, count: usize) -> Outcome<Vec<Arc<dyn Store>>> {
    let mut handles = Vec::new();
    for _ in 0..count {
        let handle = stage.connect().await?;
        handle.now().await?;
        handles.push(handle);
    }
    Ok(handles)
}

/// What two tasks on each of these handles get that send the same request at the same moment.
pub(super) async fn claim_at_once(handles: &[Arc<dyn Store>], request: &Dequeue) -> Outcome<Vec<Job>> {
    let barrier = Arc::new(Barrier::new(2 * handles.len()));
    let tasks: Vec<_> = handles
        .iter()
        .chain(handles)
        .map(|store| {
            let (store, barrier, request) = (Arc::clone(store), Arc::clone(&barrier), request.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                store.dequeue(&request).await
            })
        })
        .collect();
    let mut jobs = Vec::new();
    for task in tasks {
        jobs.extend(task.await.map_err(|panic| Problem::Harness(panic.into()))??);
    }
    Ok(jobs)
}
