//! Races on real threads.
//!
//! Each check runs several rounds on warm handles, more of them while there is time: a store that is fast gets more
//! chances to be wrong. Beside each stands a deterministic check of the same clause.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::{Enqueued, Job, JobFilter, JobId, Store, Verdict};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::scene::handles;
use crate::check::checks;
use crate::dump::all_jobs;
use crate::failure::{Outcome, Problem, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job, request, request_named};

checks! { "race":
    racing_workers_share_no_job [D2, D5];
    racing_workers_of_many_queues_share_no_job [D2, D11];
    racing_workers_of_a_list_of_queues_share_no_job [D2];
    racing_duplicates_become_one_job [E5];
    racing_duplicates_and_endings_lose_nothing [E5, E6];
    handles_opened_at_once_see_the_same_jobs [C5];
    batches_in_opposite_orders_do_not_hinder_each_other [C1, E5];
}

/// Few rounds are always played; more while the budget lasts.
pub(super) struct Rounds {
    played: u32,
    started: Instant,
    budget: Duration,
}

const FEWEST: u32 = 4;

const MOST: u32 = 150;

impl Rounds {
    pub(super) fn new(stage: &Stage) -> Self {
        Self { played: 0, started: Instant::now(), budget: stage.race_budget() }
    }

    pub(super) fn next(&mut self) -> Option<u32> {
        let more = self.played < FEWEST || (self.played < MOST && self.started.elapsed() < self.budget);
        self.played += 1;
        more.then_some(self.played)
    }
}

/// Runs one task per handle, all started at the same moment, and gives their answers in order.
pub(super) async fn at_once<T, F>(
    handles: &[Arc<dyn Store>],
    task: impl Fn(usize, Arc<dyn Store>) -> F,
) -> Outcome<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = Outcome<T>> + Send + 'static,
{
    let barrier = Arc::new(Barrier::new(handles.len()));
    let mut tasks = JoinSet::new();
    for (index, store) in handles.iter().enumerate() {
        let (barrier, work) = (Arc::clone(&barrier), task(index, Arc::clone(store)));
        tasks.spawn(async move {
            barrier.wait().await;
            (index, work.await)
        });
    }
    let mut answers = BTreeMap::new();
    while let Some(ended) = tasks.join_next().await {
        let (index, answer) = ended.map_err(|error| Problem::Harness(error.into()))?;
        answers.insert(index, answer?);
    }
    Ok(answers.into_values().collect())
}

pub(super) fn count_by_job(jobs: impl IntoIterator<Item = JobId>) -> BTreeMap<JobId, usize> {
    let mut counts = BTreeMap::new();
    for id in jobs {
        *counts.entry(id).or_default() += 1;
    }
    counts
}

async fn racing_workers_share_no_job(stage: Stage) -> Outcome {
    let handles = handles(&stage, 8).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let queue = format!("q{round}");
        let enqueued = stage.enqueue_many(&queue, 20).await?;
        let answers = at_once(&handles, |_, store| {
            let request = request(&queue, 4);
            async move { Ok(store.dequeue(&request?).await?) }
        })
        .await?;
        let largest = answers.iter().map(Vec::len).max().unwrap_or_default();
        ensure!(D5, largest <= 4, "round {round}: asked for 4, one got {largest}");
        let counts = count_by_job(answers.iter().flatten().map(|job| job.id));
        let shared: BTreeMap<_, _> = counts.iter().filter(|(_, count)| **count > 1).collect();
        ensure!(D2, shared.is_empty(), "round {round}, leases by job: {shared:?}");
        let rest = stage.claim(&queue, 100).await?;
        let again: Vec<_> =
            rest.iter().filter(|job| counts.contains_key(&job.id)).map(|job| job.id).collect();
        ensure!(D2, again.is_empty(), "round {round}: leased a second time: {again:?}");
        ensure_eq!(D2, format!("round {round}: jobs leased"), counts.len() + rest.len(), enqueued.len());
        for job in answers.iter().flatten() {
            ensure_eq!(
                D2,
                format!("round {round}: holder's epoch"),
                stage.live(job.id).await?.epoch,
                job.epoch
            );
        }
    }
    Ok(())
}

async fn racing_workers_of_many_queues_share_no_job(stage: Stage) -> Outcome {
    let handles = handles(&stage, 6).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        for queue in 0..5 {
            stage.enqueue_many(&format!("r{round}:{queue}"), 4).await?;
        }
        let answers = at_once(&handles, |index, store| {
            let asked = if index % 2 == 0 { format!("r{round}:*") } else { format!("r{round}:{index}") };
            let request = request(&asked, 5);
            async move { Ok(store.dequeue(&request?).await?) }
        })
        .await?;
        let counts = count_by_job(answers.iter().flatten().map(|job| job.id));
        let shared: BTreeMap<_, _> = counts.iter().filter(|(_, count)| **count > 1).collect();
        ensure!(D2, shared.is_empty(), "round {round}, leases by job: {shared:?}");
        let rest = stage.claim(&format!("r{round}:*"), 100).await?;
        ensure_eq!(D2, format!("round {round}: jobs leased"), counts.len() + rest.len(), 20);
    }
    Ok(())
}

async fn racing_workers_of_a_list_of_queues_share_no_job(stage: Stage) -> Outcome {
    let handles = handles(&stage, 8).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let names = ["a", "b", "c"].map(|name| format!("{name}{round}"));
        for name in &names {
            stage.enqueue_many(name, 8).await?;
        }
        let answers = at_once(&handles, |_, store| {
            let request = request_named(&names.each_ref().map(String::as_str), 3);
            async move { Ok(store.dequeue(&request?).await?) }
        })
        .await?;
        let counts = count_by_job(answers.iter().flatten().map(|job| job.id));
        let shared: BTreeMap<_, _> = counts.iter().filter(|(_, count)| **count > 1).collect();
        ensure!(D2, shared.is_empty(), "round {round}, leases by job: {shared:?}");
    }
    Ok(())
}

