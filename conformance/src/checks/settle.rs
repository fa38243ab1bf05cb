//! Verdicts and what they make of a job.

use std::time::Duration;

use leasehold_core::{
    Backoff, BatchSize, Fate, FinalStatus, FinishedJob, Job, JobState, Json, NewJobBuilder, Outcome as End,
    Receipt, SettleOutcome, Verdict, WorkerId, time,
};

use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, ids, lease_for, new_job};

checks! { "settle":
    outcomes_come_in_order [S1];
    one_stale_item_does_not_affect_the_rest [S1];
    a_late_verdict_counts [S10];
    a_verdict_spends_its_receipt [S11];
    the_first_verdict_of_a_batch_counts [S11];
    a_finished_job_has_one_full_row [S12];
    anybody_with_the_receipt_may_settle [S13];
    ack_and_nack_are_the_named_forms [S3, S5];
    the_fate_is_told [S1];
    each_item_goes_by_its_own_queue [S1, S5, P7] needs Policies;
}

/// A job with something in every column, leased for the second time.
pub(super) async fn rich(stage: &Stage, queue: &str) -> Outcome<Job> {
    let job: NewJobBuilder =
        new_job(queue).payload("p").header("h", "v").unique_key("k").priority(3).max_attempts(4);
    let first = stage.leased(job).await?;
    stage.settle(first.receipt(), Verdict::retry_after("first error", Duration::ZERO)?).await?;
    stage.claim_one(queue).await
}

async fn outcomes_come_in_order(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 6).await?;
    let jobs = stage.claim("q", 6).await?;
    let verdicts = [
        Verdict::snooze(HOUR)?,
        Verdict::done(),
        Verdict::dead("no"),
        Verdict::retry_after("again", HOUR)?,
        Verdict::discard("not wanted"),
        Verdict::done_with("last")?,
    ];
    let order = [3, 0, 5, 1, 4, 2];
    let items: Vec<_> =
        order.into_iter().zip(verdicts).map(|(index, verdict)| (jobs[index].receipt(), verdict)).collect();
    let outcomes = stage.store.settle(&items).await?;
    ensure_eq!(S1, "number of outcomes", outcomes.len(), items.len());
    for ((receipt, verdict), outcome) in items.iter().zip(&outcomes) {
        let SettleOutcome::Settled(settled) = outcome else {
            ensure!(S1, false, "{verdict:?} for {receipt} was answered {outcome:?}");
            return Ok(());
        };
        ensure_eq!(S1, format!("receipt of the outcome for {verdict:?}"), settled.receipt(), *receipt);
    }
    let statuses: Vec<_> =
        stage.dump().await?.history.iter().map(|job| (job.id, job.outcome.status())).collect();
    let expected = [
        (jobs[0].id, FinalStatus::Completed),
        (jobs[2].id, FinalStatus::Completed),
        (jobs[4].id, FinalStatus::Discarded),
        (jobs[5].id, FinalStatus::DeadLetter),
    ];
    ensure_eq!(S1, "history", statuses, expected);
    Ok(())
}

async fn one_stale_item_does_not_affect_the_rest(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 4).await?;
    let jobs = stage.claim("q", 4).await?;
    stage.settle(jobs[1].receipt(), Verdict::release()).await?;
    let ghost = Receipt { job: leasehold_core::JobId::new(i64::MAX), epoch: jobs[0].epoch };
    let items = [
        (jobs[1].receipt(), Verdict::done()),
        (jobs[0].receipt(), Verdict::done()),
        (ghost, Verdict::done()),
        (jobs[2].receipt(), Verdict::done()),
        (Receipt { epoch: jobs[3].epoch.next(), ..jobs[3].receipt() }, Verdict::dead("no")),
    ];
    let outcomes = stage.store.settle(&items).await?;
    let lost: Vec<_> = outcomes.iter().map(SettleOutcome::is_lost).collect();
    ensure_eq!(S1, "lost", lost, [true, false, true, false, true]);
    let done: Vec<_> = stage.dump().await?.history.iter().map(|job| job.id).collect();
    ensure_eq!(S1, "finished", done, [jobs[0].id, jobs[2].id]);
    Ok(())
}

/// Retries at once until the job is in this attempt.
pub(super) async fn spend(stage: &Stage, mut job: Job, attempt: u32) -> Outcome<Job> {
    while job.attempts < attempt {
        stage.settle(job.receipt(), Verdict::retry_after("spend", Duration::ZERO)?).await?;
        job = stage.claim_one(job.queue.as_str()).await?;
    }
    Ok(job)
}

