//! Verdicts on the caller's own transaction.

use super::transaction::verdicts;
use std::time::Duration;

use leasehold_core::{FinishedJob, Job, Json, NewJobBuilder, Record, Schedule, StoreError, Verdict};

use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, new_job};

checks! { "transaction":
    settled_once_committed [T2] needs Transactions;
    every_verdict_is_undone_by_rollback [T2] needs Transactions;
    a_retry_by_receipt_after_rollback_counts [T2] needs Transactions;
    a_stale_receipt_is_an_error [T3] needs Transactions;
    a_receipt_is_spent_within_the_transaction [T3] needs Transactions;
    every_verdict_does_what_it_does_outside [T9] needs Transactions;
    a_late_verdict_counts_in_a_transaction [T9] needs Transactions;
    a_verdict_goes_by_the_policy_of_its_queue [T9] needs Transactions, Policies;
    several_jobs_are_settled_in_one_transaction [T2] needs Transactions;
}

async fn settled_once_committed(stage: Stage) -> Outcome {
    let other = stage.connect().await?;
    for verdict in verdicts()? {
        let job = stage.leased(new_job("q")).await?;
        let mut transaction = stage.begin().await?;
        transaction.write("effect").await?;
        let settled = transaction.settle_in(&job.receipt(), verdict.clone()).await?;
        ensure_eq!(T2, "receipt of the proof", settled.receipt(), job.receipt());
        let early = other.get(job.id).await?;
        let expected = Some(Record::Live(job.clone()));
        ensure!(T2, early == expected, "{verdict:?} before the commit: another handle sees {early:?}");
        transaction.commit().await?;
        let after = stage.record(job.id).await?;
        let changed = match &after {
            Record::Live(job) => job.lease.is_none(),
            Record::Finished(_) => true,
        };
        ensure!(T2, changed, "{verdict:?} was committed, but the job is {after:?}");
        let again = stage.try_settle(job.receipt(), Verdict::done()).await?;
        ensure!(T2, again.is_lost(), "{verdict:?} was committed, then the receipt was answered {again:?}");
    }
    ensure_eq!(T2, "ledger", stage.ledger().await?.len(), 5);
    Ok(())
}

async fn every_verdict_is_undone_by_rollback(stage: Stage) -> Outcome {
    for verdict in verdicts()? {
        let job = stage.leased(new_job("q").max_attempts(1)).await?;
        let before = stage.dump().await?;
        let mut transaction = stage.begin().await?;
        transaction.write("effect").await?;
        let _rolled_back = transaction.settle_in(&job.receipt(), verdict.clone()).await?;
        transaction.rollback().await?;
        let difference = stage.dump().await?.difference(&before);
        ensure!(T2, difference.is_none(), "{verdict:?} was rolled back, but left {difference:?}");
        stage.settle(job.receipt(), Verdict::done()).await?;
    }
    let left = stage.ledger().await?;
    ensure!(T2, left.is_empty(), "every transaction was rolled back, but the ledger has {left:?}");
    Ok(())
}

async fn a_retry_by_receipt_after_rollback_counts(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let mut transaction = stage.begin().await?;
    let _rolled_back = transaction.settle_in(&job.receipt(), Verdict::done()).await?;
    transaction.rollback().await?;
    let status = stage.store.receipts(&[job.receipt()]).await?;
    let held = matches!(status[..], [leasehold_core::ReceiptStatus::Held { .. }]);
    ensure!(T2, held, "after the rollback the receipt is {status:?}");
    stage.settle(job.receipt(), Verdict::retry_after("rolled back", Duration::ZERO)?).await?;
    ensure_eq!(T2, "attempts of the next lease", stage.claim_one("q").await?.attempts, 2);
    Ok(())
}

async fn a_stale_receipt_is_an_error(stage: Stage) -> Outcome {
    let stale = stage.leased(new_job("q")).await?;
    stage.store.retry_later(stale.id, Schedule::Now).await?;
    let holder = stage.claim_one("q").await?;
    let before = stage.dump().await?;
    for verdict in verdicts()? {
        let mut transaction = stage.begin().await?;
        transaction.write("effect of a worker that lost its lease").await?;
        let answer = transaction.settle_in(&stale.receipt(), verdict.clone()).await;
        let lost = answer.as_ref().is_err_and(StoreError::is_lease_lost);
        ensure!(T3, lost, "{verdict:?} with a stale receipt was answered {answer:?}");
        transaction.rollback().await?;
    }
    let difference = stage.dump().await?.difference(&before);
    ensure!(T3, difference.is_none(), "a stale receipt changed something: {difference:?}");
    let left = stage.ledger().await?;
    ensure!(T3, left.is_empty(), "the ledger has {left:?}");
    stage.settle(holder.receipt(), Verdict::done()).await
}

async fn a_receipt_is_spent_within_the_transaction(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let mut transaction = stage.begin().await?;
    let _first = transaction.settle_in(&job.receipt(), Verdict::snooze(HOUR)?).await?;
    let second = transaction.settle_in(&job.receipt(), Verdict::done()).await;
    let lost = second.as_ref().is_err_and(StoreError::is_lease_lost);
    ensure!(T3, lost, "a second verdict in one transaction was answered {second:?}");
    transaction.commit().await?;
    ensure_eq!(T3, "attempts", stage.live(job.id).await?.attempts, 0);
    Ok(())
}

/// A job with something in every column, leased for the second time.
async fn rich(stage: &Stage, queue: &str, attempts: u32) -> Outcome<Job> {
    let new: NewJobBuilder =
        new_job(queue).payload("p").header("h", "v").unique_key("k").priority(3).max_attempts(attempts);
    let job = stage.leased(new).await?;
    stage.settle(job.receipt(), Verdict::retry_after("first", Duration::ZERO)?).await?;
    stage.claim_one(queue).await
}

