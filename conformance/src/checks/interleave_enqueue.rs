//! Two at once, of which one enqueues or remembers in a transaction that is still open.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::contract::E13;
use leasehold_core::{BatchSize, IdempotencyKey, NewJob, Redrive, Store, StoreError, Verdict};

use super::interleave::{Started, start};
use super::scene::dead_letter;
use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure, ensure_eq};
use crate::stage::{Stage, new_job, request};

checks! { "interleave":
    a_rolled_back_winner_leaves_a_job [T1, E5] needs Transactions;
    a_committed_winner_leaves_one_job [T1, E5] needs Transactions;
    two_transactions_with_one_once [T5] needs Transactions;
    a_claim_does_not_see_an_uncommitted_job [T1] needs Transactions;
    ids_of_open_transactions_are_not_given_again [E10, T1] needs Transactions;
    rivals_for_a_key_hold_up_no_other_job [E13] needs Transactions, ConcurrentWriters;
    a_transaction_goes_by_the_time_of_each_call [C4, T9] needs Transactions;
}

async fn a_rolled_back_winner_leaves_a_job(stage: Stage) -> Outcome {
    let mut transaction = stage.begin().await?;
    let new = || new_job("q").unique_key("k").build();
    transaction.enqueue_in(&[new()?]).await?;
    let (store, job) = (stage.connect().await?, new()?);
    let other = start(async move { Ok(store.enqueue(&[job]).await?) }).await;
    transaction.rollback().await?;
    let answer = other.finish().await?[0];
    let record = stage.store.get(answer.id).await?;
    ensure!(
        E5,
        record.is_some(),
        "the winner was rolled back; the other was answered {answer:?}, which is not there"
    );
    ensure!(E5, !answer.deduplicated, "the only job with the key was answered {answer:?}");
    Ok(())
}

async fn a_committed_winner_leaves_one_job(stage: Stage) -> Outcome {
    let mut transaction = stage.begin().await?;
    let new = || new_job("q").unique_key("k").build();
    let first = transaction.enqueue_in(&[new()?]).await?[0];
    let (store, job) = (stage.connect().await?, new()?);
    let other = start(async move { Ok(store.enqueue(&[job]).await?) }).await;
    let committed = transaction.commit().await.is_ok();
    let second = other.finish().await?[0];
    let jobs = stage.dump().await?.jobs;
    ensure!(E5, jobs.len() == 1, "live jobs with one key: {jobs:?}");
    let winner = if committed { first.id } else { second.id };
    ensure_eq!(T1, "the live job", jobs[0].id, winner);
    ensure_eq!(E5, "the job with which the other was answered", second.id, jobs[0].id);
    ensure_eq!(E5, "deduplicated", second.deduplicated, committed);
    Ok(())
}

