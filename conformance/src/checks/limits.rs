//! Concurrency limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_core::{
    Dequeue, Epoch, Job, JobFilter, JobState, Json, QueuePolicy, Receipt, Schedule, Store, Verdict,
};

use super::scene::{at_most, claim_at_once, handles, paused, queues, urgent};
use crate::check::checks;
use crate::dump::all_jobs;
use crate::failure::{Outcome, Problem, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, ids, new_job, request, request_named};

checks! { "limits":
    a_queue_has_no_more_leases_than_its_limit [P2] needs ConcurrencyLimit;
    a_passed_lease_counts_until_it_is_reclaimed [P2] needs ConcurrencyLimit;
    every_end_of_a_lease_frees_its_place [P2] needs ConcurrencyLimit;
    a_limit_can_be_changed_while_jobs_are_leased [P2] needs ConcurrencyLimit;
    the_limit_of_a_prefix_is_for_each_queue [P2] needs ConcurrencyLimit;
    a_full_queue_holds_back_no_other [P13] needs ConcurrencyLimit;
    a_paused_queue_holds_back_no_other [P13] needs Policies;
    racing_claims_stay_within_the_limit [P2] needs ConcurrencyLimit;
    racing_workers_stay_within_the_limit [P2] needs ConcurrencyLimit;
    however_many_are_held_back_they_hide_no_other [P13, D13] needs Policies;
    however_many_queues_are_held_back_they_hide_no_other [P13, D13] needs Policies;
    every_end_of_a_passed_lease_frees_its_place [P2] needs ConcurrencyLimit;
    an_end_in_a_transaction_frees_its_place [P2] needs ConcurrencyLimit, Transactions;
    a_limit_holds_for_handles_that_are_open [P2, P9] needs ConcurrencyLimit;
}

async fn leased(stage: &Stage) -> Outcome<usize> {
    let states = Some(vec![JobState::Running, JobState::Expired]);
    let filter = JobFilter { queues: queues("q")?, states, ..JobFilter::default() };
    Ok(all_jobs(&*stage.store, filter).await?.len())
}

async fn a_queue_has_no_more_leases_than_its_limit(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(3)?).await?;
    let other = stage.connect().await?;
    let waiting = stage.enqueue_many("q", 9).await?;
    ensure_eq!(P2, "leased in a first call for 2", ids(&stage.claim("q", 2).await?), waiting[..2]);
    let second = other.dequeue(&request("q", 9)?).await?;
    ensure_eq!(P2, "leased in a second call by another handle", ids(&second), waiting[2..3]);
    for selection in ["q", "q*", "*"] {
        for store in [&stage.store, &other] {
            let jobs = store.dequeue(&request(selection, 9)?).await?;
            ensure_eq!(P2, format!("leased over {selection} when 3 of 3 are leased"), jobs, []);
        }
    }
    ensure_eq!(P2, "leases in the queue", leased(&stage).await?, 3);
    stage.set_policy("p", at_most(2)?).await?;
    stage.enqueue_many("p", 9).await?;
    ensure_eq!(P2, "leased over a prefix in one call", stage.claim("p*", 9).await?.len(), 2);
    Ok(())
}

async fn a_passed_lease_counts_until_it_is_reclaimed(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(2)?).await?;
    stage.enqueue_many("q", 4).await?;
    stage.claim("q", 2).await?;
    stage.age(2 * HOUR).await?;
    ensure_eq!(P2, "leased beside two passed leases", stage.claim("q", 9).await?, []);
    stage.reclaim().await?;
    ensure_eq!(P2, "leased after the reclaim", stage.claim("q", 9).await?.len(), 2);
    ensure_eq!(P2, "leases in the queue", leased(&stage).await?, 2);
    Ok(())
}

async fn every_end_of_a_lease_frees_its_place(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(1)?).await?;
    stage.enqueue_many("q", 9).await?;
    let verdicts = [
        Verdict::done(),
        Verdict::dead("no"),
        Verdict::discard("no"),
        Verdict::retry_after("no", HOUR)?,
        Verdict::snooze(Duration::ZERO)?,
    ];
    for verdict in verdicts {
        let job = only_one(&stage).await?;
        stage.settle(job.receipt(), verdict).await?;
    }
    let job = only_one(&stage).await?;
    stage.store.release(&[job.receipt()]).await?;
    let job = only_one(&stage).await?;
    stage.store.retry_later(job.id, Schedule::Now).await?;
    let job = only_one(&stage).await?;
    stage.store.discard(job.id, Json::null()).await?;
    only_one(&stage).await?;
    let stale = Receipt { epoch: Epoch::ZERO, ..job.receipt() };
    stage.try_settle(stale, Verdict::done()).await?;
    ensure_eq!(P2, "leased after a stale verdict", stage.claim("q", 9).await?, []);
    Ok(())
}

/// Leases from a queue with a limit of one and no lease.
async fn only_one(stage: &Stage) -> Outcome<Job> {
    let mut jobs = stage.claim("q", 9).await?;
    ensure_eq!(P2, "leased from a queue with one free place", jobs.len(), 1);
    ensure_eq!(P2, "leased beside it", stage.claim("q", 9).await?, []);
    Ok(jobs.remove(0))
}

