//! Two at once, in a fixed order of steps: a transaction that is open while another acts.
//!
//! What the other gets depends on the database: some make it wait for the commit, some let it go first and fail the
//! commit. Either is right, as long as exactly one of the two counts.

use std::time::Duration;

use leasehold_core::{
    BatchSize, HeartbeatOutcome, IdempotencyKey, Job, Json, Receipt, Record, SettleOutcome, StoreError,
    Verdict,
};
use tokio::task::JoinHandle;

use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job, request};

checks! { "interleave":
    a_transaction_and_a_verdict [T7] needs Transactions;
    a_transaction_and_a_reclaim [T7] needs Transactions;
    a_transaction_and_a_claim [T7] needs Transactions;
    a_transaction_and_an_administrator [T7] needs Transactions;
    a_transaction_and_a_heartbeat [T7] needs Transactions;
    two_transactions_with_one_receipt [T7] needs Transactions;
    a_worker_that_lost_its_lease_writes_nothing [T7, T3] needs Transactions;
    racing_transactions_write_once [T7] needs Transactions;
    an_open_transaction_holds_up_no_other_heartbeat [H7] needs Transactions, ConcurrentWriters;
    a_commit_that_fails_leaves_nothing [T7, T1, T2, T5] needs Transactions;
    a_job_that_is_being_settled_hides_no_other [R5] needs Transactions;
}

/// How long to wait for one that may be waiting for us.
const PATIENCE: Duration = Duration::from_millis(250);

/// Starts `other` and gives it a chance to finish before we go on.
pub(super) async fn start<T: Send + 'static>(
    other: impl Future<Output = Outcome<T>> + Send + 'static,
) -> Started<T> {
    let mut task = tokio::spawn(other);
    match tokio::time::timeout(PATIENCE, &mut task).await {
        Ok(Ok(answer)) => Started::Done(answer),
        Ok(Err(error)) => Started::Done(Err(Problem::Harness(error.into()))),
        Err(_) => Started::Waiting(task),
    }
}

pub(super) enum Started<T> {
    Done(Outcome<T>),
    Waiting(JoinHandle<Outcome<T>>),
}

impl<T> Started<T> {
    pub(super) async fn finish(self) -> Outcome<T> {
        match self {
            Self::Done(answer) => answer,
            Self::Waiting(task) => task.await.map_err(|error| Problem::Harness(error.into()))?,
        }
    }
}

/// Opens a transaction that writes one effect and settles the job with Done, but does not commit yet.
async fn settling(stage: &Stage, job: &Job, effect: &str) -> Outcome<Box<dyn crate::harness::Transaction>> {
    let mut transaction = stage.begin().await?;
    transaction.write(effect).await?;
    let _pending = transaction.settle_in(&job.receipt(), Verdict::done()).await?;
    Ok(transaction)
}

/// Exactly one of the two counts, and the effect is there exactly if it was the transaction.
async fn exactly_one(stage: &Stage, committed: bool, other: bool, what: &str) -> Outcome {
    let ledger = stage.ledger().await?;
    let effects = ledger.iter().filter(|entry| *entry == "effect").count();
    ensure!(
        T7,
        effects == usize::from(committed),
        "committed: {committed}, but the effect is there {effects} times"
    );
    ensure!(
        T7,
        committed != other,
        "{what}: the transaction counted: {committed}, the other counted: {other}"
    );
    Ok(())
}

async fn a_transaction_and_a_verdict(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let transaction = settling(&stage, &job, "effect").await?;
    let (store, receipt) = (stage.connect().await?, job.receipt());
    let other = start(async move { Ok(store.settle(&[(receipt, Verdict::snooze(HOUR)?)]).await?) }).await;
    let committed = transaction.commit().await.is_ok();
    let other = other.finish().await?.iter().any(|outcome| matches!(outcome, SettleOutcome::Settled(_)));
    exactly_one(&stage, committed, other, "a verdict with the same receipt").await?;
    let finished = matches!(stage.record(job.id).await?, Record::Finished(_));
    ensure_eq!(T7, "the job is finished", finished, committed);
    Ok(())
}

