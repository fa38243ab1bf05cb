//! The administrator's verbs, and giving jobs back.

use std::time::Duration;

use leasehold_core::contract::{A1, A2, A3, A4, A5, D13, L1};
use leasehold_core::{
    Fate, FinalStatus, HeartbeatOutcome, Job, JobId, JobState, Json, Outcome as Ending, Receipt, Result,
    Schedule, SettleOutcome, StoreError, Verdict, backend, time,
};

use super::scene::{every_state, holds, leased_again, with_job, within};
use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job};

checks! { "admin":
    retry_later_sends_a_job_back_from_every_state [A1, A4];
    a_job_sent_back_can_be_leased_anew [A4, A1];
    a_last_attempt_that_is_sent_back_is_exhausted [A1];
    discard_ends_a_job_in_every_state [A2, A4, C1];
    promote_makes_waiting_jobs_ready [A3];
    promote_leaves_every_other_job_alone [A3];
    unknown_and_finished_jobs_are_refused [A5];
    release_gives_the_attempt_back [L1];
    a_stale_release_changes_nothing [L1];
    releases_are_answered_in_order [L1];
    promote_leaves_an_exhausted_job_alone [A3];
}

async fn retry_later_sends_a_job_back_from_every_state(stage: Stage) -> Outcome {
    let scenes = every_state(&stage, ["later", "now", "past"]).await?;
    let past = Schedule::at(time::earlier(stage.now().await?, HOUR))?;
    let schedules = [Schedule::after(3 * HOUR)?, Schedule::Now, past];
    for (jobs, schedule) in scenes.iter().zip(schedules) {
        for (state, id) in jobs {
            send_back(&stage, *state, *id, schedule).await?;
        }
    }
    Ok(())
}

async fn send_back(stage: &Stage, state: JobState, id: JobId, schedule: Schedule) -> Outcome {
    let before = stage.dump().await?;
    let job = stage.live(id).await?;
    let from = stage.now().await?;
    stage.store.retry_later(id, schedule).await?;
    let to = stage.now().await?;
    let seen = stage.live(id).await?;
    let what = format!("the {state} job {id} after {schedule:?}");
    let bracket = (schedule.available_at(from), schedule.available_at(to));
    within(A1, &format!("available_at of {what}"), seen.available_at, bracket)?;
    within(A1, &format!("updated_at of {what}"), seen.updated_at, (from, to))?;
    let epoch = if job.lease.is_some() { job.epoch.next() } else { job.epoch };
    ensure_eq!(A4, format!("epoch of {what}"), seen.epoch, epoch);
    let expected = Job {
        lease: None,
        epoch,
        available_at: seen.available_at,
        updated_at: seen.updated_at,
        ..job.clone()
    };
    let expected = with_job(&before, expected);
    holds(A1, stage, &expected, &what).await?;
    expect_stale(stage, job.receipt(), &what).await?;
    expect_stale(stage, seen.receipt(), &what).await?;
    holds(A4, stage, &expected, &format!("a stale receipt changed {what}")).await
}

async fn expect_stale(stage: &Stage, receipt: Receipt, what: &str) -> Outcome {
    let outcome = stage.try_settle(receipt, Verdict::done()).await?;
    ensure!(A4, outcome.is_lost(), "settle with {receipt} was answered {outcome:?} for {what}");
    let outcomes = stage.store.heartbeat(&[receipt], lease_for(2 * HOUR)?).await?;
    ensure_eq!(A4, format!("heartbeat with {receipt} for {what}"), outcomes, [HeartbeatOutcome::Lost]);
    Ok(())
}

async fn a_job_sent_back_can_be_leased_anew(stage: Stage) -> Outcome {
    let first = stage.leased(new_job("q")).await?;
    stage.store.retry_later(first.id, Schedule::after(HOUR)?).await?;
    ensure_eq!(A1, "leased an hour too early", stage.claim("q", 10).await?.len(), 0);
    stage.age(HOUR).await?;
    let second = stage.claim_one("q").await?;
    ensure_eq!(A1, "attempts of the second lease", second.attempts, 2);
    ensure!(A4, second.epoch > first.epoch.next(), "epoch {} came after {}", second.epoch, first.epoch);
    let before = stage.dump().await?;
    expect_stale(&stage, first.receipt(), "the job that another one holds").await?;
    let between = Receipt { epoch: first.epoch.next(), ..first.receipt() };
    expect_stale(&stage, between, "the job that another one holds").await?;
    holds(A4, &stage, &before, "an old receipt changed something").await?;
    stage.settle(second.receipt(), Verdict::done()).await
}

