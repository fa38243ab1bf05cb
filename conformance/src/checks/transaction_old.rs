//! Transactions whose view of the database is older than what they meet.

use leasehold_core::{ReceiptStatus, Record, StoreError, Verdict};

use super::interleave::{Started, start};
use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure};
use crate::harness::{Isolation, Transaction};
use crate::stage::{HOUR, Stage, new_job};

checks! { "transaction":
    a_key_is_free_also_for_an_old_view [E6, T1] needs Transactions;
    a_job_that_is_not_committed_takes_no_key [T1] needs Transactions;
    a_lease_is_not_lost_in_an_old_view [T3] needs Transactions;
}

/// Opens a transaction at this level, has it look at the database, and runs `meanwhile`. None if that has to wait for the transaction.
macro_rules! older_than {
    ($stage:ident, $level:expr, $meanwhile:expr) => {{
        let mut transaction = $stage.begin_at($level).await?;
        transaction.read().await?;
        let stage = $stage.clone();
        match start(async move { $meanwhile(stage).await }).await {
            Started::Done(answer) => Some((transaction, answer?)),
            waiting => {
                transaction.rollback().await?;
                waiting.finish().await?;
                None
            }
        }
    }};
}

async fn a_key_is_free_also_for_an_old_view(stage: Stage) -> Outcome {
    let mut levels = 0;
    for level in Isolation::ALL {
        for batch in [1, 3] {
            let stage = stage.fresh().await?;
            let job = stage.leased(new_job("q").unique_key("k0")).await?;
            let settle = |stage: Stage| async move { stage.settle(job.receipt(), Verdict::done()).await };
            let Some((mut transaction, _)) = older_than!(stage, level, settle) else { continue };
            levels += 1;
            let keyed = |n| new_job("q").unique_key(format!("k{n}").as_str()).build();
            let jobs = (0..batch).map(keyed).collect::<Result<Vec<_>, _>>()?;
            let answers = match transaction.enqueue_in(&jobs).await {
                Err(StoreError::Unavailable { .. }) => continue,
                answers => answers?,
            };
            let is_new = answers.iter().all(|answer| !answer.deduplicated);
            ensure!(
                E6,
                is_new,
                "at {level:?} the key of a job that was finished before was answered {answers:?}"
            );
            if transaction.commit().await.is_ok() {
                for answer in answers {
                    let record = stage.store.get(answer.id).await?;
                    let is_live = matches!(record, Some(Record::Live(_)));
                    ensure!(T1, is_live, "at {level:?} job {} was committed, but is {record:?}", answer.id);
                }
            }
        }
    }
    applies(levels)
}

fn applies(levels: u32) -> Outcome {
    match levels {
        0 => Err(Problem::NotApplicable("nothing can be written while a transaction is open")),
        _ => Ok(()),
    }
}

async fn a_job_that_is_not_committed_takes_no_key(stage: Stage) -> Outcome {
    for level in Isolation::ALL {
        for batch in [1, 3] {
            let stage = stage.fresh().await?;
            let keyed = |n| new_job("q").unique_key(format!("k{n}").as_str()).build();
            let jobs = (0..batch).map(keyed).collect::<Result<Vec<_>, _>>()?;
            let mut other = stage.begin().await?;
            other.enqueue_in(&jobs[..1]).await?;
            let (site, new) = (stage.clone(), jobs.clone());
            let enqueue = start(async move { enqueue_at(&site, level, &new).await }).await;
            other.rollback().await?;
            let Some(answers) = enqueue.finish().await? else { continue };
            for answer in answers {
                let record = stage.store.get(answer.id).await?;
                ensure!(
                    T1,
                    !answer.deduplicated && matches!(record, Some(Record::Live(_))),
                    "at {level:?}, beside a transaction that was rolled back, {answer:?} is {record:?}"
                );
            }
        }
    }
    Ok(())
}

/// Enqueues in a transaction of its own, and commits. None if the database has refused it.
async fn enqueue_at(
    stage: &Stage,
    level: Isolation,
    jobs: &[leasehold_core::NewJob],
) -> Outcome<Option<Vec<leasehold_core::Enqueued>>> {
    let mut transaction = stage.begin_at(level).await?;
    let answers = match transaction.enqueue_in(jobs).await {
        Err(StoreError::Unavailable { .. }) => return Ok(None),
        answers => answers?,
    };
    Ok(transaction.commit().await.is_ok().then_some(answers))
}

async fn a_lease_is_not_lost_in_an_old_view(stage: Stage) -> Outcome {
    let mut levels = 0;
    for level in Isolation::ALL {
        for is_new in [false, true] {
            for verdict in [None, Some(Verdict::done()), Some(Verdict::snooze(HOUR)?)] {
                let stage = stage.fresh().await?;
                if !is_new {
                    stage.enqueue(new_job("q")).await?;
                }
                let lease = move |stage: Stage| async move {
                    if is_new {
                        stage.enqueue(new_job("q")).await?;
                    }
                    stage.claim_one("q").await
                };
                let Some((mut transaction, job)) = older_than!(stage, level, lease) else { continue };
                levels += 1;
                let answer = give(&mut *transaction, job.receipt(), verdict.clone()).await;
                let right = matches!(answer, Ok(()) | Err(StoreError::Unavailable { .. }));
                ensure!(
                    T3,
                    right,
                    "at {level:?}, in a transaction that began before the lease, {verdict:?} was answered {answer:?}"
                );
                let counts = answer.is_ok() && transaction.commit().await.is_ok() && verdict.is_some();
                let status = stage.store.receipts(&[job.receipt()]).await?;
                let settled =
                    matches!(status[..], [ReceiptStatus::Finished { .. } | ReceiptStatus::Requeued]);
                ensure!(
                    T3,
                    settled == counts,
                    "at {level:?} {verdict:?} counts: {counts}, but it is {status:?}"
                );
            }
        }
    }
    applies(levels)
}

/// Gives the verdict, or only locks.
async fn give(
    transaction: &mut dyn Transaction,
    receipt: leasehold_core::Receipt,
    verdict: Option<Verdict>,
) -> leasehold_core::Result<()> {
    match verdict {
        Some(verdict) => transaction.settle_in(&receipt, verdict).await.map(drop),
        None => transaction.lock_in(receipt).await,
    }
}