async fn a_limit_can_be_changed_while_jobs_are_leased(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 9).await?;
    let jobs = stage.claim("q", 3).await?;
    stage.set_policy("q", at_most(1)?).await?;
    for job in &jobs {
        ensure_eq!(P2, "leased while the queue has as many as its limit", stage.claim("q", 9).await?, []);
        stage.settle(job.receipt(), Verdict::done()).await?;
    }
    ensure_eq!(P2, "leased within the new limit", stage.claim("q", 9).await?.len(), 1);
    stage.set_policy("q", at_most(4)?).await?;
    ensure_eq!(P2, "leased within a higher limit", stage.claim("q", 9).await?.len(), 3);
    stage.set_policy("q", QueuePolicy::default()).await?;
    ensure_eq!(P2, "leased without a limit", stage.claim("q", 9).await?.len(), 2);
    Ok(())
}

async fn the_limit_of_a_prefix_is_for_each_queue(stage: Stage) -> Outcome {
    stage.set_policy("g:*", at_most(2)?).await?;
    stage.set_policy("g:3", at_most(1)?).await?;
    for name in ["g:1", "g:2", "g:3", "h"] {
        stage.enqueue_many(name, 4).await?;
    }
    let jobs = stage.store.dequeue(&request_named(&["g:1", "g:3", "h"], 99)?).await?;
    ensure_eq!(P2, "leased by name from g:1, g:3 and h", counts(&jobs), [2, 0, 1, 4]);
    let jobs = stage.claim("g:*", 99).await?;
    ensure_eq!(P2, "leased over the prefix after that", counts(&jobs), [0, 2, 0, 0]);
    Ok(())
}

fn counts(jobs: &[Job]) -> [usize; 4] {
    ["g:1", "g:2", "g:3", "h"].map(|name| jobs.iter().filter(|job| job.queue.as_str() == name).count())
}

async fn a_full_queue_holds_back_no_other(stage: Stage) -> Outcome {
    stage.set_policy("full", at_most(2)?).await?;
    let high: Vec<_> = urgent(&stage, "full", 6).await?;
    let low = stage.enqueue_many("open", 9).await?;
    stage.claim_one("full").await?;
    let both = &["full", "open"];
    let jobs = stage.store.dequeue(&request_named(both, 3)?).await?;
    ensure_eq!(P13, "leased of a queue with one place and another", ids(&jobs), [high[1], low[0], low[1]]);
    let jobs = stage.store.dequeue(&request_named(both, 3)?).await?;
    ensure_eq!(P13, "leased of a full queue and another", ids(&jobs), low[2..5]);
    ensure_eq!(P13, "leased over all queues", ids(&stage.claim("*", 4).await?), low[5..]);
    Ok(())
}

async fn a_paused_queue_holds_back_no_other(stage: Stage) -> Outcome {
    stage.set_policy("shut*", paused()).await?;
    urgent(&stage, "shut:1", 12).await?;
    urgent(&stage, "shut:2", 12).await?;
    let low = stage.enqueue_many("open", 6).await?;
    let jobs = stage.store.dequeue(&request_named(&["shut:1", "open", "shut:2"], 3)?).await?;
    ensure_eq!(P13, "leased of two paused queues and another", ids(&jobs), low[..3]);
    ensure_eq!(P13, "leased over all queues", ids(&stage.claim("*", 3).await?), low[3..]);
    Ok(())
}

async fn racing_claims_stay_within_the_limit(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(3)?).await?;
    let handles = handles(&stage, 4).await?;
    stage.enqueue_many("q", 120).await?;
    for round in 0..12 {
        let request = request(if round % 2 == 0 { "q" } else { "*" }, 2)?;
        let mut granted = claim_at_once(&handles, &request).await?;
        let seen = (granted.len(), leased(&stage).await?);
        ensure!(P2, seen.0 <= 3 && seen.0 == seen.1, "round {round}: granted and leased are {seen:?} of 3");
        granted.extend(stage.claim("q", 9).await?);
        ensure_eq!(P2, format!("round {round}: leased in the end"), granted.len(), 3);
        for job in granted {
            stage.settle(job.receipt(), Verdict::done()).await?;
        }
    }
    Ok(())
}

/// Workers that claim and settle as fast as they can, counting what they hold from after the one to before the other.
async fn racing_workers_stay_within_the_limit(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(2)?).await?;
    stage.enqueue_many("q", 60).await?;
    let (held, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for store in handles(&stage, 6).await? {
        let (held, most) = (Arc::clone(&held), Arc::clone(&most));
        tasks.push(tokio::spawn(work(store, request("q", 2)?, held, most)));
    }
    for task in tasks {
        task.await.map_err(|panic| Problem::Harness(panic.into()))??;
    }
    let most = most.load(Ordering::SeqCst);
    ensure!(P2, most <= 2, "with a limit of 2, workers held {most} jobs at once");
    ensure_eq!(P2, "leases in the end", leased(&stage).await?, 0);
    Ok(())
}