async fn every_verdict_does_what_it_does_outside(stage: Stage) -> Outcome {
    let mut all = verdicts()?;
    all.push(Verdict::retry("backoff"));
    for (number, verdict) in all.into_iter().enumerate() {
        for attempts in [2, 5] {
            let outside = rich(&stage, &format!("out-{number}-{attempts}"), attempts).await?;
            let inside = rich(&stage, &format!("in-{number}-{attempts}"), attempts).await?;
            stage.settle(outside.receipt(), verdict.clone()).await?;
            let mut transaction = stage.begin().await?;
            let settled = transaction.settle_in(&inside.receipt(), verdict.clone()).await?;
            transaction.commit().await?;
            let (expected, seen) = (stage.record(outside.id).await?, stage.record(inside.id).await?);
            let (expected, seen) = (timeless(expected), timeless(seen));
            ensure!(
                T9,
                seen == expected,
                "{verdict:?} made {seen} in a transaction, {expected} outside ({settled:?})"
            );
        }
    }
    Ok(())
}

/// Everything that two jobs with the same past have in common, and times to the minute.
fn timeless(record: Record) -> String {
    match record {
        Record::Live(job) => {
            let waits = (job.available_at - job.updated_at).num_seconds() / 60;
            let Job { attempts, max_attempts, lease, epoch, last_error, payload, headers, priority, .. } =
                job;
            format!(
                "{attempts} {max_attempts} {lease:?} {epoch} {last_error:?} {payload} {headers:?} {priority} {waits}"
            )
        }
        Record::Finished(job) => {
            let FinishedJob { attempts, max_attempts, epoch, outcome, last_error, processed_by, .. } = job;
            let FinishedJob { payload, headers, priority, unique_key, .. } = job;
            format!(
                "{attempts} {max_attempts} {epoch} {outcome:?} {last_error:?} {processed_by:?} {payload} {headers:?} \
                 {priority} {unique_key:?}"
            )
        }
    }
}

async fn a_late_verdict_counts_in_a_transaction(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    stage.age(2 * HOUR).await?;
    let mut transaction = stage.begin().await?;
    transaction.write("late effect").await?;
    let _settled = transaction.settle_in(&job.receipt(), Verdict::done()).await?;
    transaction.commit().await?;
    stage.finished(job.id).await?;
    ensure_eq!(T9, "ledger", stage.ledger().await?, ["late effect"]);
    Ok(())
}

async fn a_verdict_goes_by_the_policy_of_its_queue(stage: Stage) -> Outcome {
    let backoff = leasehold_core::Backoff::new(5 * HOUR, 0.0, Duration::ZERO, 9 * HOUR)?;
    let archive = Some(leasehold_core::Archive::DeadOnly);
    let policy = leasehold_core::QueuePolicy { backoff: Some(backoff), archive, ..Default::default() };
    stage.set_policy("q", policy).await?;
    for verdict in [Verdict::retry("no"), Verdict::done(), Verdict::discard("no"), Verdict::dead("no")] {
        let job = stage.leased(new_job("q")).await?;
        let from = stage.now().await?;
        let mut transaction = stage.begin().await?;
        let settled = transaction.settle_in(&job.receipt(), verdict.clone()).await?;
        let to = stage.now().await?;
        transaction.commit().await?;
        match (stage.store.get(job.id).await?, settled.fate()) {
            (Some(Record::Live(job)), leasehold_core::Fate::Retrying { available_at }) => {
                let later = |time| leasehold_core::time::later(time, 5 * HOUR);
                let right =
                    job.available_at == available_at && (later(from)..=later(to)).contains(&available_at);
                ensure!(
                    T9,
                    right,
                    "with a backoff of five hours from {from}: {job:?}, told was {available_at}"
                );
                stage.store.discard(job.id, Json::null()).await?;
            }
            (None, leasehold_core::Fate::Completed | leasehold_core::Fate::Discarded) => {}
            (Some(Record::Finished(_)), leasehold_core::Fate::DeadLettered) => {}
            (found, fate) => ensure!(T9, false, "{verdict:?} was answered {fate:?}, and found is {found:?}"),
        }
    }
    Ok(())
}

async fn several_jobs_are_settled_in_one_transaction(stage: Stage) -> Outcome {
    for commit in [false, true] {
        let stage = stage.fresh().await?;
        stage.enqueue_many("q", 5).await?;
        let mut jobs = Vec::new();
        for _ in 0..5 {
            jobs.push(stage.claim_one("q").await?);
        }
        let before = stage.dump().await?;
        let mut transaction = stage.begin().await?;
        for (job, verdict) in jobs.iter().zip(verdicts()?) {
            let settled = transaction.settle_in(&job.receipt(), verdict).await?;
            ensure_eq!(T2, "receipt of the proof", settled.receipt(), job.receipt());
        }
        if !commit {
            transaction.rollback().await?;
            let difference = stage.dump().await?.difference(&before);
            ensure!(T2, difference.is_none(), "five verdicts were rolled back, but left {difference:?}");
            continue;
        }
        transaction.commit().await?;
        for (job, verdict) in jobs.iter().zip(verdicts()?) {
            let record = stage.record(job.id).await?;
            let right = match &record {
                Record::Live(job) => job.lease.is_none() && job.available_at > stage.now().await?,
                Record::Finished(_) => !matches!(verdict, Verdict::Retry { .. } | Verdict::Snooze { .. }),
            };
            ensure!(T2, right, "{verdict:?} was one of five that were committed, but the job is {record:?}");
        }
        ensure_eq!(T2, "finished jobs", stage.dump().await?.history.len(), 3);
    }
    Ok(())
}
