//! Reclaiming what dead workers left.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_core::{
    BatchSize, Dequeue, FinalStatus, HeartbeatOutcome, Job, JobState, ReclaimFate, Reclaimed, Schedule,
    Verdict, backend,
};

use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, ids, lease_for, new_job};

checks! { "reclaim":
    nothing_before_its_time [R1];
    only_passed_leases [R1];
    a_job_with_attempts_left_is_ready_again [R2, R8];
    a_reclaimed_job_goes_behind_those_that_waited [R2];
    a_job_on_its_last_attempt_is_a_dead_letter [R3];
    a_crashing_job_dies_after_its_attempts [R3];
    an_exhausted_job_is_a_dead_letter [R4];
    at_most_as_many_as_asked_for [R5];
    repeated_calls_get_through [R5];
    the_old_receipt_is_stale [R7];
    the_answer_names_every_job [R9];
    an_empty_store_has_nothing_to_reclaim [R9];
    a_dead_letter_of_a_reclaim_has_everything_that_the_job_had [S12, R3];
}

async fn nothing_before_its_time(stage: Stage) -> Outcome {
    stage.leased(new_job("q").max_attempts(1)).await?;
    let before = stage.dump().await?;
    let reclaimed = stage.reclaim().await?;
    ensure!(R1, reclaimed.is_empty(), "a live lease was reclaimed: {reclaimed:?}");
    let difference = stage.dump().await?.difference(&before);
    ensure!(R1, difference.is_none(), "reclaim changed a running job: {difference:?}");
    stage.age(HOUR - Duration::from_secs(120)).await?;
    let reclaimed = stage.reclaim().await?;
    ensure!(R1, reclaimed.is_empty(), "a lease was reclaimed two minutes before its end: {reclaimed:?}");
    Ok(())
}

async fn only_passed_leases(stage: Stage) -> Outcome {
    stage.enqueue(new_job("q").delay(3 * HOUR)).await?;
    let retrying = stage.leased(new_job("q")).await?;
    stage.settle(retrying.receipt(), Verdict::retry_after("later", 3 * HOUR)?).await?;
    let short = stage.leased(new_job("q")).await?;
    let long = stage.leased(new_job("q")).await?;
    stage.store.heartbeat(&[long.receipt()], lease_for(5 * HOUR)?).await?;
    stage.enqueue(new_job("q")).await?;
    stage.age(2 * HOUR).await?;
    let before = stage.dump().await?;
    let reclaimed: Vec<_> = stage.reclaim().await?.iter().map(|reclaimed| reclaimed.id).collect();
    ensure_eq!(R1, "reclaimed", reclaimed, [short.id]);
    let after = stage.dump().await?;
    for (old, new) in before.jobs.iter().zip(&after.jobs).filter(|(old, _)| old.id != short.id) {
        ensure!(R1, old == new, "reclaim changed {old:?} to {new:?}");
    }
    Ok(())
}

async fn a_job_with_attempts_left_is_ready_again(stage: Stage) -> Outcome {
    let job =
        stage.leased(new_job("q").max_attempts(2).payload("p").header("h", "v").unique_key("k")).await?;
    stage.age(2 * HOUR).await?;
    let old = stage.live(job.id).await?;
    let before = stage.now().await?;
    stage.reclaim().await?;
    let after = stage.now().await?;
    let new = stage.live(job.id).await?;
    ensure_eq!(R2, "state", new.state(after), JobState::Ready);
    let at = new.available_at;
    ensure!(R2, (before..=after).contains(&at), "available at {at}, expected now ({before} to {after})");
    ensure_eq!(R8, "last_error", new.last_error, Some(backend::lease_expired()));
    let expected = Job {
        lease: None,
        epoch: old.epoch.next(),
        available_at: new.available_at,
        last_error: new.last_error.clone(),
        updated_at: new.updated_at,
        ..old.clone()
    };
    ensure!(R8, new == expected, "reclaiming {old:?} made {new:?}");
    ensure_eq!(R2, "leased again", stage.claim_one("q").await?.attempts, 2);
    Ok(())
}

async fn a_reclaimed_job_goes_behind_those_that_waited(stage: Stage) -> Outcome {
    let dead = stage.leased(new_job("q")).await?;
    stage.age(HOUR / 2).await?;
    let waiting = stage.enqueue(new_job("q")).await?;
    stage.age(HOUR).await?;
    stage.reclaim().await?;
    ensure_eq!(R2, "order after the reclaim", ids(&stage.claim("q", 2).await?), [waiting, dead.id]);
    Ok(())
}

