//! Verdicts on a job that an open transaction is settling: no call waits for that transaction.

use std::time::Duration;

use leasehold_core::{
    BatchSize, Job, Json, Receipt, ReceiptStatus, Record, SettleOutcome, StoreError, Verdict,
};

use super::transaction::verdicts;
use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::harness::Transaction;
use crate::stage::{HOUR, Stage, new_job};

checks! { "locked":
    the_other_items_of_a_batch_count [S14] needs Transactions, ConcurrentWriters;
    a_single_verdict_does_not_wait [S14] needs Transactions, ConcurrentWriters;
    the_thin_forms_do_not_wait [S14] needs Transactions, ConcurrentWriters;
    a_stale_receipt_beside_a_locked_job_is_lost [S14, S2] needs Transactions, ConcurrentWriters;
    a_locked_job_holds_up_no_other_reclaim [R10] needs Transactions, ConcurrentWriters;
}

/// Much longer than any call takes. The transaction is not ended before the call, so a call that waits for it never ends.
const DEADLINE: Duration = Duration::from_secs(5);

/// The answer of a call that must not wait for an open transaction.
async fn at_once<T>(call: impl Future<Output = T>, what: &str) -> Outcome<T> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(answer) => Ok(answer),
        Err(_) => {
            Err(broken(format!("{what} waits for a transaction that has one of its jobs locked and is open")))
        }
    }
}

fn broken(observed: String) -> crate::failure::Problem {
    crate::failure::Problem::Broken(leasehold_core::contract::S14, observed)
}

/// How the transaction that has the job ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Commit,
    Rollback,
}

/// The verdicts of a batch of four: each sort for all of them, different results, and several sorts in one batch.
fn batches() -> Outcome<Vec<Vec<Verdict>>> {
    let mut batches: Vec<Vec<Verdict>> = verdicts()?.into_iter().map(|verdict| vec![verdict; 4]).collect();
    batches.push((1..=4).map(|number| Verdict::done_with(&number)).collect::<Result<_, _>>()?);
    batches.push(vec![
        Verdict::done(),
        Verdict::retry_after("again", HOUR)?,
        Verdict::dead("no"),
        Verdict::snooze(HOUR)?,
    ]);
    Ok(batches)
}

/// Opens a transaction that settles `job` and stays open. One verdict removes the row, the other changes it.
async fn open(stage: &Stage, job: &Job, end: End) -> Outcome<Box<dyn Transaction>> {
    let mut transaction = stage.begin().await?;
    let verdict = match end {
        End::Commit => Verdict::done(),
        End::Rollback => Verdict::snooze(HOUR)?,
    };
    let _settled = transaction.settle_in(&job.receipt(), verdict).await?;
    Ok(transaction)
}

async fn the_other_items_of_a_batch_count(stage: Stage) -> Outcome {
    for (number, verdicts) in batches()?.into_iter().enumerate() {
        for (place, end) in [(0, End::Commit), (2, End::Rollback), (3, End::Commit)] {
            let name = format!("q{number}:{place}");
            stage.enqueue_many(&name, verdicts.len()).await?;
            let jobs = stage.claim(&name, 4).await?;
            ensure_eq!(D13, "leased", jobs.len(), verdicts.len());
            let items: Vec<_> = jobs.iter().map(Job::receipt).zip(verdicts.clone()).collect();
            let transaction = open(&stage, &jobs[place], end).await?;
            let store = stage.connect().await?;
            let outcomes = at_once(store.settle(&items), "settle of a batch").await??;
            ensure_eq!(S1, "number of outcomes", outcomes.len(), items.len());
            others_count(&stage, &items, &outcomes, place).await?;
            locked(&stage, &jobs[place], &items[place], &outcomes[place]).await?;
            then(&stage, transaction, end, &items[place], &outcomes[place]).await?;
        }
    }
    Ok(())
}

/// Every item but the one at `place` was applied.
async fn others_count(
    stage: &Stage,
    items: &[(Receipt, Verdict)],
    outcomes: &[SettleOutcome],
    place: usize,
) -> Outcome {
    let receipts: Vec<Receipt> = items.iter().map(|(receipt, _)| *receipt).collect();
    let statuses = stage.store.receipts(&receipts).await?;
    for (index, (receipt, verdict)) in items.iter().enumerate().filter(|(index, _)| *index != place) {
        let (outcome, status) = (&outcomes[index], statuses[index]);
        let applied = matches!(outcome, SettleOutcome::Settled(settled) if settled.receipt() == *receipt);
        ensure!(S14, applied, "{verdict:?} beside a locked job was answered {outcome:?}");
        let held = matches!(status, ReceiptStatus::Held { .. });
        ensure!(
            S14,
            !held,
            "{verdict:?} beside a locked job was answered {outcome:?}, but its lease is held"
        );
    }
    Ok(())
}

/// The locked job was answered Pending and is what it was; or it is not locked at all, and the verdict counts.
async fn locked(
    stage: &Stage,
    before: &Job,
    (_, verdict): &(Receipt, Verdict),
    outcome: &SettleOutcome,
) -> Outcome {
    ensure!(S14, !outcome.is_lost(), "{verdict:?} on a job that is locked and held was answered {outcome:?}");
    if outcome.is_pending() {
        let now = stage.store.get(before.id).await?;
        let same = matches!(&now, Some(Record::Live(now)) if now == before);
        ensure!(S14, same, "{verdict:?} was answered Pending, but {before:?} became {now:?}");
    }
    Ok(())
}