async fn a_late_verdict_counts(stage: Stage) -> Outcome {
    let verdicts =
        [Verdict::done(), Verdict::retry_after("late", HOUR)?, Verdict::snooze(HOUR)?, Verdict::dead("late")];
    for verdict in verdicts {
        let job = stage.leased(new_job("q")).await?;
        stage.age(3 * HOUR).await?;
        let outcome = stage.try_settle(job.receipt(), verdict.clone()).await?;
        ensure!(
            S10,
            !outcome.is_lost(),
            "nobody took the job, but the late {verdict:?} was answered {outcome:?}"
        );
        let reclaimed = stage.reclaim().await?;
        ensure!(
            S10,
            reclaimed.is_empty(),
            "the late {verdict:?} counted, but the job was reclaimed: {reclaimed:?}"
        );
    }
    Ok(())
}

async fn a_verdict_spends_its_receipt(stage: Stage) -> Outcome {
    let verdicts = [
        Verdict::done(),
        Verdict::retry_after("again", Duration::ZERO)?,
        Verdict::snooze(Duration::ZERO)?,
        Verdict::dead("no"),
        Verdict::discard("no"),
    ];
    for first in &verdicts {
        let job = stage.leased(new_job("q")).await?;
        stage.settle(job.receipt(), first.clone()).await?;
        let before = stage.dump().await?;
        for second in &verdicts {
            let outcome = stage.try_settle(job.receipt(), second.clone()).await?;
            ensure!(S11, outcome.is_lost(), "{second:?} after {first:?} was answered {outcome:?}");
        }
        let difference = stage.dump().await?.difference(&before);
        ensure!(S11, difference.is_none(), "verdicts after {first:?} changed something: {difference:?}");
        if let Some(leasehold_core::Record::Live(_)) = stage.store.get(job.id).await? {
            stage.store.discard(job.id, Json::null()).await?;
        }
    }
    Ok(())
}

async fn the_first_verdict_of_a_batch_counts(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let (snoozed, done) = (Verdict::snooze(HOUR)?, Verdict::done());
    let outcomes = stage
        .store
        .settle(&[(job.receipt(), snoozed.clone()), (job.receipt(), done), (job.receipt(), snoozed)])
        .await?;
    let lost: Vec<_> = outcomes.iter().map(SettleOutcome::is_lost).collect();
    ensure_eq!(S11, "lost", lost, [false, true, true]);
    ensure_eq!(S11, "attempts", stage.live(job.id).await?.attempts, 0);

    let job = stage.leased(new_job("q")).await?;
    let outcomes = stage
        .store
        .settle(&[(job.receipt(), Verdict::done_with(&1)?), (job.receipt(), Verdict::done_with(&2)?)])
        .await?;
    let lost: Vec<_> = outcomes.iter().map(SettleOutcome::is_lost).collect();
    ensure_eq!(S11, "lost", lost, [false, true]);
    ensure_eq!(S11, "result", *stage.finished(job.id).await?.outcome.document(), Json::new(&1)?);
    Ok(())
}

async fn a_finished_job_has_one_full_row(stage: Stage) -> Outcome {
    let verdicts = [Verdict::done(), Verdict::dead("no"), Verdict::discard("no"), Verdict::retry("no")];
    for (number, verdict) in verdicts.into_iter().enumerate() {
        let mut job = rich(&stage, "q").await?;
        if number == 3 {
            job = spend(&stage, job, 4).await?;
        }
        let before = stage.now().await?;
        stage.settle(job.receipt(), verdict.clone()).await?;
        let after = stage.now().await?;
        let rows = stage.dump().await?.history;
        ensure_eq!(S12, format!("history rows after {verdict:?}"), rows.len(), number + 1);
        let row = stage.finished(job.id).await?;
        let expected = FinishedJob {
            id: job.id,
            queue: job.queue,
            kind: job.kind,
            priority: 3,
            unique_key: job.unique_key,
            payload: job.payload,
            headers: job.headers,
            attempts: job.attempts,
            max_attempts: job.max_attempts,
            epoch: job.epoch,
            outcome: row.outcome.clone(),
            last_error: row.last_error.clone(),
            redrives: 0,
            processed_by: Some(WorkerId::new("suite")?),
            created_at: job.created_at,
            started_at: job.first_leased_at,
            finished_at: row.finished_at,
        };
        ensure!(S12, row == expected, "{verdict:?} left {row:?}, expected {expected:?}");
        let at = row.finished_at;
        ensure!(S12, (before..=after).contains(&at), "finished_at is {at}, expected {before} to {after}");
    }
    Ok(())
}

async fn anybody_with_the_receipt_may_settle(stage: Stage) -> Outcome {
    let other = stage.connect().await?;
    let job = stage.leased(new_job("q")).await?;
    let receipt: Receipt = job.receipt().to_string().parse()?;
    let extended = other.heartbeat(&[receipt], lease_for(2 * HOUR)?).await?;
    let outcomes = other.settle(&[(receipt, Verdict::done())]).await?;
    let accepted = outcomes.len() == 1 && !outcomes[0].is_lost();
    ensure!(S13, accepted, "a receipt that was written down and read again: {extended:?}, {outcomes:?}");
    Ok(())
}

