//! A transaction that the database has ended, while its connection takes it for open.

use leasehold_core::{IdempotencyKey, Receipt, Result, StoreError};

use super::transaction::verdicts;
use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure};
use crate::harness::{Ending, Transaction};
use crate::stage::{Stage, new_job};

checks! { "transaction":
    a_verdict_after_the_end_is_refused [T4, T7] needs Transactions;
    enqueuing_after_the_end_is_refused [T4] needs Transactions;
    once_after_the_end_is_refused [T4] needs Transactions;
    a_lock_after_the_end_is_refused [T4] needs Transactions;
}

/// A transaction that was ended in this way. None if that cannot be.
async fn ended(stage: &Stage, how: Ending) -> Outcome<Option<Box<dyn Transaction>>> {
    let mut transaction = stage.begin().await?;
    transaction.write("effect").await?;
    Ok(transaction.end(how).await?.then_some(transaction))
}

/// Opens, ends in each way, calls, and sees that nothing has come of it.
macro_rules! refused_after_each_end {
    ($stage:ident, $what:expr, |$transaction:ident| $call:expr) => {{
        let mut endings = 0;
        for how in Ending::ALL {
            let Some(mut $transaction) = ended(&$stage, how).await? else { continue };
            endings += 1;
            let before = $stage.dump().await?;
            let answer = $call.await;
            is_refused(&$what, how, answer)?;
            // Whatever became of it becomes visible now.
            drop($transaction.rollback().await);
            let difference = $stage.dump().await?.difference(&before);
            ensure!(T4, difference.is_none(), "{} after {how:?} changed {difference:?}", $what);
        }
        if endings == 0 {
            return Err(Problem::NotApplicable("a transaction of this backend ends only when it is told to"));
        }
    }};
}

fn is_refused<T: std::fmt::Debug>(what: &str, how: Ending, answer: Result<T>) -> Outcome {
    // Where a failed transaction stays open until it is told to end, the database refuses for reasons of its own.
    let refused = match (how, &answer) {
        (Ending::Deadlock | Ending::Failure, Err(error)) => !error.is_unknown(),
        (_, answer) => matches!(answer, Err(StoreError::NoTransaction { .. })),
    };
    ensure!(T4, refused, "{what} after the transaction was ended by {how:?} was answered {answer:?}");
    Ok(())
}

async fn a_verdict_after_the_end_is_refused(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    for verdict in verdicts()? {
        refused_after_each_end!(stage, format!("settle_in with {verdict:?}"), |transaction| transaction
            .settle_in(&job.receipt(), verdict.clone()));
    }
    Ok(())
}

async fn enqueuing_after_the_end_is_refused(stage: Stage) -> Outcome {
    let batches = [
        vec![new_job("q").build()?],
        vec![new_job("q").unique_key("k").build()?],
        vec![new_job("q").build()?, new_job("other").build()?],
        vec![new_job("q").unique_key("a").build()?, new_job("q").unique_key("b").build()?],
    ];
    for jobs in batches {
        refused_after_each_end!(stage, format!("enqueue_in of {jobs:?}"), |transaction| transaction
            .enqueue_in(&jobs));
    }
    Ok(())
}

async fn once_after_the_end_is_refused(stage: Stage) -> Outcome {
    let key = IdempotencyKey::new("once")?;
    refused_after_each_end!(stage, "once_in", |transaction| transaction.once_in(&key));
    let mut transaction = stage.begin().await?;
    let is_free = transaction.once_in(&key).await?;
    ensure!(T4, is_free, "once_in was refused, but the key is taken");
    Ok(transaction.rollback().await?)
}

async fn a_lock_after_the_end_is_refused(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let stale = Receipt { epoch: job.epoch.next(), ..job.receipt() };
    for receipt in [job.receipt(), stale] {
        refused_after_each_end!(stage, "lock_in", |transaction| transaction.lock_in(receipt));
    }
    Ok(())
}
