//! Races seen from outside: at every moment each job is in one place.

use super::race::{Rounds, at_once, count_by_job};
use super::scene::handles;
use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_core::{BatchSize, Job, JobFilter, JobId, Json, Store, Verdict};

use crate::check::checks;
use crate::dump::{all_history, all_jobs};
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, new_job, request};

checks! { "race":
    racing_redrives_count_once [X1];
    an_observer_sees_every_job_in_one_place [C1];
    a_storm_loses_nothing [C1, D2];
    a_batch_becomes_visible_at_once [C1, E1];
    a_prune_and_a_redrive_do_not_both_count [U1, X1, C1];
    an_observer_sees_every_job_that_is_redriven [C1];
    racing_redrives_and_duplicates_share_a_key [E5, X4];
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