/// Ends the transaction and gives the verdict again.
async fn then(
    stage: &Stage,
    transaction: Box<dyn Transaction>,
    end: End,
    (receipt, verdict): &(Receipt, Verdict),
    outcome: &SettleOutcome,
) -> Outcome {
    let committed = match end {
        End::Commit => transaction.commit().await.is_ok(),
        End::Rollback => {
            transaction.rollback().await?;
            false
        }
    };
    let right = matches!(end, End::Rollback) || committed == outcome.is_pending();
    ensure!(T7, right, "{verdict:?} was answered {outcome:?}, and the transaction committed: {committed}");
    let again = stage.try_settle(*receipt, verdict.clone()).await?;
    let lost = committed || !outcome.is_pending();
    ensure!(
        S14,
        again.is_lost() == lost,
        "{verdict:?} was answered {outcome:?}, the transaction ended by {end:?}, then the answer was {again:?}"
    );
    Ok(())
}

async fn a_single_verdict_does_not_wait(stage: Stage) -> Outcome {
    for (number, verdict) in verdicts()?.into_iter().enumerate() {
        for end in [End::Commit, End::Rollback] {
            let job = stage.leased(new_job(&format!("q{number}"))).await?;
            let transaction = open(&stage, &job, end).await?;
            let (store, item) = (stage.connect().await?, (job.receipt(), verdict.clone()));
            let outcomes = at_once(store.settle(std::slice::from_ref(&item)), "settle of one job").await??;
            ensure_eq!(S1, "number of outcomes", outcomes.len(), 1);
            locked(&stage, &job, &item, &outcomes[0]).await?;
            then(&stage, transaction, end, &item, &outcomes[0]).await?;
        }
    }
    Ok(())
}

async fn the_thin_forms_do_not_wait(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let transaction = open(&stage, &job, End::Rollback).await?;
    let (store, receipt) = (stage.connect().await?, job.receipt());
    let outcomes = at_once(store.release(&[receipt]), "release").await??;
    if !outcomes.iter().any(SettleOutcome::is_pending) {
        // This store locks nothing: the verdict has counted.
        ensure!(S14, outcomes.len() == 1 && !outcomes[0].is_lost(), "release was answered {outcomes:?}");
        transaction.rollback().await?;
        return Ok(());
    }
    let ack = at_once(store.ack(&receipt, Json::null()), "ack").await?;
    let nack = at_once(store.nack(&receipt, Json::null()), "nack").await?;
    for answer in [ack, nack] {
        let retryable = answer.as_ref().is_err_and(StoreError::is_retryable);
        ensure!(S14, retryable, "ack or nack of a locked job was answered {answer:?}");
    }
    ensure_eq!(S14, "the job", stage.live(job.id).await?, job);
    transaction.rollback().await?;
    let _settled = stage.store.ack(&receipt, Json::null()).await?;
    Ok(())
}

async fn a_stale_receipt_beside_a_locked_job_is_lost(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 3).await?;
    let jobs = stage.claim("q", 3).await?;
    let stale = Receipt { epoch: jobs[0].epoch.next(), ..jobs[0].receipt() };
    stage.settle(jobs[1].receipt(), Verdict::release()).await?;
    let transaction = open(&stage, &jobs[0], End::Rollback).await?;
    let store = stage.connect().await?;
    for done in [Verdict::done(), Verdict::snooze(HOUR)?] {
        let items = [(stale, done.clone()), (jobs[1].receipt(), done)];
        let outcomes = at_once(store.settle(&items), "settle of stale receipts").await??;
        let lost: Vec<_> = outcomes.iter().map(SettleOutcome::is_lost).collect();
        ensure!(S2, lost == [true, true], "stale receipts, one of them of a locked job: {outcomes:?}");
    }
    transaction.rollback().await?;
    stage.settle(jobs[0].receipt(), Verdict::done()).await
}

/// One passed lease is being settled by a transaction that stays open; the others are there for the taking.
async fn a_locked_job_holds_up_no_other_reclaim(stage: Stage) -> Outcome {
    for (end, attempts) in [(End::Commit, 5), (End::Rollback, 1)] {
        let stage = stage.fresh().await?;
        let mut jobs = Vec::new();
        for _ in 0..3 {
            jobs.push(stage.leased(new_job("q").max_attempts(attempts)).await?);
        }
        stage.age(2 * HOUR).await?;
        let transaction = open(&stage, &jobs[1], end).await?;
        let others = [jobs[0].id, jobs[2].id];
        let reclaim = stage.store.reclaim(BatchSize::MAX);
        let Ok(answer) = tokio::time::timeout(DEADLINE, reclaim).await else {
            ensure!(
                R10,
                false,
                "a reclaim waits for a transaction that is settling one of the passed leases"
            );
            return Ok(());
        };
        let mut reclaimed: Vec<_> = answer?.iter().map(|reclaimed| reclaimed.id).collect();
        // Without a lock of its own the transaction may come second: then its commit fails.
        reclaimed.retain(|id| *id != jobs[1].id);
        reclaimed.sort_unstable();
        ensure_eq!(R10, "reclaimed beside a job that is being settled", reclaimed, others);
        transaction.rollback().await?;
    }
    Ok(())
}