async fn a_last_attempt_that_is_sent_back_is_exhausted(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q").max_attempts(1)).await?;
    stage.store.retry_later(job.id, Schedule::Now).await?;
    let seen = stage.live(job.id).await?;
    ensure_eq!(A1, "attempts", seen.attempts, 1);
    ensure_eq!(A1, "state", seen.state(stage.now().await?), JobState::Exhausted);
    ensure_eq!(A1, "leases of an exhausted job", stage.claim("q", 10).await?.len(), 0);
    stage.reclaim().await?;
    let dead = stage.finished(job.id).await?;
    let error = backend::attempts_exhausted();
    ensure_eq!(A1, "outcome after a reclaim", dead.outcome, Ending::DeadLetter { error });
    Ok(())
}

async fn discard_ends_a_job_in_every_state(stage: Stage) -> Outcome {
    let [jobs] = every_state(&stage, ["q"]).await?;
    for (state, id) in jobs {
        let mut expected = stage.dump().await?;
        let job = stage.live(id).await?;
        let from = stage.now().await?;
        let reason = Json::new(&format!("{state} and not wanted"))?;
        stage.store.discard(id, reason.clone()).await?;
        let to = stage.now().await?;
        let seen = stage.finished(id).await?;
        within(A2, &format!("finished_at of the {state} job"), seen.finished_at, (from, to))?;
        let epoch = if job.lease.is_some() { job.epoch.next() } else { job.epoch };
        ensure_eq!(A4, format!("epoch of the {state} job in the history"), seen.epoch, epoch);
        let holder = job.lease.as_ref().map(|lease| lease.worker.clone());
        ensure_eq!(A2, format!("processed_by of the {state} job"), seen.processed_by, holder);
        let row = Job { epoch, ..job.clone() };
        let row = backend::finished(row, Ending::Discarded { reason }, seen.finished_at);
        expected.jobs.retain(|other| other.id != id);
        expected.history.push(row);
        expected.history.sort_by_key(|row| row.id);
        holds(A2, &stage, &expected, &format!("the {state} job was discarded")).await?;
        expect_stale(&stage, job.receipt(), &format!("the discarded {state} job")).await?;
        holds(A4, &stage, &expected, "the holder of a discarded job changed something").await?;
    }
    Ok(())
}

async fn promote_makes_waiting_jobs_ready(stage: Stage) -> Outcome {
    let [jobs] = every_state(&stage, ["q"]).await?;
    for state in [JobState::Scheduled, JobState::Retrying] {
        let before = stage.dump().await?;
        let job = stage.live(jobs[&state]).await?;
        let from = stage.now().await?;
        stage.store.promote(job.id).await?;
        let to = stage.now().await?;
        let seen = stage.live(job.id).await?;
        within(A3, &format!("available_at of the {state} job"), seen.available_at, (from, to))?;
        within(A3, &format!("updated_at of the {state} job"), seen.updated_at, (from, to))?;
        let expected = Job { available_at: seen.available_at, updated_at: seen.updated_at, ..job };
        holds(A3, &stage, &with_job(&before, expected), &format!("the {state} job was promoted")).await?;
    }
    let mut leased: Vec<_> = stage.claim("q", 10).await?.iter().map(|job| job.id).collect();
    leased.sort_unstable();
    let mut ready = [JobState::Scheduled, JobState::Retrying, JobState::Ready].map(|state| jobs[&state]);
    ready.sort_unstable();
    ensure_eq!(A3, "leased after the promotion", leased, ready);
    Ok(())
}

async fn promote_leaves_every_other_job_alone(stage: Stage) -> Outcome {
    let [jobs] = every_state(&stage, ["q"]).await?;
    stage.age(Duration::from_secs(60)).await?;
    let before = stage.dump().await?;
    for state in [JobState::Running, JobState::Expired, JobState::Exhausted, JobState::Ready] {
        stage.store.promote(jobs[&state]).await?;
        holds(A3, &stage, &before, &format!("promoting the {state} job changed something")).await?;
    }
    Ok(())
}

async fn unknown_and_finished_jobs_are_refused(stage: Stage) -> Outcome {
    let mut finished = Vec::new();
    for verdict in [Verdict::done(), Verdict::dead("no"), Verdict::discard("no")] {
        let job = stage.leased(new_job("q")).await?;
        stage.settle(job.receipt(), verdict).await?;
        finished.push(job.id);
    }
    let last = stage.enqueue(new_job("q")).await?;
    let before = stage.dump().await?;
    for id in [0, -1, last.get() + 1, i64::MAX].map(JobId::new) {
        for (verb, answer) in every_verb(&stage, id).await? {
            let right = matches!(answer, Err(StoreError::NotFound(named)) if named == id);
            ensure!(A5, right, "{verb} of the unknown job {id} was answered {answer:?}");
        }
    }
    for id in finished {
        for (verb, answer) in every_verb(&stage, id).await? {
            let right = matches!(answer, Err(StoreError::Conflict { .. }));
            ensure!(A5, right, "{verb} of the finished job {id} was answered {answer:?}");
        }
    }
    holds(A5, &stage, &before, "a refused verb changed something").await
}

