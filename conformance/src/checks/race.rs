//! Races on real threads.
//!
//! Each check runs several rounds on warm handles, more of them while there is time: a store that is fast gets more
//! chances to be wrong. Beside each stands a deterministic check of the same clause.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::{
    BatchSize, Enqueued, HeartbeatOutcome, Job, JobFilter, JobId, Json, ReclaimFate, Reclaimed, Record,
    Store, Verdict,
};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::check::checks;
use crate::dump::{all_history, all_jobs};
use crate::failure::{Outcome, Problem, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job, request};

checks! { "race":
    racing_workers_share_no_job [D2, D5];
    racing_workers_of_many_queues_share_no_job [D2, D11];
    racing_duplicates_become_one_job [E5];
    racing_duplicates_and_endings_lose_nothing [E5, E6];
    racing_verdicts_count_once [S11];
    racing_reclaims_count_once [R6];
    a_verdict_and_a_reclaim_do_not_both_count [R6, S11];
    a_heartbeat_and_a_reclaim_do_not_both_count [R6, H3];
    racing_redrives_count_once [X1];
    an_observer_sees_every_job_in_one_place [C1];
    a_storm_loses_nothing [C1, D2];
    handles_opened_at_once_see_the_same_jobs [C5];
    batches_in_opposite_orders_do_not_hinder_each_other [C1, E5];
    a_late_verdict_does_not_hit_the_next_lease [S2, R6];
    a_batch_becomes_visible_at_once [C1, E1];
    an_administrator_and_a_verdict_do_not_both_count [S2, A4, C1];
    a_prune_and_a_redrive_do_not_both_count [U1, X1, C1];
    an_observer_sees_every_job_that_is_redriven [C1];
    racing_redrives_and_duplicates_share_a_key [E5, X4];
    a_heartbeat_does_not_hit_the_next_lease [H4, H1];
}

/// Few rounds are always played; more while the budget lasts.
struct Rounds {
    played: u32,
    started: Instant,
    budget: Duration,
}

const FEWEST: u32 = 4;
const MOST: u32 = 150;

impl Rounds {
    fn new(stage: &Stage) -> Self {
        Self { played: 0, started: Instant::now(), budget: stage.race_budget() }
    }

    fn next(&mut self) -> Option<u32> {
        let more = self.played < FEWEST || (self.played < MOST && self.started.elapsed() < self.budget);
        self.played += 1;
        more.then_some(self.played)
    }
}

async fn handles(stage: &Stage, count: usize) -> Outcome<Vec<Arc<dyn Store>>> {
    let mut handles = Vec::new();
    for _ in 0..count {
        let store = stage.connect().await?;
        store.now().await?;
        handles.push(store);
    }
    Ok(handles)
}

/// Runs one task per handle, all started at the same moment, and gives their answers in order.
async fn at_once<T, F>(
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

fn count_by_job(jobs: impl IntoIterator<Item = JobId>) -> BTreeMap<JobId, usize> {
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

async fn racing_verdicts_count_once(stage: Stage) -> Outcome {
    let handles = handles(&stage, 6).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let job = stage.leased(new_job(&format!("q{round}"))).await?;
        let answers = at_once(&handles, |index, store| {
            let receipt = job.receipt();
            async move {
                let verdict = match index % 3 {
                    0 => Verdict::done_with(&index)?,
                    1 => Verdict::snooze(HOUR)?,
                    _ => Verdict::retry_after(index, HOUR)?,
                };
                Ok(store.settle(&[(receipt, verdict)]).await?)
            }
        })
        .await?;
        let counted = answers.iter().flatten().filter(|outcome| !outcome.is_lost()).count();
        ensure!(
            S11,
            counted == 1,
            "round {round}: {counted} of six verdicts for one receipt counted: {answers:?}"
        );
        let record = stage.record(job.id).await?;
        let attempts = match &record {
            Record::Live(job) => job.attempts,
            Record::Finished(job) => job.attempts,
        };
        ensure!(S11, attempts <= 1, "round {round}: the job is {record:?}");
    }
    Ok(())
}

async fn racing_reclaims_count_once(stage: Stage) -> Outcome {
    let handles = handles(&stage, 6).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let queue = format!("q{round}");
        for attempts in [1, 2, 1, 2, 1, 2] {
            stage.enqueue(new_job(&queue).max_attempts(attempts)).await?;
        }
        let leased = stage.claim(&queue, 10).await?;
        ensure_eq!(D13, "leased", leased.len(), 6);
        stage.age(2 * HOUR).await?;
        let answers =
            at_once(&handles, |_, store| async move { Ok(store.reclaim(BatchSize::new(4)?).await?) }).await?;
        let rest = stage.reclaim().await?;
        let all: Vec<Reclaimed> = answers.into_iter().flatten().chain(rest).collect();
        let counts = count_by_job(all.iter().map(|reclaimed| reclaimed.id));
        let twice: BTreeMap<_, _> = counts.iter().filter(|(_, count)| **count > 1).collect();
        ensure!(R6, twice.is_empty(), "round {round}, reclaimed more than once: {twice:?}");
        ensure_eq!(R6, format!("round {round}: reclaimed"), counts.len(), 6);
        let dead = all.iter().filter(|reclaimed| reclaimed.fate == ReclaimFate::DeadLettered).count();
        ensure_eq!(R6, format!("round {round}: dead letters"), dead, 3);
        for job in stage.claim(&queue, 10).await? {
            stage.settle(job.receipt(), Verdict::done()).await?;
        }
    }
    Ok(())
}

