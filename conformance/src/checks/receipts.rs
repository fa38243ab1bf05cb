//! What receipts are worth, and leases that nobody has reclaimed.

use std::time::Duration;

use leasehold_core::{
    BatchSize, Epoch, FinalStatus, Job, JobId, Json, Receipt, ReceiptStatus, Schedule, Verdict,
};

use super::scene::{every_state, holds, leased_again};
use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, ids, lease_for, new_job};

checks! { "receipts":
    a_good_receipt_is_held_until_its_end [G5];
    a_finished_receipt_tells_how [G5];
    a_receipt_is_gone_when_its_job_went_elsewhere [G5];
    receipts_are_answered_in_order [G5];
    stuck_jobs_are_those_whose_lease_passed_long_ago [G4];
    a_stuck_job_that_was_dealt_with_is_stuck_no_more [G4];
    the_first_stuck_jobs_are_those_with_the_smallest_ids [G4];
    stuck_takes_any_length_of_time [G4];
}

async fn worth(stage: &Stage, receipt: Receipt) -> Outcome<ReceiptStatus> {
    let answers = stage.store.receipts(&[receipt]).await?;
    ensure!(G5, answers.len() == 1, "one receipt was answered {answers:?}");
    Ok(answers[0])
}

async fn a_good_receipt_is_held_until_its_end(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let end = |job: &Job| job.lease.as_ref().map(|lease| lease.until).unwrap_or_default();
    let held = ReceiptStatus::Held { until: end(&job) };
    ensure_eq!(G5, "a held receipt", worth(&stage, job.receipt()).await?, held);
    stage.store.heartbeat(&[job.receipt()], lease_for(3 * HOUR)?).await?;
    let held = ReceiptStatus::Held { until: end(&stage.live(job.id).await?) };
    ensure_eq!(G5, "a receipt after a heartbeat", worth(&stage, job.receipt()).await?, held);
    stage.age(4 * HOUR).await?;
    let held = ReceiptStatus::Held { until: end(&stage.live(job.id).await?) };
    ensure_eq!(G5, "a receipt whose lease has passed", worth(&stage, job.receipt()).await?, held);
    Ok(())
}

async fn a_finished_receipt_tells_how(stage: Stage) -> Outcome {
    let endings = [
        (Verdict::done(), FinalStatus::Completed),
        (Verdict::dead("no"), FinalStatus::DeadLetter),
        (Verdict::retry("last"), FinalStatus::DeadLetter),
        (Verdict::discard("no"), FinalStatus::Discarded),
    ];
    for (verdict, status) in endings {
        let job = stage.leased(new_job("q").max_attempts(1)).await?;
        stage.settle(job.receipt(), verdict.clone()).await?;
        let seen = worth(&stage, job.receipt()).await?;
        ensure_eq!(G5, format!("after {verdict:?}"), seen, ReceiptStatus::Finished { status });
        let other = Receipt { epoch: Epoch::ZERO, ..job.receipt() };
        ensure_eq!(G5, "another epoch of a finished job", worth(&stage, other).await?, ReceiptStatus::Gone);
    }
    let expired = stage.leased(new_job("q").max_attempts(1)).await?;
    stage.age(2 * HOUR).await?;
    stage.reclaim().await?;
    let seen = worth(&stage, expired.receipt()).await?;
    ensure_eq!(G5, "after a reclaim made it a dead letter", seen, ReceiptStatus::Gone);
    let discarded = stage.leased(new_job("q")).await?;
    stage.store.discard(discarded.id, Json::null()).await?;
    let seen = worth(&stage, discarded.receipt()).await?;
    ensure_eq!(G5, "after an administrator discarded the job", seen, ReceiptStatus::Gone);
    Ok(())
}

async fn a_receipt_is_gone_when_its_job_went_elsewhere(stage: Stage) -> Outcome {
    let expired = stage.leased(new_job("reclaimed")).await?.receipt();
    stage.age(2 * HOUR).await?;
    stage.reclaim().await?;
    let retried = stage.leased(new_job("retried")).await?.receipt();
    stage.settle(retried, Verdict::retry_after("no", HOUR)?).await?;
    let snoozed = stage.leased(new_job("snoozed")).await?.receipt();
    stage.settle(snoozed, Verdict::snooze(HOUR)?).await?;
    let released = stage.leased(new_job("released")).await?.receipt();
    stage.store.release(&[released]).await?;
    let taken = stage.leased(new_job("taken")).await?.receipt();
    stage.store.retry_later(taken.job, Schedule::Now).await?;
    let second = leased_again(&stage, "again").await?.receipt();
    let first = Receipt { epoch: Epoch::new(second.epoch.get() - 1), ..second };
    let future = Receipt { epoch: second.epoch.next(), ..second };
    let waiting = stage.enqueue(new_job("waiting")).await?;
    let waiting = Receipt { job: waiting, epoch: Epoch::ZERO };
    let unknown = Receipt { job: JobId::new(i64::MAX), epoch: Epoch::new(1) };
    let gone = [
        ("reclaimed", expired),
        ("taken by an administrator", taken),
        ("of a lease before", first),
        ("of a lease to come", future),
        ("of a job never leased", waiting),
        ("of an unknown job", unknown),
    ];
    let before = stage.dump().await?;
    for (why, receipt) in gone {
        let seen = worth(&stage, receipt).await?;
        ensure_eq!(G5, format!("the receipt {receipt}, {why}"), seen, ReceiptStatus::Gone);
    }
    for (why, receipt) in [("retried", retried), ("snoozed", snoozed), ("released", released)] {
        let seen = worth(&stage, receipt).await?;
        ensure_eq!(G5, format!("the receipt {receipt}, {why}"), seen, ReceiptStatus::Requeued);
    }
    holds(leasehold_core::contract::G5, &stage, &before, "asking changed something").await
}