async fn a_job_on_its_last_attempt_is_a_dead_letter(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q").max_attempts(1)).await?;
    stage.age(2 * HOUR).await?;
    let reclaimed = stage.reclaim().await?;
    let fates: Vec<_> = reclaimed.iter().map(|reclaimed| reclaimed.fate).collect();
    ensure_eq!(R3, "fate", fates, [ReclaimFate::DeadLettered]);
    ensure_eq!(R9, "answer", reclaimed, [Reclaimed::new(&job, ReclaimFate::DeadLettered)]);
    let dead = stage.finished(job.id).await?;
    ensure_eq!(R3, "status", dead.outcome.status(), FinalStatus::DeadLetter);
    ensure_eq!(R3, "error", *dead.outcome.document(), backend::lease_expired());
    ensure_eq!(R3, "last_error", dead.last_error, Some(backend::lease_expired()));
    ensure_eq!(R3, "attempts", dead.attempts, 1);
    ensure_eq!(R8, "epoch", dead.epoch, job.epoch.next());
    ensure_eq!(R3, "processed_by", dead.processed_by, job.lease.map(|lease| lease.worker));
    let again = stage.reclaim().await?;
    ensure!(R3, again.is_empty(), "a dead letter was reclaimed again: {again:?}");
    Ok(())
}

async fn a_crashing_job_dies_after_its_attempts(stage: Stage) -> Outcome {
    let id = stage.enqueue(new_job("q").max_attempts(3)).await?;
    for attempt in 1..=3 {
        ensure_eq!(R3, "attempt", stage.claim_one("q").await?.attempts, attempt);
        stage.age(2 * HOUR).await?;
        let requeued =
            matches!(stage.reclaim().await?[..], [Reclaimed { fate: ReclaimFate::Requeued { .. }, .. }]);
        ensure!(
            R3,
            requeued == (attempt < 3),
            "attempt {attempt} of 3 was reclaimed, requeued is {requeued}"
        );
    }
    ensure_eq!(R3, "attempts of the dead letter", stage.finished(id).await?.attempts, 3);
    ensure_eq!(R3, "history rows", stage.dump().await?.history.len(), 1);
    Ok(())
}

async fn an_exhausted_job_is_a_dead_letter(stage: Stage) -> Outcome {
    let plain = stage.leased(new_job("q").max_attempts(1)).await?;
    stage.store.retry_later(plain.id, Schedule::Now).await?;
    let failed = stage.leased(new_job("q").max_attempts(2)).await?;
    stage.settle(failed.receipt(), Verdict::retry_after("first", Duration::ZERO)?).await?;
    stage.claim_one("q").await?;
    stage.store.retry_later(failed.id, Schedule::after(HOUR)?).await?;
    let states = [stage.live(plain.id).await?, stage.live(failed.id).await?];
    let now = stage.now().await?;
    ensure!(
        R4,
        states.iter().all(|job| job.state(now) == JobState::Exhausted),
        "the jobs should be Exhausted: {states:?}"
    );

    let mut reclaimed = stage.reclaim().await?;
    reclaimed.sort_unstable_by_key(|reclaimed| reclaimed.id);
    let fate = ReclaimFate::DeadLettered;
    let answer: Vec<_> = reclaimed.iter().map(|job| (job.id, job.fate, job.worker.as_ref())).collect();
    ensure_eq!(R4, "answer", answer, [(plain.id, fate, None), (failed.id, fate, None)]);
    let errors = [
        stage.finished(plain.id).await?.outcome.document().clone(),
        stage.finished(failed.id).await?.outcome.document().clone(),
    ];
    let expected = [backend::attempts_exhausted(), leasehold_core::Json::error("first")];
    ensure_eq!(R4, "errors", errors, expected);
    Ok(())
}

async fn at_most_as_many_as_asked_for(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 10).await?;
    stage.claim("q", 10).await?;
    stage.age(2 * HOUR).await?;
    for (limit, left) in [(1, 9), (4, 5), (5, 0)] {
        let reclaimed = stage.store.reclaim(BatchSize::new(limit)?).await?;
        ensure!(
            R5,
            reclaimed.len() == limit as usize,
            "asked for {limit} of {} passed leases, got {reclaimed:?}",
            left + limit
        );
        let now = stage.now().await?;
        let expired =
            stage.dump().await?.jobs.iter().filter(|job| job.state(now) == JobState::Expired).count();
        ensure_eq!(R5, "passed leases left", expired, left as usize);
    }
    Ok(())
}

