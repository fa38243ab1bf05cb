//! Locking a job on the caller's own transaction.
//!
//! While an open transaction has a job locked, calls on it wait, fail or are answered Pending, as the database has it. None of
//! them may take the job.

use std::time::Duration;

use leasehold_core::{
    BatchSize, HeartbeatOutcome, JobId, Json, Outcome as End, Receipt, ReceiptStatus, Record, SettleOutcome,
    StoreError, Verdict,
};

use super::interleave::{Started, start};
use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure, ensure_eq};
use crate::harness::{Isolation, Transaction};
use crate::stage::{HOUR, Stage, lease_for, new_job};

checks! { "transaction":
    a_locked_job_is_settled_at_every_level [T10] needs Transactions;
    heartbeats_of_a_locked_job_are_pending [T10] needs Transactions, ConcurrentWriters;
    a_locked_job_is_not_reclaimed [T10] needs Transactions;
    a_passed_lease_that_is_locked_is_pending [T10, H3] needs Transactions, ConcurrentWriters;
    a_locked_job_is_taken_by_no_other [T10] needs Transactions;
    a_stale_receipt_cannot_be_locked [T3, T6] needs Transactions;
    lock_in_outside_a_transaction_is_refused [T4] needs Transactions;
    a_lock_ends_with_its_transaction [T8] needs Transactions;
}

/// Much longer than any call takes. The transaction is not ended before the call, so a call that waits for it never ends.
const DEADLINE: Duration = Duration::from_secs(5);

/// One verdict removes the row, the other changes it.
fn two_verdicts() -> Outcome<[Verdict; 2]> {
    Ok([Verdict::done(), Verdict::snooze(HOUR)?])
}

