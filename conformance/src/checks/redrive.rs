//! Putting dead letters back.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_core::contract::{X1, X2, X3, X4};
use leasehold_core::{
    BatchSize, Epoch, HeartbeatOutcome, Job, JobId, Json, Kind, NewJob, Queues, Receipt, Redrive, Redriven,
    Verdict, backend,
};

use super::scene::{dead_letter, holds, queues, within};
use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job};

checks! { "redrive":
    only_dead_letters_are_redriven [X1];
    only_what_is_asked_for_is_redriven [X1];
    the_oldest_come_first_up_to_the_limit [X1];
    a_redriven_job_is_as_it_was_enqueued [X2, X5];
    a_redriven_job_has_all_its_attempts [X2];
    old_receipts_stay_stale [X3];
    a_job_can_be_redriven_again_and_again [X3, X5];
    a_taken_key_is_passed_over [X4];
    of_two_dead_letters_with_one_key_the_older_goes [X4];
    the_first_conflicts_are_named [X4];
    conflicts_take_no_place_of_the_limit [X4];
}

async fn only_dead_letters_are_redriven(stage: Stage) -> Outcome {
    for verdict in [Verdict::done(), Verdict::discard("no")] {
        let job = stage.leased(new_job("q")).await?;
        stage.settle(job.receipt(), verdict).await?;
    }
    let live = [stage.enqueue(new_job("q").delay(HOUR)).await?, stage.leased(new_job("q")).await?.id];
    let before = stage.dump().await?;
    expect_redriven(&stage, &Redrive::all(BatchSize::MAX), &[]).await?;
    let mut named = Redrive::all(BatchSize::MAX);
    let unknown = [0, -1, i64::MAX].map(JobId::new);
    named.ids = Some(before.history.iter().map(|job| job.id).chain(live).chain(unknown).collect());
    expect_redriven(&stage, &named, &[]).await?;
    holds(X1, &stage, &before, "redrive touched what is no dead letter").await?;

    let dead = dead_letter(&stage, new_job("q"), "no").await?;
    let failed = stage.leased(new_job("q").max_attempts(1)).await?;
    stage.settle(failed.receipt(), Verdict::retry("last")).await?;
    let expired = stage.leased(new_job("q").max_attempts(1)).await?;
    stage.age(2 * HOUR).await?;
    stage.reclaim().await?;
    expect_redriven(&stage, &Redrive::all(BatchSize::MAX), &[dead, failed.id, expired.id]).await?;
    ensure_eq!(X1, "finished jobs left", stage.dump().await?.history.len(), 2);
    Ok(())
}

async fn only_what_is_asked_for_is_redriven(stage: Stage) -> Outcome {
    let mut dead = Vec::new();
    for (queue, kind) in [("a", "x"), ("a", "y"), ("ab", "x"), ("A", "x"), ("b", "y"), ("a_", "X")] {
        dead.push(dead_letter(&stage, NewJob::builder(queue, kind), "no").await?);
    }
    let all = || Redrive::all(BatchSize::MAX);
    let kind = |kind| Kind::new(kind).map(Some);
    let requests = [
        (Redrive { queues: queues("a")?, ..all() }, vec![0, 1]),
        (Redrive { queues: queues("a*")?, ..all() }, vec![0, 1, 2, 5]),
        (Redrive { queues: queues("a_*")?, ..all() }, vec![5]),
        (Redrive { queues: Queues::named(["b", "ab", "none"])?, ..all() }, vec![2, 4]),
        (Redrive { kind: kind("x")?, ..all() }, vec![0, 2, 3]),
        (Redrive { ids: Some(vec![dead[4], dead[1], dead[1]]), ..all() }, vec![1, 4]),
        (
            Redrive { queues: queues("a*")?, kind: kind("x")?, ids: Some(vec![dead[2], dead[3]]), ..all() },
            vec![2],
        ),
        (Redrive { queues: queues("none")?, ..all() }, vec![]),
        (Redrive { ids: Some(Vec::new()), ..all() }, vec![]),
    ];
    for (request, wanted) in requests {
        let wanted: Vec<_> = wanted.into_iter().map(|index: usize| dead[index]).collect();
        expect_redriven(&stage, &request, &wanted).await?;
        let live: Vec<_> = stage.dump().await?.jobs.iter().map(|job| job.id).collect();
        ensure_eq!(X1, format!("live after {request:?}"), live, wanted);
        for job in stage.claim("*", 10).await? {
            stage.settle(job.receipt(), Verdict::dead("no")).await?;
        }
    }
    Ok(())
}