async fn two_transactions_with_one_once(stage: Stage) -> Outcome {
    let key = IdempotencyKey::new("charge")?;
    let mut transaction = stage.begin().await?;
    transaction.write("effect").await?;
    ensure_eq!(T5, "first", transaction.once_in(&key).await?, true);
    let (site, same) = (stage.clone(), key.clone());
    let other = start(async move {
        let mut transaction = site.begin().await?;
        match transaction.once_in(&same).await {
            Ok(true) => {
                transaction.write("effect").await?;
                Ok(transaction.commit().await.is_ok())
            }
            Ok(false) | Err(StoreError::Conflict { .. } | StoreError::Unavailable { .. }) => {
                transaction.rollback().await?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    })
    .await;
    let committed = transaction.commit().await.is_ok();
    let other = other.finish().await?;
    ensure!(
        T5,
        committed != other,
        "two transactions with one key: the first counted: {committed}, the second: {other}"
    );
    ensure_eq!(T5, "ledger", stage.ledger().await?, ["effect"]);
    Ok(())
}

async fn a_claim_does_not_see_an_uncommitted_job(stage: Stage) -> Outcome {
    for commit in [true, false] {
        let stage = stage.fresh().await?;
        let mut transaction = stage.begin().await?;
        transaction.enqueue_in(&[new_job("q").build()?, new_job("q").unique_key("k").build()?]).await?;
        let store = stage.connect().await?;
        let other = start(async move {
            let leased = store.dequeue(&request("q", 10)?).await?.len();
            let live =
                store.stats(&leasehold_core::Queues::all()).await?.iter().map(|row| row.live()).sum::<u64>();
            Ok((leased, live))
        })
        .await;
        // One that waits for us sees what we have done; one that does not sees nothing.
        let waited = matches!(other, Started::Waiting(_));
        if commit {
            transaction.commit().await?;
        } else {
            transaction.rollback().await?;
        }
        let (leased, live) = other.finish().await?;
        let nothing = leased == 0 && live == 0;
        ensure!(
            T1,
            nothing || (waited && commit),
            "of an open transaction another leased {leased} and saw {live} jobs"
        );
        let count = stage.dump().await?.jobs.len();
        ensure_eq!(T1, "jobs in the end", count, if commit { 2 } else { 0 });
    }
    Ok(())
}

async fn a_transaction_goes_by_the_time_of_each_call(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let snoozed = stage.leased(new_job("q")).await?;
    let mut transaction = stage.begin().await?;
    transaction.write("the transaction has begun").await?;
    // A clock that stands still while a transaction is open would now be behind.
    let after_begin = stage.now().await?;
    let answers = transaction.enqueue_in(&[new_job("q").build()?]).await?;
    let _settled = transaction.settle_in(&job.receipt(), Verdict::done()).await?;
    let _snoozed = transaction.settle_in(&snoozed.receipt(), Verdict::snooze(Duration::ZERO)?).await?;
    transaction.commit().await?;
    let created = stage.live(answers[0].id).await?.created_at;
    ensure!(C4, created >= after_begin, "enqueued after {after_begin}, created at {created}");
    let finished = stage.finished(job.id).await?.finished_at;
    ensure!(C4, finished >= after_begin, "settled after {after_begin}, finished at {finished}");
    let available = stage.live(snoozed.id).await?.available_at;
    ensure!(C4, available >= after_begin, "snoozed after {after_begin}, available at {available}");
    Ok(())
}

async fn ids_of_open_transactions_are_not_given_again(stage: Stage) -> Outcome {
    let mut transaction = stage.begin().await?;
    let mut given: Vec<_> = transaction.enqueue_in(&[new_job("first").build()?]).await?;
    let (store, site) = (stage.connect().await?, stage.clone());
    let other = start(async move {
        let mut answers = store.enqueue(&[new_job("second").build()?]).await?;
        let mut transaction = site.begin().await?;
        answers.extend(transaction.enqueue_in(&[new_job("third").build()?]).await?);
        transaction.commit().await?;
        Ok(answers)
    })
    .await;
    transaction.commit().await?;
    given.extend(other.finish().await?);
    let mut ids: Vec<_> = given.iter().map(|answer| answer.id).collect();
    ids.sort_unstable();
    ids.dedup();
    ensure!(E10, ids.len() == 3, "three jobs, two of them in transactions, were given the ids {given:?}");
    for (answer, queue) in given.iter().zip(["first", "second", "third"]) {
        let job = stage.live(answer.id).await?;
        ensure!(T1, job.queue.as_str() == queue, "the job that was enqueued into {queue} is {job:?}");
    }
    Ok(())
}

/// For so long an operation may take that is to wait for nobody.
const PATIENCE: Duration = Duration::from_secs(20);

async fn rivals_for_a_key_hold_up_no_other_job(stage: Stage) -> Outcome {
    // A key that no job ever had, and one whose job has just ended.
    for (was_taken, in_transaction) in [(false, false), (true, false), (true, true)] {
        let stage = stage.fresh().await?;
        let keyed = |queue: &str, key: &str| new_job(queue).unique_key(key).build();
        dead_letter(&stage, new_job("q"), "no").await?;
        dead_letter(&stage, new_job("other").unique_key("dead"), "no").await?;
        if was_taken {
            let job = stage.leased(new_job("q").unique_key("k")).await?;
            stage.settle(job.receipt(), Verdict::done()).await?;
        }
        let mut transaction = stage.begin().await?;
        transaction.enqueue_in(&[keyed("q", "k")?]).await?;
        let mut rivals = Vec::new();
        for _ in 0..2 {
            let (site, job) = (stage.clone(), keyed("q", "k")?);
            rivals.push(start(async move { rival(&site, job, in_transaction).await }).await);
        }
        // The same handle that the rivals use, and another.
        let own: Arc<dyn Store> = stage.store.clone();
        for store in [own, stage.connect().await?] {
            let batches = [
                vec![new_job("q").build()?],
                vec![new_job("q").build()?, new_job("q").build()?],
                vec![new_job("other").build()?],
                vec![keyed("other", "k")?],
                vec![keyed("a", "k")?, keyed("z", "k")?],
            ];
            for jobs in batches {
                let count = jobs.len();
                let answers = at_once(store.enqueue(&jobs), format!("enqueue of {jobs:?}")).await?;
                ensure_eq!(E13, "answers", answers.len(), count);
            }
            let redrive = Redrive::all(BatchSize::MAX);
            at_once(store.redrive(&redrive), "redrive".to_owned()).await?;
        }
        let mut beside = stage.begin().await?;
        let jobs = [new_job("q").build()?, keyed("other", "beside")?];
        at_once(beside.enqueue_in(&jobs), "enqueue_in of another transaction".to_owned()).await?;
        beside.commit().await?;
        transaction.rollback().await?;
        for rival in rivals {
            rival.finish().await?;
        }
    }
    Ok(())
}

/// Wants the key of another transaction, until it is told of a job that has it.
async fn rival(stage: &Stage, job: NewJob, in_transaction: bool) -> Outcome {
    let jobs = [job];
    for _ in 0..100 {
        let answer = if in_transaction {
            let mut transaction = stage.begin().await?;
            transaction.enqueue_in(&jobs).await
        } else {
            stage.store.enqueue(&jobs).await
        };
        match answer {
            Err(StoreError::Unavailable { .. } | StoreError::Conflict { .. }) => {}
            answer => {
                answer?;
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The answer of an operation. No deadline for a fast store: one that waits for the transaction waits for ever, since that does not end.
async fn at_once<T>(operation: impl Future<Output = leasehold_core::Result<T>>, what: String) -> Outcome<T> {
    match tokio::time::timeout(PATIENCE, operation).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Problem::Broken(
            E13,
            format!("{what} waits for a transaction that has taken a key which others want, too"),
        )),
    }
}
