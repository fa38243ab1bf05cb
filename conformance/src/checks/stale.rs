//! Stale receipts change nothing, byte for byte.

use std::time::Duration;

use leasehold_core::{
    Dequeue, Epoch, HeartbeatOutcome, Job, JobId, Json, LeaseFor, Receipt, ReceiptStatus, Redrive, Schedule,
    Verdict,
};

use super::transaction::verdicts;
use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, new_job};

checks! { "stale":
    after_another_lease [S2];
    after_a_reclaim_and_another_lease_to_the_same_worker [S2, S13];
    after_a_release [S2];
    after_a_redrive [S2];
    after_the_job_is_finished [S2];
    of_another_epoch [S2];
    of_an_unknown_job [S2];
    among_good_ones [S2];
    in_a_batch_of_one_sort [S1, S2];
    beside_the_good_one_of_the_same_job [S1, H5, G5];
}

/// Shows the receipt with every verdict, alone and all in one batch; nothing may change.
async fn expect_stale(stage: &Stage, receipt: Receipt, which: &str) -> Outcome {
    let verdicts = [
        Verdict::done_with("stale")?,
        Verdict::retry("stale"),
        Verdict::retry_after("stale", Duration::ZERO)?,
        Verdict::snooze(Duration::ZERO)?,
        Verdict::snooze(HOUR)?,
        Verdict::dead("stale"),
        Verdict::discard("stale"),
    ];
    let before = stage.dump().await?;
    for verdict in &verdicts {
        let outcome = stage.try_settle(receipt, verdict.clone()).await?;
        ensure!(
            S2,
            outcome.is_lost(),
            "{verdict:?} with the receipt {receipt} {which} was answered {outcome:?}"
        );
        let difference = stage.dump().await?.difference(&before);
        ensure!(
            S2,
            difference.is_none(),
            "{verdict:?} with the receipt {receipt} {which} changed: {difference:?}"
        );
    }
    let items: Vec<_> = verdicts.into_iter().map(|verdict| (receipt, verdict)).collect();
    let outcomes = stage.store.settle(&items).await?;
    let lost = outcomes.len() == items.len() && outcomes.iter().all(leasehold_core::SettleOutcome::is_lost);
    ensure!(S2, lost, "a batch with the receipt {receipt} {which} was answered {outcomes:?}");
    let difference = stage.dump().await?.difference(&before);
    ensure!(S2, difference.is_none(), "a batch with the receipt {receipt} {which} changed: {difference:?}");
    Ok(())
}

async fn lease_as(stage: &Stage, worker: &str) -> Outcome<Job> {
    let request = Dequeue::new("q", worker)?.lease_for(HOUR)?;
    let mut jobs = stage.store.dequeue(&request).await?;
    ensure!(D13, jobs.len() == 1, "one job should be leased, not {jobs:?}");
    Ok(jobs.remove(0))
}

async fn after_another_lease(stage: Stage) -> Outcome {
    stage.enqueue(new_job("q").max_attempts(9)).await?;
    let mut receipts = Vec::new();
    for round in 0..3 {
        let job = lease_as(&stage, &format!("worker-{round}")).await?;
        for receipt in &receipts {
            expect_stale(&stage, *receipt, "of an earlier lease").await?;
        }
        receipts.push(job.receipt());
        stage.settle(job.receipt(), Verdict::retry_after("again", Duration::ZERO)?).await?;
        expect_stale(&stage, job.receipt(), "that was settled with Retry").await?;
    }
    Ok(())
}

async fn after_a_reclaim_and_another_lease_to_the_same_worker(stage: Stage) -> Outcome {
    stage.enqueue(new_job("q")).await?;
    let first = lease_as(&stage, "same").await?;
    stage.age(2 * HOUR).await?;
    stage.reclaim().await?;
    expect_stale(&stage, first.receipt(), "that was reclaimed").await?;
    let second = lease_as(&stage, "same").await?;
    expect_stale(&stage, first.receipt(), "of the same worker's earlier lease").await?;
    stage.settle(second.receipt(), Verdict::done()).await
}

async fn after_a_release(stage: Stage) -> Outcome {
    stage.enqueue(new_job("q")).await?;
    let first = lease_as(&stage, "same").await?;
    stage.store.release(&[first.receipt()]).await?;
    expect_stale(&stage, first.receipt(), "that was released").await?;
    let second = lease_as(&stage, "same").await?;
    expect_stale(&stage, first.receipt(), "from before the release").await?;
    stage.store.retry_later(second.id, Schedule::Now).await?;
    expect_stale(&stage, second.receipt(), "that was taken away").await?;
    let third = lease_as(&stage, "same").await?;
    expect_stale(&stage, second.receipt(), "from before it was taken away").await?;
    stage.settle(third.receipt(), Verdict::done()).await
}

async fn after_a_redrive(stage: Stage) -> Outcome {
    stage.enqueue(new_job("q")).await?;
    let mut receipts = Vec::new();
    for _ in 0..3 {
        let job = lease_as(&stage, "same").await?;
        for receipt in &receipts {
            expect_stale(&stage, *receipt, "from before a redrive").await?;
        }
        receipts.push(job.receipt());
        stage.settle(job.receipt(), Verdict::dead("no")).await?;
        stage.store.redrive(&Redrive::all(leasehold_core::BatchSize::MAX)).await?;
        expect_stale(&stage, job.receipt(), "of a redriven job").await?;
    }
    Ok(())
}