async fn expect_redriven(stage: &Stage, request: &Redrive, wanted: &[JobId]) -> Outcome {
    let answer = stage.store.redrive(request).await?;
    let expected = Redriven { jobs: wanted.to_vec(), conflicts: Vec::new() };
    ensure_eq!(X1, format!("answer to {request:?}"), answer, expected);
    Ok(())
}

async fn the_oldest_come_first_up_to_the_limit(stage: Stage) -> Outcome {
    let ids = stage.enqueue_many("q", 7).await?;
    let mut jobs = stage.claim("q", 10).await?;
    jobs.reverse();
    for job in jobs {
        stage.settle(job.receipt(), Verdict::dead("no")).await?;
    }
    let two = BatchSize::new(2)?;
    for page in [&ids[..2], &ids[2..4]] {
        expect_redriven(&stage, &Redrive::all(two), page).await?;
    }
    let picked = Redrive { ids: Some(vec![ids[6], ids[5], ids[4]]), ..Redrive::all(two) };
    expect_redriven(&stage, &picked, &ids[4..6]).await?;
    expect_redriven(&stage, &Redrive::all(two), &ids[6..]).await?;
    expect_redriven(&stage, &Redrive::all(two), &[]).await
}

async fn a_redriven_job_is_as_it_was_enqueued(stage: Stage) -> Outcome {
    let new = NewJob::builder("q", "special")
        .payload(&serde_json::json!({ "n": [1, "två"] }))
        .priority(-7)
        .unique_key("k")
        .max_attempts(3)
        .header("trace", "1");
    let first = stage.leased(new).await?;
    stage.settle(first.receipt(), Verdict::retry_after("early", Duration::ZERO)?).await?;
    let last = stage.claim_one("q").await?;
    stage.settle(last.receipt(), Verdict::dead("late")).await?;
    stage.age(HOUR).await?;
    let dead = stage.finished(first.id).await?;
    let from = stage.now().await?;
    expect_redriven(&stage, &Redrive::all(BatchSize::MAX), &[first.id]).await?;
    let to = stage.now().await?;
    let seen = stage.live(first.id).await?;
    within(X2, "available_at", seen.available_at, (from, to))?;
    ensure_eq!(X2, "updated_at", seen.updated_at, seen.available_at);
    ensure_eq!(X5, "last_error", seen.last_error, Some(Json::error("late")));
    ensure_eq!(X3, "epoch", seen.epoch, last.epoch);
    ensure_eq!(X2, "created_at", seen.created_at, dead.created_at);
    ensure_eq!(X2, "first_leased_at", seen.first_leased_at, dead.started_at);
    let as_enqueued = Job {
        available_at: seen.available_at,
        updated_at: seen.updated_at,
        created_at: dead.created_at,
        first_leased_at: dead.started_at,
        attempts: 0,
        lease: None,
        epoch: last.epoch,
        last_error: Some(Json::error("late")),
        redrives: 1,
        ..first
    };
    ensure_eq!(X5, "redrives", seen.redrives, 1);
    ensure_eq!(X2, "the redriven job", seen, as_enqueued);
    ensure_eq!(X5, "rows left in the history", stage.dump().await?.history, []);
    Ok(())
}

async fn a_redriven_job_has_all_its_attempts(stage: Stage) -> Outcome {
    let id = stage.enqueue(new_job("q").max_attempts(2)).await?;
    for round in 0..3 {
        for attempt in 1..=2 {
            let job = stage.claim_one("q").await?;
            let seen = (job.id, job.attempts);
            ensure_eq!(X2, format!("job and attempts after {round} redrives"), seen, (id, attempt));
            stage.settle(job.receipt(), Verdict::retry_after("no", Duration::ZERO)?).await?;
        }
        ensure_eq!(X2, "attempts of the dead letter", stage.finished(id).await?.attempts, 2);
        expect_redriven(&stage, &Redrive::all(BatchSize::ONE), &[id]).await?;
    }
    Ok(())
}