async fn a_verdict_and_a_reclaim_do_not_both_count(stage: Stage) -> Outcome {
    let handles = handles(&stage, 4).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let job = stage.leased(new_job(&format!("q{round}"))).await?;
        stage.age(2 * HOUR).await?;
        let answers = at_once(&handles, |index, store| {
            let receipt = job.receipt();
            async move {
                if index % 2 == 0 {
                    let outcomes = store.settle(&[(receipt, Verdict::done())]).await?;
                    Ok(outcomes.iter().filter(|outcome| !outcome.is_lost()).count())
                } else {
                    let reclaimed = store.reclaim(BatchSize::MAX).await?;
                    Ok(reclaimed.iter().filter(|reclaimed| reclaimed.id == receipt.job).count())
                }
            }
        })
        .await?;
        let counted: usize = answers.iter().sum();
        ensure!(
            R6,
            counted == 1,
            "round {round}: verdicts and reclaims that counted for one lease: {answers:?}"
        );
        let settled = answers[0] + answers[2] == 1;
        let record = stage.record(job.id).await?;
        let finished = matches!(record, Record::Finished(_));
        ensure!(R6, finished == settled, "round {round}: answers {answers:?}, but the job is {record:?}");
    }
    Ok(())
}

async fn a_heartbeat_and_a_reclaim_do_not_both_count(stage: Stage) -> Outcome {
    let handles = handles(&stage, 4).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let job = stage.leased(new_job(&format!("q{round}"))).await?;
        // Some rounds on either side of the end of the lease.
        stage.age(if round % 2 == 0 { HOUR } else { HOUR / 2 }).await?;
        let answers = at_once(&handles, |index, store| {
            let receipt = job.receipt();
            async move {
                if index % 2 == 0 {
                    let answers = store.heartbeat(&[receipt], lease_for(5 * HOUR)?).await?;
                    Ok((answers.iter().any(|answer| *answer != HeartbeatOutcome::Lost), false))
                } else {
                    let reclaimed = store.reclaim(BatchSize::MAX).await?;
                    Ok((false, reclaimed.iter().any(|reclaimed| reclaimed.id == receipt.job)))
                }
            }
        })
        .await?;
        let (extended, reclaimed) =
            (answers.iter().any(|answer| answer.0), answers.iter().any(|answer| answer.1));
        ensure!(R6, extended != reclaimed, "round {round}: extended {extended}, reclaimed {reclaimed}");
        let held = stage.live(job.id).await?.lease.is_some();
        ensure!(H3, held == extended, "round {round}: extended {extended}, but the job has a lease: {held}");
        stage.store.discard(job.id, Json::null()).await?;
    }
    Ok(())
}

async fn racing_redrives_count_once(stage: Stage) -> Outcome {
    let handles = handles(&stage, 5).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let job = stage.leased(new_job(&format!("q{round}"))).await?;
        stage.settle(job.receipt(), Verdict::dead("no")).await?;
        let all = leasehold_core::Redrive::all(BatchSize::MAX);
        let answers = at_once(&handles, |_, store| {
            let all = all.clone();
            async move { Ok(store.redrive(&all).await?.jobs) }
        })
        .await?;
        let counts = count_by_job(answers.into_iter().flatten());
        ensure!(X1, counts == BTreeMap::from([(job.id, 1)]), "round {round}, redriven by job: {counts:?}");
        ensure_eq!(X1, "live again", stage.live(job.id).await?.id, job.id);
        stage.store.discard(job.id, Json::null()).await?;
    }
    Ok(())
}