async fn a_transaction_and_a_reclaim(stage: Stage) -> Outcome {
    for attempts in [1, 5] {
        let stage = stage.fresh().await?;
        let job = stage.leased(new_job("q").max_attempts(attempts)).await?;
        stage.age(2 * HOUR).await?;
        let transaction = settling(&stage, &job, "effect").await?;
        let store = stage.connect().await?;
        let other = start(async move { Ok(store.reclaim(BatchSize::MAX).await?) }).await;
        let committed = transaction.commit().await.is_ok();
        let other = !other.finish().await?.is_empty();
        exactly_one(&stage, committed, other, "a reclaim").await?;
        let dump = stage.dump().await?;
        ensure_eq!(T7, "places in which the job is", dump.jobs.len() + dump.history.len(), 1);
    }
    Ok(())
}

async fn a_transaction_and_a_claim(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    stage.enqueue(new_job("q").delay(5 * HOUR)).await?;
    let transaction = settling(&stage, &job, "effect").await?;
    let store = stage.connect().await?;
    let other = start(async move { Ok(store.dequeue(&request("q", 10)?).await?) }).await;
    let committed = transaction.commit().await;
    let leased = other.finish().await?;
    ensure!(T7, leased.is_empty(), "a job that is being settled was leased: {leased:?}");
    ensure!(T7, committed.is_ok(), "a claim spoiled the commit: {committed:?}");
    stage.finished(job.id).await?;
    Ok(())
}

