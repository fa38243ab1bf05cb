//! Forgetting finished jobs.

use std::time::Duration;

use leasehold_core::contract::{U1, U3};
use leasehold_core::{
    BatchSize, Delay, FinalStatus, JobId, Json, Prune, PruneAge, QueuePolicy, Queues, ReceiptStatus, Record,
    Redrive, Redriven, Verdict,
};

use super::scene::{dead_letter, every_state, holds, queues};
use crate::check::checks;
use crate::failure::{Outcome, ensure_eq};
use crate::stage::{HOUR, Stage, new_job};

checks! { "prune":
    only_what_is_old_enough_is_forgotten [U1];
    only_what_is_asked_for_is_forgotten [U1];
    a_live_job_is_never_forgotten [U1];
    a_forgotten_job_is_unknown [U1];
    a_call_forgets_as_many_as_it_may [U2];
    each_queue_keeps_what_its_policy_says [U3] needs Policies;
    without_a_retention_nothing_is_forgotten [U3];
    jobs_named_by_id_must_be_old_enough_too [U1, U2];
    retention_goes_with_every_other_condition [U1, U2, U3] needs Policies;
}

fn older_than(age: Duration) -> Outcome<Prune> {
    Ok(Prune::older_than(age, BatchSize::MAX)?)
}

async fn kept(stage: &Stage) -> Outcome<Vec<JobId>> {
    Ok(stage.dump().await?.history.iter().map(|job| job.id).collect())
}

async fn only_what_is_old_enough_is_forgotten(stage: Stage) -> Outcome {
    let created = stage.enqueue(new_job("q").delay(3 * HOUR)).await?;
    stage.age(3 * HOUR).await?;
    let late = stage.claim_one("q").await?;
    stage.age(HOUR / 2).await?;
    stage.settle(late.receipt(), Verdict::done()).await?;
    let pruned = stage.store.prune(&older_than(HOUR / 4)?).await?;
    ensure_eq!(U1, format!("forgotten though {created} has just ended"), pruned, 0);
    stage.store.prune(&older_than(Duration::ZERO)?).await?;

    let old = dead_letter(&stage, new_job("q"), "no").await?;
    stage.age(HOUR).await?;
    let young = dead_letter(&stage, new_job("q"), "no").await?;
    stage.age(HOUR).await?;
    // They ended two hours and one hour ago.
    for (age, wanted) in [
        (3 * HOUR, vec![old, young]),
        (5 * HOUR / 2, vec![old, young]),
        (2 * HOUR, vec![young]),
        (3 * HOUR / 2, vec![young]),
        (HOUR, vec![]),
    ] {
        let before = kept(&stage).await?.len() as u64;
        let count = stage.store.prune(&older_than(age)?).await?;
        ensure_eq!(U1, format!("kept after forgetting what is {age:?} old"), kept(&stage).await?, wanted);
        ensure_eq!(U2, "the number told", count, before - wanted.len() as u64);
    }
    dead_letter(&stage, new_job("q"), "no").await?;
    ensure_eq!(U1, "forgotten at once", stage.store.prune(&older_than(Duration::ZERO)?).await?, 1);
    Ok(())
}

/// Nine finished jobs: three queues, each with one of each status.
async fn nine(stage: &Stage) -> Outcome<Vec<JobId>> {
    let mut all = Vec::new();
    for queue in ["a", "ab", "A"] {
        for verdict in [Verdict::done(), Verdict::dead("no"), Verdict::discard("no")] {
            let job = stage.leased(new_job(queue)).await?;
            stage.settle(job.receipt(), verdict).await?;
            all.push(job.id);
        }
    }
    Ok(all)
}