/// Three heartbeats, one after the other, on a handle of their own.
async fn three_heartbeats(stage: &Stage, receipt: Receipt) -> Outcome<Vec<HeartbeatOutcome>> {
    let store = stage.connect().await?;
    let mut answers = Vec::new();
    for hours in 2..5 {
        match store.heartbeat(&[receipt], lease_for(hours * HOUR)?).await {
            Ok(outcomes) => answers.extend(outcomes),
            // The transaction holds up all other writers.
            Err(StoreError::Unavailable { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(answers)
}

async fn a_locked_job_is_settled_at_every_level(stage: Stage) -> Outcome {
    for level in Isolation::ALL {
        for verdict in two_verdicts()? {
            settles_after_heartbeats(&stage, level, verdict).await?;
        }
    }
    Ok(())
}

/// A transaction that locks first, is open during three heartbeats, and then settles.
async fn settles_after_heartbeats(stage: &Stage, level: Isolation, verdict: Verdict) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let mut transaction = stage.begin_at(level).await?;
    transaction.lock_in(job.receipt()).await?;
    transaction.write(&format!("effect of {}", job.id)).await?;
    let (other, receipt) = (stage.clone(), job.receipt());
    let mut beats = start(async move { three_heartbeats(&other, receipt).await }).await;
    if stage.store.capabilities().concurrent_writers {
        let answers = at_once(beats.finish(), "a heartbeat").await??;
        ensure_eq!(T10, "three heartbeats of a locked job", answers, [HeartbeatOutcome::Pending; 3]);
        beats = Started::Done(Ok(answers));
    }
    let settled = transaction.settle_in(&job.receipt(), verdict.clone()).await;
    ensure!(
        T10,
        settled.is_ok(),
        "at {level:?}, after lock_in and three heartbeats, {verdict:?} was answered {settled:?}"
    );
    let committed = transaction.commit().await;
    ensure!(
        T10,
        committed.is_ok(),
        "at {level:?} heartbeats of a locked job spoiled the commit: {committed:?}"
    );
    // Where every writer is held up, the heartbeats end after the transaction.
    drop(beats.finish().await?);
    let status = stage.store.receipts(&[job.receipt()]).await?;
    let settled = matches!(status[..], [ReceiptStatus::Finished { .. } | ReceiptStatus::Requeued]);
    ensure!(T10, settled, "at {level:?} {verdict:?} was committed, but the receipt is {status:?}");
    let effects = stage.ledger().await?;
    ensure!(
        T10,
        effects.contains(&format!("effect of {}", job.id)),
        "the transaction was committed, but the ledger has {effects:?}"
    );
    Ok(())
}

/// The answer of a call that must not wait for an open transaction.
async fn at_once<T>(call: impl Future<Output = T>, what: &str) -> Outcome<T> {
    let waits = || broken(format!("{what} waits for a transaction that has the job locked and is open"));
    tokio::time::timeout(DEADLINE, call).await.map_err(|_| waits())
}

fn broken(observed: String) -> Problem {
    Problem::Broken(leasehold_core::contract::T10, observed)
}

async fn heartbeats_of_a_locked_job_are_pending(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 2).await?;
    let jobs = stage.claim("q", 2).await?;
    let mut transaction = stage.begin().await?;
    transaction.lock_in(jobs[0].receipt()).await?;
    let store = stage.connect().await?;
    let receipts = [jobs[0].receipt(), jobs[1].receipt()];
    for round in 1..=3 {
        let beat = store.heartbeat(&receipts, lease_for(2 * HOUR)?);
        let answers = at_once(beat, "a heartbeat").await??;
        let right = matches!(answers[..], [HeartbeatOutcome::Pending, HeartbeatOutcome::Extended { .. }]);
        ensure!(T10, right, "heartbeat {round} of a locked job and a free one was answered {answers:?}");
    }
    ensure_eq!(T10, "the locked job", stage.live(jobs[0].id).await?, jobs[0]);
    transaction.rollback().await?;
    let answers = store.heartbeat(&receipts, lease_for(2 * HOUR)?).await?;
    let extended = answers.iter().all(|answer| matches!(answer, HeartbeatOutcome::Extended { .. }));
    ensure!(T10, extended, "after the transaction the heartbeat was answered {answers:?}");
    Ok(())
}

/// What a reclaim takes that may have to wait for a transaction.
async fn reclaim(stage: &Stage) -> Outcome<Vec<JobId>> {
    match stage.connect().await?.reclaim(BatchSize::MAX).await {
        Ok(reclaimed) => Ok(reclaimed.iter().map(|reclaimed| reclaimed.id).collect()),
        Err(StoreError::Unavailable { .. }) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

async fn a_locked_job_is_not_reclaimed(stage: Stage) -> Outcome {
    for attempts in [1, 5] {
        let stage = stage.fresh().await?;
        let job = stage.leased(new_job("q").max_attempts(attempts)).await?;
        stage.age(2 * HOUR).await?;
        let mut transaction = stage.begin().await?;
        let locked = transaction.lock_in(job.receipt()).await;
        ensure!(S10, locked.is_ok(), "a passed lease that was not reclaimed was locked: {locked:?}");
        let other = stage.clone();
        let other = start(async move { reclaim(&other).await }).await;
        let settled = transaction.settle_in(&job.receipt(), Verdict::done()).await;
        ensure!(T10, settled.is_ok(), "beside a reclaim the transaction's verdict was answered {settled:?}");
        let committed = transaction.commit().await;
        ensure!(T10, committed.is_ok(), "beside a reclaim the commit was answered {committed:?}");
        let reclaimed = other.finish().await?;
        ensure!(T10, reclaimed.is_empty(), "the locked job {} was reclaimed: {reclaimed:?}", job.id);
        let outcome = stage.finished(job.id).await?.outcome;
        ensure!(T10, matches!(outcome, End::Completed { .. }), "the job ended as {outcome:?}");
    }
    Ok(())
}

async fn a_passed_lease_that_is_locked_is_pending(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 2).await?;
    let jobs = stage.claim("q", 2).await?;
    stage.age(2 * HOUR).await?;
    let mut transaction = stage.begin().await?;
    transaction.lock_in(jobs[0].receipt()).await?;
    let store = stage.connect().await?;
    let receipts = [jobs[0].receipt(), jobs[1].receipt()];
    let answers = at_once(store.heartbeat(&receipts, lease_for(HOUR)?), "a heartbeat").await??;
    ensure_eq!(
        T10,
        "passed leases, one locked, one free",
        answers,
        [HeartbeatOutcome::Pending, HeartbeatOutcome::Lost]
    );
    let stale = Receipt { epoch: jobs[0].epoch.next(), ..jobs[0].receipt() };
    let answers = at_once(store.heartbeat(&[stale], lease_for(HOUR)?), "a heartbeat").await??;
    ensure_eq!(H4, "a stale receipt of a locked job", answers, [HeartbeatOutcome::Lost]);
    let reclaimed = at_once(reclaim(&stage), "a reclaim").await??;
    ensure_eq!(T10, "reclaimed beside a locked job", reclaimed, [jobs[1].id]);
    transaction.rollback().await?;
    let answers = store.heartbeat(&receipts, lease_for(HOUR)?).await?;
    ensure_eq!(H3, "after the rollback", answers, [HeartbeatOutcome::Lost, HeartbeatOutcome::Lost]);
    ensure_eq!(R2, "reclaimed after the rollback", reclaim(&stage).await?, [jobs[0].id]);
    Ok(())
}

/// What else could take a job.
#[derive(Debug, Clone, Copy)]
enum Rival {
    Verdict,
    Discard,
    RetryLater,
    Transaction,
}

impl Rival {
    /// Whether it took the job.
    async fn act(self, stage: &Stage, receipt: Receipt) -> Outcome<bool> {
        let store = stage.connect().await?;
        let answer = match self {
            Self::Verdict => {
                let outcomes = store.settle(&[(receipt, Verdict::dead("rival"))]).await;
                outcomes.map(|outcomes| {
                    outcomes.iter().any(|outcome| matches!(outcome, SettleOutcome::Settled(_)))
                })
            }
            Self::Discard => store.discard(receipt.job, Json::null()).await.map(|()| true),
            Self::RetryLater => {
                store.retry_later(receipt.job, leasehold_core::Schedule::Now).await.map(|()| true)
            }
            Self::Transaction => {
                let mut transaction = stage.begin().await?;
                let locked = transaction.lock_in(receipt).await;
                transaction.rollback().await?;
                locked.map(|()| true)
            }
        };
        match answer {
            Err(
                StoreError::LeaseLost { .. }
                | StoreError::Conflict { .. }
                | StoreError::NotFound(_)
                | StoreError::Unavailable { .. },
            ) => Ok(false),
            answer => Ok(answer?),
        }
    }
}

async fn a_locked_job_is_taken_by_no_other(stage: Stage) -> Outcome {
    for rival in [Rival::Verdict, Rival::Discard, Rival::RetryLater, Rival::Transaction] {
        let job = stage.leased(new_job("q")).await?;
        let mut transaction = stage.begin().await?;
        transaction.lock_in(job.receipt()).await?;
        let (other, receipt) = (stage.clone(), job.receipt());
        let other = start(async move { rival.act(&other, receipt).await }).await;
        let settled = transaction.settle_in(&job.receipt(), Verdict::done()).await;
        ensure!(
            T10,
            settled.is_ok(),
            "beside a {rival:?} the transaction's verdict was answered {settled:?}"
        );
        let committed = transaction.commit().await;
        ensure!(T10, committed.is_ok(), "beside a {rival:?} the commit was answered {committed:?}");
        let taken = other.finish().await?;
        ensure!(T10, !taken, "a {rival:?} took a job that a transaction had locked");
        let outcome = stage.finished(job.id).await?.outcome;
        ensure!(
            T10,
            matches!(outcome, End::Completed { .. }),
            "beside a {rival:?} the job ended as {outcome:?}"
        );
    }
    Ok(())
}

async fn a_stale_receipt_cannot_be_locked(stage: Stage) -> Outcome {
    let released = stage.leased(new_job("released")).await?;
    stage.settle(released.receipt(), Verdict::release()).await?;
    let again = stage.leased(new_job("again")).await?;
    stage.settle(again.receipt(), Verdict::release()).await?;
    let good = stage.claim_one("again").await?;
    let finished = stage.leased(new_job("finished")).await?;
    stage.settle(finished.receipt(), Verdict::done()).await?;
    let later = Receipt { epoch: good.epoch.next(), ..good.receipt() };
    let unknown = Receipt { job: JobId::new(i64::MAX), ..good.receipt() };
    let before = stage.dump().await?;

    let mut transaction = stage.begin().await?;
    transaction.write("first").await?;
    for receipt in [released.receipt(), again.receipt(), finished.receipt(), later, unknown] {
        is_lost(&mut *transaction, receipt).await?;
    }
    transaction.rollback().await?;
    let difference = stage.dump().await?.difference(&before);
    ensure!(T3, difference.is_none(), "lock_in with stale receipts changed {difference:?}");

    let mut transaction = stage.begin().await?;
    is_lost(&mut *transaction, again.receipt()).await?;
    transaction.write("second").await?;
    for _ in 0..2 {
        let locked = transaction.lock_in(good.receipt()).await;
        ensure!(T6, locked.is_ok(), "after a stale receipt a good one was answered {locked:?}");
    }
    let _settled = transaction.settle_in(&good.receipt(), Verdict::done()).await?;
    is_lost(&mut *transaction, good.receipt()).await?;
    if let Err(error) = transaction.commit().await {
        ensure!(T6, false, "after stale receipts the commit failed: {error}");
    }
    stage.finished(good.id).await?;
    ensure_eq!(T6, "ledger", stage.ledger().await?, ["second"]);
    Ok(())
}

async fn is_lost(transaction: &mut dyn Transaction, receipt: Receipt) -> Outcome {
    let answer = transaction.lock_in(receipt).await;
    let lost = matches!(&answer, Err(StoreError::LeaseLost { receipt: lost, .. }) if *lost == receipt);
    ensure!(T3, lost, "lock_in with the stale receipt {receipt} was answered {answer:?}");
    Ok(())
}

async fn lock_in_outside_a_transaction_is_refused(stage: Stage) -> Outcome {
    let Some(mut connection) = stage.no_transaction().await? else {
        return Err(Problem::NotApplicable("a connection of this backend always is a transaction"));
    };
    let job = stage.leased(new_job("q")).await?;
    let answer = connection.lock_in(job.receipt()).await;
    let refused = matches!(answer, Err(StoreError::NoTransaction { .. }));
    ensure!(T4, refused, "lock_in outside a transaction was answered {answer:?}");
    ensure_eq!(T4, "the job", stage.live(job.id).await?, job);
    stage.settle(job.receipt(), Verdict::done()).await
}

/// How a transaction ends that has locked and not settled.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Commit,
    Rollback,
    Drop,
}

async fn a_lock_ends_with_its_transaction(stage: Stage) -> Outcome {
    for ending in [Ending::Commit, Ending::Rollback, Ending::Drop] {
        let job = stage.leased(new_job("q")).await?;
        let mut transaction = stage.begin().await?;
        transaction.lock_in(job.receipt()).await?;
        match ending {
            Ending::Commit => transaction.commit().await?,
            Ending::Rollback => transaction.rollback().await?,
            Ending::Drop => drop(transaction),
        }
        let record = stage.record(job.id).await?;
        let same = matches!(&record, Record::Live(now) if *now == job);
        ensure!(T8, same, "after lock_in and {ending:?} {job:?} became {record:?}");
        // A lock that is left behind would be answered Pending for ever.
        let outcome = stage.try_settle(job.receipt(), Verdict::done()).await?;
        ensure!(T8, !outcome.is_lost(), "after lock_in and {ending:?} a verdict was answered {outcome:?}");
    }
    Ok(())
}