async fn racing_duplicates_become_one_job(stage: Stage) -> Outcome {
    let handles = handles(&stage, 8).await?;
    let callers: Vec<_> = handles.iter().cycle().take(64).cloned().collect();
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let key = format!("key {round}");
        let answers = at_once(&callers, |index, store| {
            let job = new_job("q").unique_key(key.as_str()).payload(&index).build();
            async move { Ok(store.enqueue(&[job?]).await?) }
        })
        .await?;
        let answers: Vec<Enqueued> = answers.into_iter().flatten().collect();
        let accepted = answers.iter().filter(|answer| !answer.deduplicated).count();
        let ids = count_by_job(answers.iter().map(|answer| answer.id));
        ensure!(
            E5,
            ids.len() == 1,
            "round {round}: 64 callers with one key were answered with the jobs {ids:?}"
        );
        ensure!(
            E5,
            accepted == 1,
            "round {round}: {accepted} of 64 callers with one key were told that theirs is new"
        );
        let filter = JobFilter { unique_key: Some(key.parse()?), ..JobFilter::default() };
        let live = all_jobs(&*stage.store, filter).await?;
        ensure!(E5, live.len() == 1, "round {round}: live jobs with one key: {live:?}");
    }
    Ok(())
}

async fn racing_duplicates_and_endings_lose_nothing(stage: Stage) -> Outcome {
    let handles = handles(&stage, 6).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let (queue, key) = (format!("q{round}"), format!("k{round}"));
        let first = stage.leased(new_job(&queue).unique_key(key.as_str())).await?;
        let answers = at_once(&handles, |index, store| {
            let (job, receipt) = (new_job(&queue).unique_key(key.as_str()).build(), first.receipt());
            async move {
                if index == 0 {
                    store.settle(&[(receipt, Verdict::done())]).await?;
                    return Ok(None);
                }
                Ok(store.enqueue(&[job?]).await?.pop())
            }
        })
        .await?;
        for answer in answers.into_iter().flatten() {
            let record = stage.store.get(answer.id).await?;
            ensure!(
                E5,
                record.is_some(),
                "round {round}: answered with job {}, which does not exist",
                answer.id
            );
        }
        let filter = JobFilter { unique_key: Some(key.parse()?), ..JobFilter::default() };
        let live = all_jobs(&*stage.store, filter).await?;
        ensure!(E5, live.len() <= 1, "round {round}: live jobs with one key: {live:?}");
    }
    Ok(())
}

async fn handles_opened_at_once_see_the_same_jobs(stage: Stage) -> Outcome {
    let stage = stage.fresh().await?;
    let mut opening = JoinSet::new();
    for number in 0..10 {
        let stage = stage.clone();
        opening.spawn(async move {
            let store = stage.connect().await?;
            store.enqueue(&[new_job("q").payload(&number).build()?]).await?;
            Outcome::Ok(store)
        });
    }
    let mut stores = Vec::new();
    while let Some(opened) = opening.join_next().await {
        stores.push(opened.map_err(|error| Problem::Harness(error.into()))??);
    }
    // One that comes later must find everything too.
    stores.push(stage.connect().await?);
    for store in stores {
        let jobs = all_jobs(&*store, JobFilter::default()).await?;
        ensure!(C5, jobs.len() == 10, "ten handles enqueued one job each, one of them sees {}", jobs.len());
    }
    Ok(())
}

async fn batches_in_opposite_orders_do_not_hinder_each_other(stage: Stage) -> Outcome {
    let handles = handles(&stage, 6).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let queue = format!("q{round}");
        let ids = stage.enqueue_many(&queue, 12).await?;
        let leased = stage.claim(&queue, 12).await?;
        ensure_eq!(D13, "leased", leased.len(), ids.len());
        let receipts: Vec<_> = leased.iter().map(Job::receipt).collect();
        // A deadlock is the store's own business: it must not come out as an error.
        at_once(&handles, |index, store| {
            let (mut receipts, queue) = (receipts.clone(), queue.clone());
            if index % 2 == 0 {
                receipts.reverse();
            }
            async move {
                match index / 2 {
                    0 => {
                        let items: Vec<_> =
                            receipts.iter().map(|receipt| (*receipt, Verdict::done())).collect();
                        store.settle(&items).await?;
                    }
                    1 => {
                        store.heartbeat(&receipts, lease_for(2 * HOUR)?).await?;
                    }
                    _ => {
                        let keys = receipts.iter().map(|receipt| receipt.job.to_string());
                        let jobs = keys.map(|key| new_job(&queue).unique_key(key).build());
                        store.enqueue(&jobs.collect::<Result<Vec<_>, _>>()?).await?;
                    }
                }
                Ok(())
            }
        })
        .await?;
        for receipt in receipts {
            // A verdict that met a heartbeat was perhaps answered Pending: it is given again.
            stage.try_settle(receipt, Verdict::done()).await?;
            stage.finished(receipt.job).await?;
        }
        let filter = JobFilter { queues: queue.as_str().try_into()?, ..JobFilter::default() };
        ensure_eq!(E5, format!("round {round}: live jobs"), all_jobs(&*stage.store, filter).await?.len(), 12);
    }
    Ok(())
}