async fn an_observer_sees_every_job_in_one_place(stage: Stage) -> Outcome {
    let handles = handles(&stage, 4).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let queue = format!("q{round}");
        let ids = stage.enqueue_many(&queue, 12).await?;
        let jobs = stage.claim(&queue, 12).await?;
        at_once(&handles, |index, store| {
            let (ids, jobs) = (ids.clone(), jobs.clone());
            async move {
                match index {
                    0 | 1 => settle_some(&*store, &jobs, index).await,
                    _ => observe(&*store, &ids, round).await,
                }
            }
        })
        .await?;
        observe(&*stage.store, &ids, round).await?;
    }
    Ok(())
}

async fn settle_some(store: &dyn Store, jobs: &[Job], offset: usize) -> Outcome {
    for job in jobs.iter().skip(offset).step_by(2) {
        let verdict = match job.id.get() % 4 {
            0 => Verdict::dead("no"),
            1 => Verdict::discard("no"),
            2 => Verdict::retry_after("again", HOUR)?,
            _ => Verdict::done(),
        };
        store.settle(&[(job.receipt(), verdict)]).await?;
    }
    Ok(())
}

/// Nobody redrives, so a job only moves from the queue to the history.
async fn observe(store: &dyn Store, ids: &[JobId], round: u32) -> Outcome {
    for id in ids {
        let found = store.get(*id).await?;
        ensure!(C1, found.is_some(), "round {round}: for a moment job {id} was nowhere");
    }
    let finished = all_history(store, leasehold_core::HistoryFilter::default()).await?;
    let live = all_jobs(store, JobFilter::default()).await?;
    let both: Vec<_> =
        finished.iter().filter(|job| live.iter().any(|other| other.id == job.id)).map(|job| job.id).collect();
    ensure!(C1, both.is_empty(), "round {round}: in the history and then in the queue: {both:?}");
    let later = all_history(store, leasehold_core::HistoryFilter::default()).await?;
    let found = |id: &JobId| live.iter().any(|job| job.id == *id) || later.iter().any(|job| job.id == *id);
    let lost: Vec<_> = ids.iter().filter(|id| !found(id)).collect();
    ensure!(C1, lost.is_empty(), "round {round}: not in the queue and then not in the history: {lost:?}");
    Ok(())
}

async fn a_storm_loses_nothing(stage: Stage) -> Outcome {
    let handles = handles(&stage, 6).await?;
    let accepted = stage.enqueue_many("storm", 60).await?;
    let answers = at_once(&handles, |index, store| async move { storm(&*store, index).await }).await?;
    let mut leases = BTreeMap::new();
    for job in answers.iter().flat_map(|(_, leased)| leased) {
        let known: &mut Vec<_> = leases.entry(job.id).or_default();
        ensure!(D2, !known.contains(&job.epoch), "job {} was leased twice in epoch {}", job.id, job.epoch);
        known.push(job.epoch);
    }
    let more: Vec<JobId> = answers.into_iter().flat_map(|(enqueued, _)| enqueued).collect();
    let dump = stage.dump().await?;
    let places =
        count_by_job(dump.jobs.iter().map(|job| job.id).chain(dump.history.iter().map(|job| job.id)));
    for id in accepted.iter().chain(&more) {
        let count = places.get(id).copied().unwrap_or_default();
        ensure!(C1, count == 1, "after the storm job {id} is in {count} places");
    }
    ensure_eq!(C1, "jobs in all", places.len(), accepted.len() + more.len());
    Ok(())
}

/// What one of many workers does in the storm: the jobs that it enqueued and the leases that it got.
async fn storm(store: &dyn Store, worker: usize) -> Outcome<(Vec<JobId>, Vec<Job>)> {
    let (mut enqueued, mut leased) = (Vec::new(), Vec::new());
    for step in 0..15 {
        let jobs = store.dequeue(&request(if step % 3 == 0 { "*" } else { "storm" }, 4)?).await?;
        for (number, job) in jobs.into_iter().enumerate() {
            let verdict = match (number + worker + step) % 5 {
                0 => Verdict::retry_after("again", Duration::ZERO)?,
                1 => Verdict::snooze(Duration::ZERO)?,
                2 => Verdict::dead("no"),
                _ => Verdict::done(),
            };
            store.settle(&[(job.receipt(), verdict)]).await?;
            leased.push(job);
        }
        enqueued.extend(store.enqueue(&[new_job("storm").build()?]).await?.iter().map(|answer| answer.id));
        store.reclaim(BatchSize::new(10)?).await?;
    }
    Ok((enqueued, leased))
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
        for id in ids {
            stage.finished(id).await?;
        }
        let filter = JobFilter { queues: queue.as_str().try_into()?, ..JobFilter::default() };
        ensure_eq!(E5, format!("round {round}: live jobs"), all_jobs(&*stage.store, filter).await?.len(), 12);
    }
    Ok(())
}