async fn old_receipts_stay_stale(stage: Stage) -> Outcome {
    let first = stage.leased(new_job("q")).await?;
    stage.settle(first.receipt(), Verdict::retry_after("no", Duration::ZERO)?).await?;
    let second = stage.claim_one("q").await?;
    stage.settle(second.receipt(), Verdict::dead("no")).await?;
    stage.store.redrive(&Redrive::all(BatchSize::ONE)).await?;
    expect_fenced(&stage, second.receipt(), "redriven and waiting").await?;
    let third = stage.claim_one("q").await?;
    ensure!(X3, third.epoch > second.epoch, "epoch {} was given after {}", third.epoch, second.epoch);
    expect_fenced(&stage, second.receipt(), "leased after a redrive").await?;
    stage.settle(third.receipt(), Verdict::dead("no")).await?;
    stage.store.redrive(&Redrive::all(BatchSize::ONE)).await?;
    stage.claim_one("q").await?;
    expect_fenced(&stage, third.receipt(), "leased after a second redrive").await
}

/// Shows receipts of epochs up to the last stale one, with every verdict.
async fn expect_fenced(stage: &Stage, last: Receipt, state: &str) -> Outcome {
    let before = stage.dump().await?;
    let verdicts = [Verdict::done(), Verdict::retry("x"), Verdict::release(), Verdict::dead("x")];
    let epochs: BTreeSet<i64> = (0..5).flat_map(|back| [back, last.epoch.get() - back]).collect();
    for epoch in epochs.into_iter().filter(|epoch| (0..=last.epoch.get()).contains(epoch)) {
        let stale = Receipt { epoch: Epoch::new(epoch), ..last };
        for verdict in verdicts.clone() {
            let outcome = stage.try_settle(stale, verdict.clone()).await?;
            ensure!(X3, outcome.is_lost(), "{verdict:?} with {stale}, {state}: {outcome:?}");
        }
        let beat = stage.store.heartbeat(&[stale], lease_for(2 * HOUR)?).await?;
        ensure_eq!(X3, format!("heartbeat with {stale}, {state}"), beat, [HeartbeatOutcome::Lost]);
    }
    holds(X3, stage, &before, &format!("an old receipt changed a job that is {state}")).await
}

async fn a_job_can_be_redriven_again_and_again(stage: Stage) -> Outcome {
    let id = dead_letter(&stage, new_job("q").unique_key("k"), "error 0").await?;
    let mut epoch = stage.finished(id).await?.epoch;
    for round in 1..=3 {
        expect_redriven(&stage, &Redrive::all(BatchSize::MAX), &[id]).await?;
        let waiting = stage.live(id).await?;
        let previous = Json::error(format!("error {}", round - 1));
        ensure_eq!(X5, format!("last_error in round {round}"), waiting.last_error, Some(previous));
        let job = stage.claim_one("q").await?;
        ensure!(X3, job.epoch > epoch, "round {round}: epoch {} was given after {epoch}", job.epoch);
        epoch = job.epoch;
        stage.settle(job.receipt(), Verdict::dead(format!("error {round}"))).await?;
        let history = stage.dump().await?.history;
        ensure!(X5, history.len() == 1 && history[0].id == id, "round {round}: the history is {history:?}");
        ensure_eq!(X5, "redrives", history[0].redrives, round);
    }
    Ok(())
}