async fn repeated_calls_get_through(stage: Stage) -> Outcome {
    for number in 0..40 {
        let job = new_job(["a", "b", "c"][number % 3])
            .max_attempts(1 + (number as u32) % 3)
            .priority(number as i32 % 5);
        stage.enqueue(job).await?;
    }
    // Leases of different lengths, so that live ones stand between those that have passed.
    for (number, length) in [(13, HOUR), (14, 9 * HOUR), (13, 2 * HOUR)] {
        let request = Dequeue::new("*", "suite")?.limit(number)?.lease_for(length)?;
        ensure_eq!(R5, "leased", stage.store.dequeue(&request).await?.len(), number as usize);
    }
    stage.age(3 * HOUR).await?;
    let mut seen = BTreeSet::new();
    for _ in 0..60 {
        for reclaimed in stage.store.reclaim(BatchSize::new(3)?).await? {
            ensure!(R5, seen.insert(reclaimed.id), "job {} was reclaimed twice", reclaimed.id);
        }
    }
    ensure_eq!(R5, "reclaimed by calls of three", seen.len(), 26);
    let now = stage.now().await?;
    let running = stage.dump().await?.jobs.iter().filter(|job| job.state(now) == JobState::Running).count();
    ensure_eq!(R5, "still running", running, 14);
    Ok(())
}

async fn the_old_receipt_is_stale(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    stage.age(2 * HOUR).await?;
    stage.reclaim().await?;
    for state in ["reclaimed", "leased to another"] {
        let before = stage.dump().await?;
        let outcome = stage.try_settle(job.receipt(), Verdict::done()).await?;
        ensure!(R7, outcome.is_lost(), "the job is {state}, its old receipt was answered {outcome:?}");
        let beat = stage.store.heartbeat(&[job.receipt()], lease_for(HOUR)?).await?;
        ensure!(
            R7,
            beat == [HeartbeatOutcome::Lost],
            "the job is {state}, its old receipt was answered {beat:?}"
        );
        let difference = stage.dump().await?.difference(&before);
        ensure!(
            R7,
            difference.is_none(),
            "the old receipt of a {state} job changed something: {difference:?}"
        );
        if state == "reclaimed" {
            stage.claim_one("q").await?;
        }
    }
    Ok(())
}

async fn the_answer_names_every_job(stage: Stage) -> Outcome {
    let back = stage.leased(new_job("q").max_attempts(2)).await?;
    let dead = stage.leased(new_job("q").max_attempts(1)).await?;
    stage.age(2 * HOUR).await?;
    let mut reclaimed = stage.reclaim().await?;
    reclaimed.sort_unstable_by_key(|reclaimed| reclaimed.id);
    let available_at = stage.live(back.id).await?.available_at;
    let expected = [
        Reclaimed::new(&back, ReclaimFate::Requeued { available_at }),
        Reclaimed::new(&dead, ReclaimFate::DeadLettered),
    ];
    ensure_eq!(R9, "answer", reclaimed, expected);
    Ok(())
}

async fn an_empty_store_has_nothing_to_reclaim(stage: Stage) -> Outcome {
    let reclaimed = stage.reclaim().await?;
    ensure!(R9, reclaimed.is_empty(), "an empty store gave {reclaimed:?}");
    Ok(())
}

async fn a_dead_letter_of_a_reclaim_has_everything_that_the_job_had(stage: Stage) -> Outcome {
    for exhausted in [false, true] {
        let stage = stage.fresh().await?;
        let new = new_job("q").payload("p").header("h", "v").unique_key("k").priority(-3).max_attempts(2);
        let first = stage.leased(new).await?;
        stage.age(HOUR / 2).await?;
        stage.settle(first.receipt(), Verdict::retry_after("first", Duration::ZERO)?).await?;
        let id = stage.claim_one("q").await?.id;
        // Ageing may shift every stored time, so the job is read after it.
        stage.age(2 * HOUR).await?;
        let mut job = stage.live(id).await?;
        let mut error = backend::lease_expired();
        if exhausted {
            stage.store.retry_later(id, Schedule::Now).await?;
            job = stage.live(id).await?;
            error = leasehold_core::Json::error("first");
        } else {
            job.epoch = job.epoch.next();
        }
        stage.reclaim().await?;
        let seen = stage.finished(job.id).await?;
        let expected =
            backend::finished(job, leasehold_core::Outcome::DeadLetter { error }, seen.finished_at);
        ensure_eq!(S12, format!("the row of a job reclaimed, exhausted: {exhausted}"), seen, expected);
    }
    Ok(())
}