async fn ack_and_nack_are_the_named_forms(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let settled = stage.store.ack(&job.receipt(), Json::new("ok")?).await?;
    ensure_eq!(S3, "fate", settled.fate(), Fate::Completed);
    let End::Completed { result } = stage.finished(job.id).await?.outcome else {
        ensure!(S3, false, "ack did not complete the job");
        return Ok(());
    };
    ensure_eq!(S3, "result", result, Json::new("ok")?);
    let again = stage.store.ack(&job.receipt(), Json::null()).await;
    ensure!(
        S3,
        again.as_ref().is_err_and(leasehold_core::StoreError::is_lease_lost),
        "a second ack: {again:?}"
    );

    let job = stage.leased(new_job("q")).await?;
    let settled = stage.store.nack(&job.receipt(), Json::error("why")).await?;
    ensure!(
        S5,
        matches!(settled.fate(), Fate::Retrying { .. }),
        "the fate of a nack is {:?}",
        settled.fate()
    );
    let stored = stage.live(job.id).await?;
    ensure_eq!(S5, "last_error", stored.last_error, Some(Json::error("why")));
    ensure_eq!(S5, "state", stored.state(stage.now().await?), JobState::Retrying);
    let again = stage.store.nack(&job.receipt(), Json::null()).await;
    ensure!(
        S5,
        again.as_ref().is_err_and(leasehold_core::StoreError::is_lease_lost),
        "a second nack: {again:?}"
    );
    Ok(())
}

async fn the_fate_is_told(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 5).await?;
    let last = stage.enqueue(new_job("q").max_attempts(1)).await?;
    let jobs = stage.claim("q", BatchSize::MAX.get()).await?;
    ensure_eq!(S1, "leased", ids(&jobs).last().copied(), Some(last));
    let verdicts = [
        Verdict::done(),
        Verdict::retry("again"),
        Verdict::snooze(HOUR)?,
        Verdict::dead("no"),
        Verdict::discard("no"),
        Verdict::retry("last"),
    ];
    let items: Vec<_> = jobs.iter().zip(verdicts).map(|(job, verdict)| (job.receipt(), verdict)).collect();
    let outcomes = stage.store.settle(&items).await?;
    let fates: Vec<_> =
        outcomes.into_iter().filter_map(SettleOutcome::settled).map(|settled| settled.fate()).collect();
    let expected = [
        Fate::Completed,
        Fate::Retrying { available_at: stage.live(jobs[1].id).await?.available_at },
        Fate::Snoozed { available_at: stage.live(jobs[2].id).await?.available_at },
        Fate::DeadLettered,
        Fate::Discarded,
        Fate::DeadLettered,
    ];
    ensure_eq!(S1, "fates", fates, expected);
    Ok(())
}

async fn each_item_goes_by_its_own_queue(stage: Stage) -> Outcome {
    let policy = |hours: u32, archive| -> Outcome<leasehold_core::QueuePolicy> {
        let backoff = Some(Backoff::new(hours * HOUR, 0.0, Duration::ZERO, 99 * HOUR)?);
        Ok(leasehold_core::QueuePolicy { backoff, archive: Some(archive), ..Default::default() })
    };
    let queues = [
        ("short", 1, leasehold_core::Archive::DeadOnly),
        ("long", 5, leasehold_core::Archive::All),
        ("shortest", 0, leasehold_core::Archive::DeadOnly),
    ];
    for (name, hours, archive) in queues {
        stage.set_policy(name, policy(hours, archive)?).await?;
    }
    for turn in 0..queues.len() {
        let mut jobs = Vec::new();
        for _ in 0..2 {
            for (name, hours, archive) in queues {
                jobs.push((stage.leased(new_job(name)).await?, hours, archive));
            }
        }
        // Each queue is the first of the batch once.
        jobs.rotate_left(turn);
        let (retried, done) = jobs.split_at(3);
        let from = stage.now().await?;
        let items = retried.iter().map(|(job, ..)| (job.receipt(), Verdict::retry("no")));
        stage.store.settle(&items.collect::<Vec<_>>()).await?;
        let to = stage.now().await?;
        for (job, hours, _) in retried {
            let at = stage.live(job.id).await?.available_at;
            let allowed = time::later(from, *hours * HOUR)..=time::later(to, *hours * HOUR);
            ensure!(S5, allowed.contains(&at), "a retry in {} waits until {at}, not {allowed:?}", job.queue);
            stage.store.discard(job.id, Json::null()).await?;
        }
        let items = done.iter().map(|(job, ..)| (job.receipt(), Verdict::done()));
        stage.store.settle(&items.collect::<Vec<_>>()).await?;
        for (job, _, archive) in done {
            let kept = stage.store.get(job.id).await?.is_some();
            ensure_eq!(
                P7,
                format!("a completed job of {} is kept", job.queue),
                kept,
                *archive == leasehold_core::Archive::All
            );
        }
    }
    Ok(())
}