async fn only_what_is_asked_for_is_forgotten(stage: Stage) -> Outcome {
    let any = || older_than(Duration::ZERO);
    let (dead, gone) = (FinalStatus::DeadLetter, FinalStatus::Discarded);
    let by_index = |all: &[JobId], wanted: &[usize]| wanted.iter().map(|index| all[*index]).collect();
    let requests = [
        (Prune { statuses: Some(vec![FinalStatus::Completed]), ..any()? }, vec![0, 3, 6], None),
        (Prune { statuses: Some(vec![dead, gone]), ..any()? }, vec![1, 2, 4, 5, 7, 8], None),
        (Prune { queues: queues("a")?, ..any()? }, vec![0, 1, 2], None),
        (Prune { queues: queues("a*")?, ..any()? }, vec![0, 1, 2, 3, 4, 5], None),
        (Prune { queues: Queues::named(["A", "none"])?, ..any()? }, vec![6, 7, 8], None),
        (any()?, vec![0, 8], Some(vec![8, 0, 0])),
        (Prune { statuses: Some(vec![dead]), queues: queues("a*")?, ..any()? }, vec![4], Some(vec![3, 4, 7])),
        (Prune { queues: queues("none")?, ..any()? }, vec![], None),
        (any()?, vec![], Some(vec![])),
        (Prune { statuses: Some(Vec::new()), ..any()? }, vec![], None),
    ];
    for (mut request, wanted, named) in requests {
        stage.store.prune(&any()?).await?;
        let all = nine(&stage).await?;
        request.ids = named.map(|named| by_index(&all, &named));
        let gone: Vec<JobId> = by_index(&all, &wanted);
        let mut expected = stage.dump().await?;
        expected.history.retain(|job| !gone.contains(&job.id));
        let count = stage.store.prune(&request).await?;
        holds(U1, &stage, &expected, &format!("after {request:?}")).await?;
        ensure_eq!(U2, format!("the number told for {request:?}"), count, wanted.len() as u64);
    }
    Ok(())
}

async fn a_live_job_is_never_forgotten(stage: Stage) -> Outcome {
    let [jobs] = every_state(&stage, ["q"]).await?;
    stage.age(9 * HOUR).await?;
    let before = stage.dump().await?;
    let named = Prune { ids: Some(jobs.into_values().collect()), ..older_than(Duration::ZERO)? };
    for request in [older_than(Duration::ZERO)?, named, Prune::by_retention(BatchSize::MAX)] {
        ensure_eq!(U1, "forgotten of live jobs", stage.store.prune(&request).await?, 0);
        holds(U1, &stage, &before, "prune touched live jobs").await?;
    }
    Ok(())
}

async fn a_forgotten_job_is_unknown(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q").unique_key("k")).await?;
    stage.settle(job.receipt(), Verdict::dead("no")).await?;
    stage.store.prune(&older_than(Duration::ZERO)?).await?;
    ensure_eq!(U1, "get", stage.store.get(job.id).await?, None::<Record>);
    let redriven = stage.store.redrive(&Redrive::all(BatchSize::MAX)).await?;
    ensure_eq!(U1, "redriven", redriven, Redriven::default());
    let worth = stage.store.receipts(&[job.receipt()]).await?;
    ensure_eq!(U1, "its receipt", worth, [ReceiptStatus::Gone]);
    Ok(())
}

async fn a_call_forgets_as_many_as_it_may(stage: Stage) -> Outcome {
    for id in stage.enqueue_many("q", 7).await? {
        stage.store.discard(id, Json::null()).await?;
    }
    let three = Prune::older_than(Duration::ZERO, BatchSize::new(3)?)?;
    for (count, left) in [(3, 4), (3, 1), (1, 0), (0, 0)] {
        ensure_eq!(U2, "the number told", stage.store.prune(&three).await?, count);
        ensure_eq!(U2, "finished jobs left", kept(&stage).await?.len(), left);
    }
    Ok(())
}

async fn each_queue_keeps_what_its_policy_says(stage: Stage) -> Outcome {
    let names = ["exact", "exactly", "game:1", "game:2", "free"];
    let mut finished = Vec::new();
    for name in names {
        finished.push(dead_letter(&stage, new_job(name), "no").await?);
    }
    for (pattern, hours) in [("exact", 2), ("game:*", 4), ("game:1", 6)] {
        let retention = Some(Delay::new(hours * HOUR)?);
        stage.set_policy(pattern, QueuePolicy { retention, ..QueuePolicy::default() }).await?;
    }
    // After 1, 3, 5 and 7 hours.
    for wanted in [vec![0, 1, 2, 3, 4], vec![1, 2, 3, 4], vec![1, 2, 4], vec![1, 4]] {
        let wanted: Vec<_> = wanted.into_iter().map(|index: usize| finished[index]).collect();
        stage.age(HOUR).await?;
        stage.store.prune(&Prune::by_retention(BatchSize::MAX)).await?;
        ensure_eq!(U3, "kept by their queues' retention", kept(&stage).await?, wanted);
        stage.age(HOUR).await?;
    }
    Ok(())
}