async fn after_the_job_is_finished(stage: Stage) -> Outcome {
    for verdict in [Verdict::done(), Verdict::dead("no"), Verdict::discard("no")] {
        stage.enqueue(new_job("q")).await?;
        let job = lease_as(&stage, "w").await?;
        stage.settle(job.receipt(), verdict).await?;
        expect_stale(&stage, job.receipt(), "of a finished job").await?;
    }
    stage.enqueue(new_job("q")).await?;
    let job = lease_as(&stage, "w").await?;
    stage.store.discard(job.id, Json::null()).await?;
    expect_stale(&stage, job.receipt(), "of a discarded job").await
}

async fn of_another_epoch(stage: Stage) -> Outcome {
    let waiting = stage.enqueue(new_job("waiting")).await?;
    expect_stale(&stage, Receipt { job: waiting, epoch: Epoch::ZERO }, "of a job that was never leased")
        .await?;
    expect_stale(&stage, Receipt { job: waiting, epoch: Epoch::new(1) }, "of a lease that is yet to come")
        .await?;
    stage.enqueue(new_job("q")).await?;
    let job = lease_as(&stage, "w").await?;
    for epoch in [0, -1, job.epoch.get() + 1, i64::MAX, i64::MIN] {
        expect_stale(&stage, Receipt { job: job.id, epoch: Epoch::new(epoch) }, "of a wrong epoch").await?;
    }
    Ok(())
}

async fn of_an_unknown_job(stage: Stage) -> Outcome {
    stage.enqueue(new_job("q")).await?;
    let job = lease_as(&stage, "w").await?;
    for id in [0, -1, i64::MAX, i64::MIN, job.id.get() + 1] {
        expect_stale(&stage, Receipt { job: JobId::new(id), epoch: job.epoch }, "of an unknown job").await?;
    }
    Ok(())
}

async fn among_good_ones(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 3).await?;
    let jobs = stage.claim("q", 3).await?;
    stage.settle(jobs[0].receipt(), Verdict::release()).await?;
    let old = stage.live(jobs[0].id).await?;
    let items = [
        (jobs[1].receipt(), Verdict::done()),
        (jobs[0].receipt(), Verdict::done_with("stale")?),
        (jobs[2].receipt(), Verdict::dead("no")),
    ];
    let outcomes = stage.store.settle(&items).await?;
    let lost: Vec<_> = outcomes.iter().map(leasehold_core::SettleOutcome::is_lost).collect();
    ensure!(S2, lost == [false, true, false], "the second of three was stale, the outcomes are {outcomes:?}");
    let new = stage.live(jobs[0].id).await?;
    ensure!(S2, new == old, "a stale receipt among good ones made {new:?} of {old:?}");
    Ok(())
}

/// A batch in which every verdict is of one sort may be one statement: it must compare receipts all the same.
async fn in_a_batch_of_one_sort(stage: Stage) -> Outcome {
    for verdict in verdicts()? {
        let mut good = Vec::new();
        let mut stale = Vec::new();
        for number in 0..4 {
            stage.enqueue(new_job("q").max_attempts(9)).await?;
            let first = lease_as(&stage, "w").await?;
            if number % 2 == 0 {
                good.push(first.receipt());
                continue;
            }
            stage.settle(first.receipt(), Verdict::snooze(Duration::ZERO)?).await?;
            stale.push((first.receipt(), lease_as(&stage, "w").await?));
        }
        let unknown = Receipt { job: JobId::new(i64::MAX), epoch: Epoch::new(1) };
        let batch = [good[0], stale[0].0, unknown, good[1], stale[1].0];
        let items: Vec<_> = batch.iter().map(|receipt| (*receipt, verdict.clone())).collect();
        let outcomes = stage.store.settle(&items).await?;
        let lost: Vec<_> = outcomes.iter().map(leasehold_core::SettleOutcome::is_lost).collect();
        ensure_eq!(S1, format!("lost of five times {verdict:?}"), lost, [false, true, true, false, true]);
        for (_, held) in &stale {
            ensure_eq!(
                S2,
                format!("a job whose old receipt came with {verdict:?}"),
                stage.live(held.id).await?,
                *held
            );
            stage.settle(held.receipt(), Verdict::done()).await?;
        }
    }
    Ok(())
}

/// Answers belong to receipts, not to jobs.
async fn beside_the_good_one_of_the_same_job(stage: Stage) -> Outcome {
    for stale_goes_first in [true, false] {
        stage.enqueue(new_job("q").max_attempts(9)).await?;
        let stale = lease_as(&stage, "w").await?.receipt();
        stage.store.release(&[stale]).await?;
        let good = lease_as(&stage, "w").await?.receipt();
        let both = if stale_goes_first { [stale, good] } else { [good, stale] };
        let expected = [stale_goes_first, !stale_goes_first];
        let beats = stage.store.heartbeat(&both, LeaseFor::new(2 * HOUR)?).await?;
        let lost: Vec<_> = beats.iter().map(|answer| *answer == HeartbeatOutcome::Lost).collect();
        ensure_eq!(H5, "lost heartbeats of two receipts of one job", lost, expected);
        let worth = stage.store.receipts(&both).await?;
        let held: Vec<_> = worth.iter().map(|status| matches!(status, ReceiptStatus::Held { .. })).collect();
        ensure_eq!(G5, "good of two receipts of one job", held, [!stale_goes_first, stale_goes_first]);
        let outcomes = stage.store.settle(&both.map(|receipt| (receipt, Verdict::done()))).await?;
        let lost: Vec<_> = outcomes.iter().map(leasehold_core::SettleOutcome::is_lost).collect();
        ensure_eq!(S1, "lost verdicts of two receipts of one job", lost, expected);
    }
    Ok(())
}
