//! Heartbeats.

use std::time::Duration;

use leasehold_core::{Epoch, HeartbeatOutcome, Job, JobId, Receipt, Verdict, time};

use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job};

checks! { "heartbeat":
    it_extends_from_now [H1];
    it_keeps_the_lease_from_passing [H1];
    it_never_shortens [H2];
    a_passed_lease_cannot_be_extended [H3];
    a_stale_receipt_is_lost [H4];
    answers_come_in_order [H5];
    the_same_receipt_twice_is_answered_twice [H5];
    it_changes_only_the_lease [H6];
}

async fn beat(stage: &Stage, receipt: Receipt, length: Duration) -> Outcome<HeartbeatOutcome> {
    let answers = stage.store.heartbeat(&[receipt], lease_for(length)?).await?;
    ensure!(H5, answers.len() == 1, "one receipt was answered {answers:?}");
    Ok(answers[0])
}

async fn it_extends_from_now(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    for length in [2 * HOUR, 3 * HOUR, 24 * HOUR] {
        let before = stage.now().await?;
        let answer = beat(&stage, job.receipt(), length).await?;
        let after = stage.now().await?;
        let HeartbeatOutcome::Extended { until, left } = answer else {
            ensure!(H1, false, "a live lease was answered {answer:?}");
            return Ok(());
        };
        let allowed = time::later(before, length)..=time::later(after, length);
        ensure!(H1, allowed.contains(&until), "extended by {length:?} until {until}, expected {allowed:?}");
        ensure!(H1, left == length, "extended by {length:?}, but {left:?} is said to be left");
        let stored = stage.live(job.id).await?.lease.map(|lease| lease.until);
        ensure_eq!(H1, "lease_until in the store", stored, Some(until));
    }
    Ok(())
}

async fn it_keeps_the_lease_from_passing(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q").max_attempts(1)).await?;
    for _ in 0..4 {
        stage.age(HOUR / 2).await?;
        beat(&stage, job.receipt(), HOUR).await?;
        let reclaimed = stage.reclaim().await?;
        ensure!(H1, reclaimed.is_empty(), "a lease that was extended in time was reclaimed: {reclaimed:?}");
    }
    stage.settle(job.receipt(), Verdict::done()).await
}

async fn it_never_shortens(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    beat(&stage, job.receipt(), 5 * HOUR).await?;
    let before = stage.live(job.id).await?.lease.map(|lease| lease.until);
    for length in [Duration::from_millis(1), HOUR] {
        let answer = beat(&stage, job.receipt(), length).await?;
        let after = stage.live(job.id).await?.lease.map(|lease| lease.until);
        ensure!(H2, after == before, "extending by {length:?} moved the end from {before:?} to {after:?}");
        let told = matches!(answer, HeartbeatOutcome::Extended { until, left } if Some(until) == before && left > length);
        ensure!(H2, told, "the lease ends at {before:?}, the answer is {answer:?}");
    }
    Ok(())
}

async fn a_passed_lease_cannot_be_extended(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    for past in [HOUR, HOUR] {
        stage.age(past).await?;
        let before = stage.dump().await?;
        let answer = beat(&stage, job.receipt(), HOUR).await?;
        ensure_eq!(H3, "answer for a lease that has passed", answer, HeartbeatOutcome::Lost);
        let difference = stage.dump().await?.difference(&before);
        ensure!(H3, difference.is_none(), "extending a passed lease changed something: {difference:?}");
    }
    Ok(())
}

async fn a_stale_receipt_is_lost(stage: Stage) -> Outcome {
    let first = stage.leased(new_job("q")).await?;
    stage.settle(first.receipt(), Verdict::retry_after("again", Duration::ZERO)?).await?;
    lost(&stage, first.receipt(), "after a retry").await?;
    let second = stage.claim_one("q").await?;
    lost(&stage, first.receipt(), "of an earlier lease").await?;
    let ahead = Receipt { epoch: second.epoch.next(), ..second.receipt() };
    lost(&stage, ahead, "of a lease that is yet to come").await?;
    stage.settle(second.receipt(), Verdict::done()).await?;
    lost(&stage, second.receipt(), "of a finished job").await?;
    lost(&stage, Receipt { job: JobId::new(i64::MAX), epoch: Epoch::new(1) }, "of an unknown job").await?;
    let waiting = stage.enqueue(new_job("q")).await?;
    lost(&stage, Receipt { job: waiting, epoch: Epoch::ZERO }, "of a job that was never leased").await
}

async fn lost(stage: &Stage, receipt: Receipt, which: &str) -> Outcome {
    let before = stage.dump().await?;
    let answer = beat(stage, receipt, 2 * HOUR).await?;
    ensure!(H4, answer == HeartbeatOutcome::Lost, "the receipt {receipt} {which} was answered {answer:?}");
    let difference = stage.dump().await?.difference(&before);
    ensure!(H4, difference.is_none(), "the receipt {receipt} {which} changed something: {difference:?}");
    Ok(())
}

async fn answers_come_in_order(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 5).await?;
    let jobs = stage.claim("q", 5).await?;
    stage.settle(jobs[1].receipt(), Verdict::done()).await?;
    stage.settle(jobs[3].receipt(), Verdict::release()).await?;
    let receipts: Vec<_> = [4, 1, 0, 3, 2].map(|index| jobs[index].receipt()).into();
    let answers = stage.store.heartbeat(&receipts, lease_for(2 * HOUR)?).await?;
    let lost: Vec<_> = answers.iter().map(|answer| *answer == HeartbeatOutcome::Lost).collect();
    ensure_eq!(H5, "lost", lost, [false, true, false, true, false]);
    Ok(())
}

async fn the_same_receipt_twice_is_answered_twice(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let answers = stage.store.heartbeat(&[job.receipt(), job.receipt()], lease_for(2 * HOUR)?).await?;
    let until = stage.live(job.id).await?.lease.map(|lease| lease.until);
    let told = |answer: &HeartbeatOutcome| match answer {
        HeartbeatOutcome::Extended { until, .. } => Some(*until),
        _ => None,
    };
    ensure_eq!(H5, "answers", answers.iter().map(told).collect::<Vec<_>>(), [until, until]);
    Ok(())
}

async fn it_changes_only_the_lease(stage: Stage) -> Outcome {
    let new = new_job("q").payload("p").header("h", "v").unique_key("k").priority(2);
    let first = stage.leased(new).await?;
    stage.settle(first.receipt(), Verdict::retry_after("kept", Duration::ZERO)?).await?;
    let job = stage.claim_one("q").await?;
    let other = stage.leased(new_job("q")).await?;
    beat(&stage, job.receipt(), 2 * HOUR).await?;
    let after = stage.live(job.id).await?;
    let expected = Job { lease: after.lease.clone(), updated_at: after.updated_at, ..job.clone() };
    ensure!(H6, after == expected, "a heartbeat made {after:?} of {job:?}");
    let worker = after.lease.as_ref().map(|lease| lease.worker.as_str());
    ensure_eq!(H6, "worker", worker, Some("suite"));
    ensure_eq!(H6, "another leased job", stage.live(other.id).await?, other);
    Ok(())
}