async fn receipts_are_answered_in_order(stage: Stage) -> Outcome {
    let held = stage.leased(new_job("q")).await?;
    let done = stage.leased(new_job("q")).await?;
    stage.settle(done.receipt(), Verdict::done()).await?;
    let unknown = Receipt { job: JobId::new(i64::MAX), epoch: Epoch::new(1) };
    let asked = [unknown, held.receipt(), done.receipt(), unknown, held.receipt()];
    let held = ReceiptStatus::Held { until: held.lease.map(|lease| lease.until).unwrap_or_default() };
    let done = ReceiptStatus::Finished { status: FinalStatus::Completed };
    let expected = [ReceiptStatus::Gone, held, done, ReceiptStatus::Gone, held];
    ensure_eq!(G5, format!("answers for {asked:?}"), stage.store.receipts(&asked).await?, expected);
    Ok(())
}

async fn stuck_jobs_are_those_whose_lease_passed_long_ago(stage: Stage) -> Outcome {
    let first = stage.leased(new_job("a")).await?.id;
    stage.age(HOUR).await?;
    let second = stage.leased(new_job("b")).await?.id;
    stage.age(2 * HOUR).await?;
    let [jobs] = every_state(&stage, ["c"]).await?;
    let third = jobs[&leasehold_core::JobState::Expired];
    // The leases of an hour passed 4, 3 and 1 hours ago.
    let expected = [
        (Duration::ZERO, vec![first, second, third]),
        (HOUR, vec![first, second, third]),
        (2 * HOUR, vec![first, second]),
        (3 * HOUR, vec![first, second]),
        (7 * HOUR / 2, vec![first]),
        (4 * HOUR, vec![first]),
        (5 * HOUR, vec![]),
    ];
    for (age, wanted) in expected {
        let stuck = stage.store.stuck(age, BatchSize::MAX).await?;
        ensure_eq!(G4, format!("stuck for {age:?}"), ids(&stuck), wanted);
        for job in stuck {
            ensure_eq!(G4, "the stuck job", job, stage.live(job.id).await?);
        }
    }
    let two = stage.store.stuck(Duration::ZERO, BatchSize::new(2)?).await?;
    ensure_eq!(G4, "the first two", ids(&two), [first, second]);
    Ok(())
}

async fn a_stuck_job_that_was_dealt_with_is_stuck_no_more(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 4).await?;
    let jobs = stage.claim("q", 4).await?;
    ensure_eq!(
        G4,
        "stuck while the leases are live",
        stage.store.stuck(Duration::ZERO, BatchSize::MAX).await?,
        []
    );
    stage.age(2 * HOUR).await?;
    let mut left = ids(&jobs);
    for (turn, job) in jobs.iter().enumerate().take(3) {
        match turn {
            0 => stage.settle(job.receipt(), Verdict::done()).await?,
            1 => stage.store.retry_later(job.id, Schedule::Now).await?,
            _ => stage.store.discard(job.id, Json::null()).await?,
        }
        left.retain(|id| *id != job.id);
        let stuck = stage.store.stuck(HOUR, BatchSize::MAX).await?;
        ensure_eq!(G4, "stuck after one was dealt with", ids(&stuck), left);
    }
    stage.reclaim().await?;
    ensure_eq!(G4, "stuck after a reclaim", stage.store.stuck(Duration::ZERO, BatchSize::MAX).await?, []);
    Ok(())
}

async fn the_first_stuck_jobs_are_those_with_the_smallest_ids(stage: Stage) -> Outcome {
    let enqueued = stage.enqueue_many("q", 4).await?;
    let jobs = stage.claim("q", 4).await?;
    ensure_eq!(G4, "leased", ids(&jobs), enqueued);
    // The smaller the id, the later the lease passes.
    for (job, hours) in jobs.iter().zip([5, 4, 3, 2]) {
        stage.store.heartbeat(&[job.receipt()], lease_for(hours * HOUR)?).await?;
    }
    stage.age(9 * HOUR).await?;
    for limit in 1..=4 {
        let stuck = stage.store.stuck(HOUR, BatchSize::new(limit)?).await?;
        ensure_eq!(G4, format!("the first {limit}"), ids(&stuck), enqueued[..limit as usize]);
    }
    Ok(())
}

async fn stuck_takes_any_length_of_time(stage: Stage) -> Outcome {
    stage.leased(new_job("q")).await?;
    stage.age(2 * HOUR).await?;
    for age in [Duration::from_secs(1 << 40), Duration::from_secs(i64::MAX as u64), Duration::MAX] {
        ensure_eq!(G4, format!("stuck for {age:?}"), stage.store.stuck(age, BatchSize::MAX).await?, []);
    }
    Ok(())
}