async fn a_taken_key_is_passed_over(stage: Stage) -> Outcome {
    let blocked = dead_letter(&stage, new_job("q").unique_key("k"), "no").await?;
    let free = dead_letter(&stage, new_job("q").unique_key("free"), "no").await?;
    let elsewhere = dead_letter(&stage, new_job("other").unique_key("k"), "no").await?;
    let holder = stage.leased(new_job("q").unique_key("k")).await?;
    let before = stage.dump().await?;
    let answer = stage.store.redrive(&Redrive::all(BatchSize::MAX)).await?;
    let expected = Redriven { jobs: vec![free, elsewhere], conflicts: vec![blocked] };
    ensure_eq!(X4, "answer", answer, expected);
    let row = before.history.iter().find(|row| row.id == blocked).cloned();
    ensure_eq!(X4, "the dead letter passed over", Some(stage.finished(blocked).await?), row);
    ensure_eq!(X4, "the job with the key", stage.live(holder.id).await?, holder.clone());

    stage.settle(holder.receipt(), Verdict::done()).await?;
    expect_redriven(&stage, &Redrive::all(BatchSize::MAX), &[blocked]).await?;
    let answers = stage.store.enqueue(&[new_job("q").unique_key("k").build()?]).await?;
    let taken = answers[0].deduplicated && answers[0].id == blocked;
    ensure!(X4, taken, "the key of the redriven job {blocked} was enqueued again: {answers:?}");
    Ok(())
}

async fn of_two_dead_letters_with_one_key_the_older_goes(stage: Stage) -> Outcome {
    let mut dead = Vec::new();
    for key in ["k", "k", "other", "k"] {
        dead.push(dead_letter(&stage, new_job("q").unique_key(key), "no").await?);
    }
    let before = stage.dump().await?;
    let mut answer = stage.store.redrive(&Redrive::all(BatchSize::MAX)).await?;
    answer.conflicts.sort_unstable();
    let expected = Redriven { jobs: vec![dead[0], dead[2]], conflicts: vec![dead[1], dead[3]] };
    ensure_eq!(X4, "answer", answer, expected);
    let mut left = before;
    for id in [dead[0], dead[2]] {
        let row = left.history.iter().position(|row| row.id == id).map(|index| left.history.remove(index));
        let now = stage.live(id).await?.updated_at;
        left.jobs.extend(row.map(|row| backend::redriven(row, now)));
    }
    holds(X4, &stage, &left, "two of four were redriven").await
}

async fn the_first_conflicts_are_named(stage: Stage) -> Outcome {
    let mut dead = Vec::new();
    for number in 0..5 {
        dead.push(dead_letter(&stage, new_job("q").unique_key(format!("k{number}")), "no").await?);
    }
    for number in 0..5 {
        stage.enqueue(new_job("q").unique_key(format!("k{number}"))).await?;
    }
    for limit in [1, 3, 5] {
        let answer = stage.store.redrive(&Redrive::all(BatchSize::new(limit)?)).await?;
        let expected = Redriven { jobs: Vec::new(), conflicts: dead[..limit as usize].to_vec() };
        ensure_eq!(X4, format!("answer with a limit of {limit}"), answer, expected);
    }
    Ok(())
}

async fn conflicts_take_no_place_of_the_limit(stage: Stage) -> Outcome {
    let mut blocked = Vec::new();
    for key in ["a", "b", "c"] {
        blocked.push(dead_letter(&stage, new_job("q").unique_key(key), "no").await?);
    }
    let mut free = Vec::new();
    for _ in 0..3 {
        free.push(dead_letter(&stage, new_job("q"), "no").await?);
    }
    for key in ["a", "b", "c"] {
        stage.enqueue(new_job("q").unique_key(key)).await?;
    }
    let answer = stage.store.redrive(&Redrive::all(BatchSize::new(2)?)).await?;
    ensure_eq!(X4, "redriven of three conflicts and three others", answer.jobs, free[..2]);
    let named: BTreeSet<_> = answer.conflicts.iter().filter(|id| blocked.contains(id)).collect();
    let as_many = named.len() == 2 && answer.conflicts.len() == 2;
    ensure!(X4, as_many, "of the conflicts {blocked:?} the limit allows two; named were {answer:?}");
    let mut rest = stage.store.redrive(&Redrive::all(BatchSize::MAX)).await?;
    rest.conflicts.sort_unstable();
    ensure_eq!(X4, "the rest", rest, Redriven { jobs: free[2..].to_vec(), conflicts: blocked });
    Ok(())
}