async fn without_a_retention_nothing_is_forgotten(stage: Stage) -> Outcome {
    nine(&stage).await?;
    stage.age(999 * HOUR).await?;
    let before = stage.dump().await?;
    let count = stage.store.prune(&Prune::by_retention(BatchSize::MAX)).await?;
    ensure_eq!(U3, "forgotten of queues without a retention", count, 0);
    holds(U3, &stage, &before, "a queue without a retention keeps everything").await?;
    let old = Prune { age: PruneAge::OlderThan(Delay::new(999 * HOUR)?), ..older_than(HOUR)? };
    ensure_eq!(U1, "forgotten by age", stage.store.prune(&old).await?, 9);
    Ok(())
}

async fn jobs_named_by_id_must_be_old_enough_too(stage: Stage) -> Outcome {
    let mut dead = Vec::new();
    for _ in 0..4 {
        dead.push(dead_letter(&stage, new_job("q"), "no").await?);
    }
    stage.age(2 * HOUR).await?;
    let young = dead_letter(&stage, new_job("q"), "no").await?;
    let named = Prune { ids: Some(vec![young, dead[0]]), ..older_than(HOUR)? };
    ensure_eq!(U1, "forgotten of one old and one young job", stage.store.prune(&named).await?, 1);
    ensure_eq!(U1, "kept", kept(&stage).await?, [&dead[1..], &[young]].concat());
    let two = Prune { ids: Some(dead.clone()), limit: BatchSize::new(2)?, ..older_than(HOUR)? };
    ensure_eq!(U2, "forgotten of three with a limit of two", stage.store.prune(&two).await?, 2);
    ensure_eq!(U2, "kept", kept(&stage).await?.len(), 2);
    let rows = stage.store.stats(&queues("q")?).await?;
    ensure_eq!(U1, "dead letters counted", rows.first().map(|row| row.dead_letters), Some(2));
    Ok(())
}

async fn retention_goes_with_every_other_condition(stage: Stage) -> Outcome {
    let retention = Some(Delay::new(HOUR)?);
    stage.set_policy("*", QueuePolicy { retention, ..QueuePolicy::default() }).await?;
    let any = || Prune::by_retention(BatchSize::MAX);
    let all = nine(&stage).await?;
    ensure_eq!(U3, "forgotten before their time", stage.store.prune(&any()).await?, 0);
    let last = all.iter().max().copied().unwrap_or(all[0]);
    let wait = leasehold_core::time::later(stage.finished(last).await?.finished_at, HOUR);
    stage.age(leasehold_core::time::between(stage.now().await?, wait)).await?;
    let dead = vec![FinalStatus::DeadLetter];
    let requests = [
        (Prune { statuses: Some(dead.clone()), ..any() }, vec![1, 4, 7]),
        (Prune { queues: queues("a")?, ..any() }, vec![0, 2]),
        (Prune { ids: Some(vec![all[8], all[1]]), ..any() }, vec![8]),
        (Prune { statuses: Some(dead), queues: queues("A")?, ..any() }, vec![]),
        (Prune { limit: BatchSize::new(2)?, queues: queues("ab")?, ..any() }, vec![3, 5]),
    ];
    let mut left = all.clone();
    for (request, wanted) in requests {
        let gone: Vec<_> = wanted.into_iter().map(|index: usize| all[index]).collect();
        left.retain(|id| !gone.contains(id));
        let count = stage.store.prune(&request).await?;
        ensure_eq!(U1, format!("kept after {request:?}"), kept(&stage).await?, left);
        ensure_eq!(U2, "the number told", count, gone.len() as u64);
    }
    nine(&stage).await?;
    stage.age(HOUR).await?;
    let three = Prune::by_retention(BatchSize::new(3)?);
    for count in [3, 3, 3, 1, 0] {
        ensure_eq!(U2, "forgotten with a limit of three", stage.store.prune(&three).await?, count);
    }
    Ok(())
}