async fn a_transaction_and_an_administrator(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let transaction = settling(&stage, &job, "effect").await?;
    let (store, id) = (stage.connect().await?, job.id);
    let other = start(async move {
        match store.discard(id, Json::null()).await {
            Ok(()) => Ok(true),
            Err(StoreError::Conflict { .. } | StoreError::NotFound(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    })
    .await;
    let committed = transaction.commit().await.is_ok();
    let other = other.finish().await?;
    exactly_one(&stage, committed, other, "a discard").await
}

async fn a_transaction_and_a_heartbeat(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let transaction = settling(&stage, &job, "effect").await?;
    let (store, receipt) = (stage.connect().await?, job.receipt());
    let other = start(async move { Ok(store.heartbeat(&[receipt], lease_for(2 * HOUR)?).await?) }).await;
    let committed = transaction.commit().await;
    let answers = other.finish().await?;
    ensure!(T7, answers.len() == 1, "one receipt was answered {answers:?}");
    ensure!(T7, committed.is_ok(), "the worker's own heartbeat spoiled its commit: {committed:?}");
    stage.finished(job.id).await?;
    Ok(())
}

async fn two_transactions_with_one_receipt(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let transaction = settling(&stage, &job, "effect").await?;
    let (site, rival) = (stage.clone(), job.clone());
    let other = start(async move { commit_effect(&site, rival.receipt(), "rival").await }).await;
    let committed = transaction.commit().await.is_ok();
    let other = other.finish().await?;
    exactly_one(&stage, committed, other, "a second transaction").await?;
    ensure_eq!(T7, "effects in all", stage.ledger().await?.len(), 1);
    Ok(())
}

/// A whole transaction: writes one effect, settles, commits. Whether it counted.
async fn commit_effect(stage: &Stage, receipt: Receipt, effect: &str) -> Outcome<bool> {
    let mut transaction = stage.begin().await?;
    transaction.write(effect).await?;
    match transaction.settle_in(&receipt, Verdict::done()).await {
        Ok(_settled) => Ok(transaction.commit().await.is_ok()),
        // The database may also say that the other was first by a conflict.
        Err(StoreError::LeaseLost { .. } | StoreError::Conflict { .. } | StoreError::Unavailable { .. }) => {
            transaction.rollback().await?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

async fn a_worker_that_lost_its_lease_writes_nothing(stage: Stage) -> Outcome {
    let slow = stage.leased(new_job("q")).await?;
    stage.age(2 * HOUR).await?;
    stage.reclaim().await?;
    let quick = stage.claim_one("q").await?;
    let late = commit_effect(&stage, slow.receipt(), "effect of the slow worker").await?;
    ensure!(T7, !late, "the slow worker's transaction counted");
    let good = commit_effect(&stage, quick.receipt(), "effect of the quick worker").await?;
    ensure!(T7, good, "the holder's transaction did not count");
    let later = commit_effect(&stage, slow.receipt(), "effect of the slow worker").await?;
    ensure!(T7, !later, "the slow worker's transaction counted after the job was done");
    ensure_eq!(T7, "ledger", stage.ledger().await?, ["effect of the quick worker"]);
    Ok(())
}

async fn racing_transactions_write_once(stage: Stage) -> Outcome {
    for round in 0..12 {
        let queue = format!("q{round}");
        let slow = stage.leased(new_job(&queue)).await?;
        let mut receipts = vec![slow.receipt(); 2];
        if round % 2 == 0 {
            stage.age(2 * HOUR).await?;
            stage.reclaim().await?;
            receipts.push(stage.claim_one(&queue).await?.receipt());
        }
        let mut tasks = tokio::task::JoinSet::new();
        for receipt in receipts {
            let (stage, effect) = (stage.clone(), format!("effect {round}"));
            tasks.spawn(async move { commit_effect(&stage, receipt, &effect).await });
        }
        let mut counted = 0;
        while let Some(ended) = tasks.join_next().await {
            counted += usize::from(ended.map_err(|error| Problem::Harness(error.into()))??);
        }
        let effects =
            stage.ledger().await?.iter().filter(|entry| **entry == format!("effect {round}")).count();
        ensure!(
            T7,
            counted <= 1 && effects == counted,
            "round {round}: {counted} transactions counted, {effects} effects"
        );
        let finished = matches!(stage.record(slow.id).await?, Record::Finished(_));
        ensure!(
            T7,
            finished == (effects == 1),
            "round {round}: {effects} effects, the job is finished: {finished}"
        );
        settle_rest(&stage, &queue).await?;
    }
    Ok(())
}

/// If every transaction of a round gave way to another, the job is still there.
async fn settle_rest(stage: &Stage, queue: &str) -> Outcome {
    for job in stage.dump().await?.jobs.into_iter().filter(|job| job.queue.as_str() == queue) {
        let outcomes = stage.store.settle(&[(job.receipt(), Verdict::done())]).await?;
        ensure!(
            T7,
            !outcomes.iter().any(SettleOutcome::is_lost),
            "nobody settled {job:?}, but its receipt is stale"
        );
    }
    Ok(())
}

async fn an_open_transaction_holds_up_no_other_heartbeat(stage: Stage) -> Outcome {
    let settling_job = stage.leased(new_job("q")).await?;
    let other_job = stage.leased(new_job("q")).await?;
    let transaction = settling(&stage, &settling_job, "effect").await?;
    let receipts = [settling_job.receipt(), other_job.receipt()];
    let store = stage.connect().await?;
    let beat = async move { Ok(store.heartbeat(&receipts, lease_for(2 * HOUR)?).await?) };
    // No deadline for a fast store: one that waits for the transaction waits for ever, since we do not commit.
    let answers = match start(beat).await {
        Started::Done(answers) => answers?,
        Started::Waiting(mut task) => match tokio::time::timeout(20 * PATIENCE, &mut task).await {
            Ok(ended) => ended.map_err(|error| Problem::Harness(error.into()))??,
            Err(_) => {
                task.abort();
                ensure!(
                    H7,
                    false,
                    "the heartbeat of two jobs waits for a transaction that settles one of them"
                );
                return Ok(());
            }
        },
    };
    ensure_eq!(H5, "answers", answers.len(), 2);
    let extended = matches!(answers[1], HeartbeatOutcome::Extended { left, .. } if left == 2 * HOUR);
    ensure!(H7, extended, "the job beside the one that is being settled was answered {:?}", answers[1]);
    let known = matches!(answers[0], HeartbeatOutcome::Extended { .. } | HeartbeatOutcome::Pending);
    ensure!(H7, known, "the job that is being settled was answered {:?}", answers[0]);
    let committed = transaction.commit().await;
    ensure!(T7, committed.is_ok(), "the heartbeat spoiled the commit: {committed:?}");
    Ok(())
}

/// What can come between a transaction and its commit.
#[derive(Debug, Clone, Copy)]
enum Rival {
    Verdict,
    Duplicate,
    Once,
}

async fn a_commit_that_fails_leaves_nothing(stage: Stage) -> Outcome {
    for rival in [Rival::Verdict, Rival::Duplicate, Rival::Once] {
        let stage = stage.fresh().await?;
        let contested = stage.leased(new_job("q")).await?;
        let other = stage.leased(new_job("q")).await?;
        let (shared, own) = (IdempotencyKey::new("shared")?, IdempotencyKey::new("own")?);
        let mut transaction = stage.begin().await?;
        transaction.write("effect").await?;
        let plain = transaction.enqueue_in(&[new_job("new").build()?]).await?[0].id;
        ensure_eq!(T5, "once", transaction.once_in(&own).await?, true);
        let _other = transaction.settle_in(&other.receipt(), Verdict::done()).await?;
        match rival {
            Rival::Verdict => {
                let _contested = transaction.settle_in(&contested.receipt(), Verdict::done()).await?;
            }
            Rival::Duplicate => {
                drop(transaction.enqueue_in(&[new_job("new").unique_key("k").build()?]).await?);
            }
            Rival::Once => ensure_eq!(T5, "once", transaction.once_in(&shared).await?, true),
        }
        let (site, receipt) = (stage.clone(), contested.receipt());
        let task = start(async move {
            match rival {
                Rival::Verdict => drop(site.store.settle(&[(receipt, Verdict::snooze(HOUR)?)]).await?),
                Rival::Duplicate => {
                    drop(site.store.enqueue(&[new_job("new").unique_key("k").build()?]).await?);
                }
                Rival::Once => {
                    let mut rival = site.begin().await?;
                    // Whatever the database says to that: what counts is what the first one leaves.
                    if rival.once_in(&shared).await.is_ok() {
                        drop(rival.commit().await);
                    }
                }
            }
            Ok(())
        })
        .await;
        let committed = transaction.commit().await.is_ok();
        task.finish().await?;
        let mut later = stage.begin().await?;
        let seen = [
            ("the effect", stage.ledger().await? == ["effect"]),
            ("the new job", stage.store.get(plain).await?.is_some()),
            ("the other verdict", matches!(stage.record(other.id).await?, Record::Finished(_))),
            ("the once-key", !later.once_in(&own).await?),
        ];
        later.rollback().await?;
        let right = seen.iter().all(|(_, there)| *there == committed);
        ensure!(
            T7,
            right,
            "with a rival {rival:?} the transaction committed: {committed}; there is {seen:?}"
        );
    }
    Ok(())
}

async fn a_job_that_is_being_settled_hides_no_other(stage: Stage) -> Outcome {
    let first = stage.leased(new_job("q")).await?;
    stage.age(HOUR / 2).await?;
    let second = stage.leased(new_job("q")).await?;
    stage.age(2 * HOUR).await?;
    let transaction = settling(&stage, &first, "effect").await?;
    let store = stage.connect().await?;
    let task = start(async move {
        let mut reclaimed = Vec::new();
        for _ in 0..3 {
            reclaimed.extend(store.reclaim(BatchSize::ONE).await?);
        }
        Ok(reclaimed)
    })
    .await;
    let committed = transaction.commit().await.is_ok();
    let reclaimed: Vec<_> = task.finish().await?.iter().map(|reclaimed| reclaimed.id).collect();
    ensure!(
        R5,
        reclaimed.contains(&second.id),
        "in three calls for one job each {reclaimed:?} were reclaimed, {} not, while {} was being settled",
        second.id,
        first.id
    );
    ensure_eq!(T7, "the job being settled was reclaimed", reclaimed.contains(&first.id), !committed);
    Ok(())
}