async fn a_late_verdict_does_not_hit_the_next_lease(stage: Stage) -> Outcome {
    let handles = handles(&stage, 4).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let queue = format!("q{round}");
        let job = stage.leased(new_job(&queue)).await?;
        stage.age(2 * HOUR).await?;
        let answers = at_once(&handles, |index, store| {
            let (receipt, queue) = (job.receipt(), queue.clone());
            async move {
                if index % 2 == 0 {
                    let outcomes = store.settle(&[(receipt, Verdict::snooze(HOUR)?)]).await?;
                    return Ok((outcomes.iter().filter(|outcome| !outcome.is_lost()).count(), None));
                }
                store.reclaim(BatchSize::MAX).await?;
                Ok((0, store.dequeue(&request(&queue, 1)?).await?.pop()))
            }
        })
        .await?;
        let settled: usize = answers.iter().map(|answer| answer.0).sum();
        let leased: Vec<_> = answers.into_iter().filter_map(|answer| answer.1).collect();
        ensure!(
            S2,
            settled + leased.len() <= 1,
            "round {round}: {settled} verdicts of the old lease counted beside the new leases {leased:?}"
        );
        for next in leased {
            let outcome = stage.try_settle(next.receipt(), Verdict::done()).await?;
            ensure!(
                S2,
                !outcome.is_lost(),
                "round {round}: the new holder's receipt was answered {outcome:?}"
            );
        }
    }
    Ok(())
}

async fn a_batch_becomes_visible_at_once(stage: Stage) -> Outcome {
    let handles = handles(&stage, 3).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let (queue, count) = (format!("q{round}"), 250);
        at_once(&handles, |index, store| {
            let queue = queue.clone();
            async move {
                if index == 0 {
                    let jobs = (0..count).map(|_| new_job(&queue).build()).collect::<Result<Vec<_>, _>>()?;
                    store.enqueue(&jobs).await?;
                    return Ok(());
                }
                // One page is one look.
                let limit = BatchSize::MAX;
                let filter = JobFilter { queues: queue.as_str().try_into()?, limit, ..JobFilter::default() };
                for _ in 0..100 {
                    let page = store.jobs(&filter).await?;
                    let seen = page.items.len();
                    let whole = seen == 0 || seen == count || page.next.is_some();
                    ensure!(E1, whole, "round {round}: {seen} of a batch of {count} were there for a moment");
                    if seen == count {
                        break;
                    }
                }
                Ok(())
            }
        })
        .await?;
        let jobs = stage.claim(&queue, count as u32).await?;
        let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect();
        stage.store.settle(&items).await?;
        stage.store.prune(&leasehold_core::Prune::older_than(Duration::ZERO, BatchSize::MAX)?).await?;
    }
    Ok(())
}

async fn an_administrator_and_a_verdict_do_not_both_count(stage: Stage) -> Outcome {
    let handles = handles(&stage, 4).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let job = stage.leased(new_job(&format!("q{round}"))).await?;
        let answers = at_once(&handles, |index, store| {
            let receipt = job.receipt();
            async move {
                if index % 2 == 0 {
                    let outcomes = store.settle(&[(receipt, Verdict::done())]).await?;
                    return Ok((!outcomes[0].is_lost(), false));
                }
                match store.retry_later(receipt.job, leasehold_core::Schedule::after(HOUR)?).await {
                    Ok(()) => Ok((false, true)),
                    Err(leasehold_core::StoreError::Conflict { .. }) => Ok((false, false)),
                    Err(error) => Err(error.into()),
                }
            }
        })
        .await?;
        let settled = answers.iter().filter(|answer| answer.0).count();
        let sent_back = answers.iter().any(|answer| answer.1);
        ensure!(
            S2,
            settled + usize::from(sent_back) == 1,
            "round {round}: settled and sent back are {answers:?}"
        );
        let finished = matches!(stage.record(job.id).await?, Record::Finished(_));
        ensure_eq!(C1, format!("round {round}: the job is finished"), finished, settled == 1);
        let dump = stage.dump().await?;
        let places = dump.jobs.iter().map(|job| job.id).chain(dump.history.iter().map(|job| job.id));
        ensure_eq!(C1, "places in which the job is", places.filter(|id| *id == job.id).count(), 1);
        if !finished {
            stage.store.discard(job.id, Json::null()).await?;
        }
    }
    Ok(())
}