async fn work(
    store: Arc<dyn Store>,
    request: Dequeue,
    held: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
) -> Outcome {
    for _ in 0..30 {
        let jobs = store.dequeue(&request).await?;
        let now = held.fetch_add(jobs.len(), Ordering::SeqCst) + jobs.len();
        most.fetch_max(now, Ordering::SeqCst);
        tokio::task::yield_now().await;
        held.fetch_sub(jobs.len(), Ordering::SeqCst);
        let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect();
        store.settle(&items).await?;
    }
    Ok(())
}

async fn however_many_are_held_back_they_hide_no_other(stage: Stage) -> Outcome {
    // More than any number of candidates that a store might look at.
    let urgent = (0..3000).map(|_| new_job("shut").priority(9).build()).collect::<Result<Vec<_>, _>>()?;
    stage.store.enqueue(&urgent).await?;
    stage.set_policy("shut", paused()).await?;
    let low = stage.enqueue_many("open", 2).await?;
    let named = stage.store.dequeue(&request_named(&["open", "shut"], 1)?).await?;
    ensure_eq!(P13, "leased beside 3000 urgent jobs of a paused queue", ids(&named), low[..1]);
    ensure_eq!(P13, "leased over a prefix", ids(&stage.claim("*", 1).await?), low[1..]);
    Ok(())
}

async fn however_many_queues_are_held_back_they_hide_no_other(stage: Stage) -> Outcome {
    let jobs = (0..3000).map(|number| new_job(&format!("g:{number:04}")).build());
    stage.store.enqueue(&jobs.collect::<Result<Vec<_>, _>>()?).await?;
    stage.set_policy("g:*", paused()).await?;
    for name in ["g:0000 open", "g:1500 open", "g:9999 open"] {
        stage.set_policy(name, QueuePolicy { paused: Some(false), ..QueuePolicy::default() }).await?;
        stage.enqueue_many(name, 2).await?;
    }
    for turn in 0..6 {
        let jobs = stage.claim("g:*", 1).await?;
        ensure!(P13, jobs.len() == 1, "turn {turn}: three open queues among 3000 paused ones gave {jobs:?}");
    }
    Ok(())
}

async fn every_end_of_a_passed_lease_frees_its_place(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(1)?).await?;
    stage.enqueue_many("q", 9).await?;
    for end in ["settle", "release", "discard", "retry_later", "reclaim"] {
        let job = only_one(&stage).await?;
        stage.age(2 * HOUR).await?;
        ensure_eq!(P2, format!("leased before {end}"), stage.claim("q", 9).await?, []);
        match end {
            "settle" => stage.settle(job.receipt(), Verdict::done()).await?,
            "release" => drop(stage.store.release(&[job.receipt()]).await?),
            "discard" => stage.store.discard(job.id, Json::null()).await?,
            "retry_later" => stage.store.retry_later(job.id, Schedule::Now).await?,
            _ => drop(stage.reclaim().await?),
        }
    }
    let last = only_one(&stage).await?;
    stage.settle(last.receipt(), Verdict::done()).await?;
    let dying = stage.enqueue(new_job("q").max_attempts(1).priority(9)).await?;
    ensure_eq!(P2, "leased", only_one(&stage).await?.id, dying);
    stage.age(2 * HOUR).await?;
    stage.reclaim().await?;
    only_one(&stage).await?;
    Ok(())
}

async fn an_end_in_a_transaction_frees_its_place(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(1)?).await?;
    stage.enqueue_many("q", 9).await?;
    for verdict in
        [Verdict::done(), Verdict::dead("no"), Verdict::retry_after("no", HOUR)?, Verdict::release()]
    {
        let job = only_one(&stage).await?;
        let mut transaction = stage.begin().await?;
        let _rolled_back = transaction.settle_in(&job.receipt(), verdict.clone()).await?;
        transaction.rollback().await?;
        ensure_eq!(P2, "leased after a rollback", stage.claim("q", 9).await?, []);
        let mut transaction = stage.begin().await?;
        let _settled = transaction.settle_in(&job.receipt(), verdict).await?;
        transaction.commit().await?;
    }
    only_one(&stage).await?;
    Ok(())
}

async fn a_limit_holds_for_handles_that_are_open(stage: Stage) -> Outcome {
    let other = stage.connect().await?;
    stage.enqueue_many("q", 9).await?;
    ensure_eq!(P2, "leased without a limit", other.dequeue(&request("q", 1)?).await?.len(), 1);
    stage.set_policy("q", at_most(2)?).await?;
    for selection in ["q", "q*"] {
        let jobs = other.dequeue(&request(selection, 9)?).await?;
        let expected = usize::from(selection == "q");
        ensure_eq!(P2, format!("leased over {selection} by a handle from before"), jobs.len(), expected);
    }
    stage.set_policy("q", QueuePolicy::default()).await?;
    let jobs = other.dequeue(&request("q", 1)?).await?;
    ensure_eq!(P2, "leased when the limit was removed", jobs.len(), 1);
    Ok(())
}