async fn every_verb(stage: &Stage, id: JobId) -> Outcome<[(&'static str, Result<()>); 4]> {
    let store = &stage.store;
    Ok([
        ("retry_later", store.retry_later(id, Schedule::Now).await),
        ("retry_later in an hour", store.retry_later(id, Schedule::after(HOUR)?).await),
        ("discard", store.discard(id, Json::null()).await),
        ("promote", store.promote(id).await),
    ])
}

async fn release_gives_the_attempt_back(stage: Stage) -> Outcome {
    let job = leased_again(&stage, "q").await?;
    let before = stage.dump().await?;
    let from = stage.now().await?;
    let outcomes = stage.store.release(&[job.receipt()]).await?;
    let to = stage.now().await?;
    let seen = stage.live(job.id).await?;
    within(L1, "available_at of a released job", seen.available_at, (from, to))?;
    within(L1, "updated_at of a released job", seen.updated_at, (from, to))?;
    let fate = Fate::Snoozed { available_at: seen.available_at };
    ensure_eq!(L1, "outcome", outcomes, [backend::settled_outcome(job.receipt(), fate)]);
    let (available_at, updated_at) = (seen.available_at, seen.updated_at);
    let expected = Job { lease: None, attempts: job.attempts - 1, available_at, updated_at, ..job.clone() };
    holds(L1, &stage, &with_job(&before, expected), "a job was released").await?;
    let again = stage.claim_one("q").await?;
    ensure_eq!(L1, "the job leased after the release", (again.id, again.attempts), (job.id, job.attempts));

    let id = stage.enqueue(new_job("once").max_attempts(1)).await?;
    for round in 0..3 {
        let job = stage.claim_one("once").await?;
        ensure_eq!(L1, format!("job and attempts in round {round}"), (job.id, job.attempts), (id, 1));
        let outcomes = stage.store.release(&[job.receipt()]).await?;
        ensure!(L1, !outcomes.contains(&SettleOutcome::LeaseLost), "a good release: {outcomes:?}");
    }
    Ok(())
}

async fn a_stale_release_changes_nothing(stage: Stage) -> Outcome {
    let released = stage.leased(new_job("a")).await?;
    stage.store.release(&[released.receipt()]).await?;
    let done = stage.leased(new_job("b")).await?;
    stage.settle(done.receipt(), Verdict::done()).await?;
    let taken = stage.leased(new_job("c")).await?;
    stage.settle(taken.receipt(), Verdict::retry_after("again", Duration::ZERO)?).await?;
    stage.claim_one("c").await?;
    let waiting = stage.leased(new_job("d")).await?;
    stage.store.retry_later(waiting.id, Schedule::after(HOUR)?).await?;
    let never = Receipt { job: JobId::new(i64::MAX), ..done.receipt() };
    let before = stage.dump().await?;
    for stale in [released.receipt(), done.receipt(), taken.receipt(), waiting.receipt(), never] {
        let outcomes = stage.store.release(&[stale]).await?;
        ensure_eq!(L1, format!("release with the stale {stale}"), outcomes, [SettleOutcome::LeaseLost]);
    }
    holds(L1, &stage, &before, "a stale release changed something").await?;
    ensure_eq!(L1, "status", stage.finished(done.id).await?.outcome.status(), FinalStatus::Completed);
    Ok(())
}

async fn releases_are_answered_in_order(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 3).await?;
    let jobs = stage.claim("q", 3).await?;
    let [a, b, c] = jobs.as_slice() else {
        let observed = format!("3 ready jobs, but leased were {jobs:?}");
        return Err(Problem::Broken(D13, observed));
    };
    let stale = Receipt { epoch: a.epoch.next(), ..a.receipt() };
    let batch = [c.receipt(), stale, a.receipt(), c.receipt()];
    let outcomes = stage.store.release(&batch).await?;
    let lost: Vec<_> = outcomes.iter().map(SettleOutcome::is_lost).collect();
    ensure_eq!(L1, "lost", lost, [false, true, false, true]);
    let named = outcomes.into_iter().filter_map(SettleOutcome::settled).map(|settled| settled.receipt());
    ensure_eq!(L1, "receipts of the proofs", named.collect::<Vec<_>>(), [c.receipt(), a.receipt()]);
    let held: Vec<_> = stage.dump().await?.jobs.iter().map(|job| job.lease.is_some()).collect();
    let expected: Vec<_> = stage.dump().await?.jobs.iter().map(|job| job.id == b.id).collect();
    ensure_eq!(L1, "which jobs are still held", held, expected);
    Ok(())
}

async fn promote_leaves_an_exhausted_job_alone(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q").max_attempts(1)).await?;
    stage.store.retry_later(job.id, Schedule::after(9 * HOUR)?).await?;
    let before = stage.dump().await?;
    stage.store.promote(job.id).await?;
    holds(leasehold_core::contract::A3, &stage, &before, "promote changed an Exhausted job").await
}