async fn a_prune_and_a_redrive_do_not_both_count(stage: Stage) -> Outcome {
    let handles = handles(&stage, 4).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let job = stage.leased(new_job(&format!("q{round}"))).await?;
        stage.settle(job.receipt(), Verdict::dead("no")).await?;
        let answers = at_once(&handles, |index, store| {
            let ids = vec![job.id];
            async move {
                if index % 2 == 0 {
                    let all = leasehold_core::Prune::older_than(Duration::ZERO, BatchSize::MAX)?;
                    let pruned = store.prune(&leasehold_core::Prune { ids: Some(ids), ..all }).await?;
                    return Ok((pruned, 0));
                }
                let all = leasehold_core::Redrive::all(BatchSize::MAX);
                Ok((0, store.redrive(&leasehold_core::Redrive { ids: Some(ids), ..all }).await?.jobs.len()))
            }
        })
        .await?;
        let pruned: u64 = answers.iter().map(|answer| answer.0).sum();
        let redriven: usize = answers.iter().map(|answer| answer.1).sum();
        let once = pruned + redriven as u64 == 1;
        ensure!(
            U1,
            once,
            "round {round}: one dead letter was pruned {pruned} times and redriven {redriven} times"
        );
        let there = stage.store.get(job.id).await?;
        ensure!(
            C1,
            there.is_some() == (redriven == 1),
            "round {round}: redriven {redriven}, found {there:?}"
        );
        if redriven == 1 {
            stage.store.discard(job.id, Json::null()).await?;
        }
    }
    Ok(())
}

async fn an_observer_sees_every_job_that_is_redriven(stage: Stage) -> Outcome {
    let handles = handles(&stage, 4).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let queue = format!("q{round}");
        let id = stage.enqueue(new_job(&queue)).await?;
        at_once(&handles, |index, store| {
            let queue = queue.clone();
            async move {
                for _ in 0..25 {
                    if index > 0 {
                        let found = store.get(id).await?;
                        ensure!(C1, found.is_some(), "round {round}: for a moment job {id} was nowhere");
                        continue;
                    }
                    let jobs = store.dequeue(&request(&queue, 1)?).await?;
                    let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::dead("no"))).collect();
                    store.settle(&items).await?;
                    store.redrive(&leasehold_core::Redrive::all(BatchSize::MAX)).await?;
                }
                Ok(())
            }
        })
        .await?;
        stage.store.discard(id, Json::null()).await?;
    }
    Ok(())
}

async fn racing_redrives_and_duplicates_share_a_key(stage: Stage) -> Outcome {
    let handles = handles(&stage, 6).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let (queue, key) = (format!("q{round}"), format!("k{round}"));
        let dead = stage.leased(new_job(&queue).unique_key(key.as_str())).await?;
        stage.settle(dead.receipt(), Verdict::dead("no")).await?;
        let accepted = at_once(&handles, |index, store| {
            let (job, ids) = (new_job(&queue).unique_key(key.as_str()).build(), vec![dead.id]);
            async move {
                if index % 2 == 0 {
                    let all = leasehold_core::Redrive::all(BatchSize::MAX);
                    return Ok(store
                        .redrive(&leasehold_core::Redrive { ids: Some(ids), ..all })
                        .await?
                        .jobs
                        .len());
                }
                Ok(store.enqueue(&[job?]).await?.iter().filter(|answer| !answer.deduplicated).count())
            }
        })
        .await?;
        let filter = JobFilter { unique_key: Some(key.parse()?), ..JobFilter::default() };
        let live = all_jobs(&*stage.store, filter).await?;
        ensure!(E5, live.len() == 1, "round {round}: live jobs with one key: {live:?}");
        ensure_eq!(X4, format!("round {round}: redriven and accepted"), accepted.iter().sum::<usize>(), 1);
    }
    Ok(())
}

async fn a_heartbeat_does_not_hit_the_next_lease(stage: Stage) -> Outcome {
    let handles = handles(&stage, 4).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let queue = format!("q{round}");
        let job = stage.leased(new_job(&queue)).await?;
        let answers = at_once(&handles, |index, store| {
            let (receipt, queue) = (job.receipt(), queue.clone());
            async move {
                if index > 0 {
                    store.heartbeat(&[receipt], lease_for(9 * HOUR)?).await?;
                    return Ok(None);
                }
                store.release(&[receipt]).await?;
                Ok(store.dequeue(&request(&queue, 1)?).await?.pop())
            }
        })
        .await?;
        for next in answers.into_iter().flatten() {
            let seen = stage.live(next.id).await?;
            ensure_eq!(
                H4,
                format!("round {round}: the next lease, after the old holder's heartbeats"),
                seen,
                next
            );
        }
        stage.store.discard(job.id, Json::null()).await?;
    }
    Ok(())
}
