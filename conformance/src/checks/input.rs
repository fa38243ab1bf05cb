//! Input beyond a limit, at a limit, and none at all.

use std::time::Duration;

use leasehold_core::contract::{I1, I2};
use leasehold_core::{
    BatchSize, Delay, Epoch, HeartbeatOutcome, Invalid, JobId, Json, Problem, Prune, Receipt, ReceiptStatus,
    Redrive, Redriven, Result, RetryAfter, SettleOutcome, StoreError, Verdict,
};

use super::scene::{dead_letter, holds};
use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job};

checks! { "input":
    a_batch_beyond_the_limit_is_refused [I1];
    a_payload_beyond_the_limit_is_refused [I1];
    a_verdict_beyond_the_limit_is_refused [I1];
    a_reason_beyond_the_limit_is_refused [I1];
    a_batch_at_the_limit_is_answered [I1];
    a_document_at_the_limit_is_kept [I1];
    an_empty_batch_is_answered_with_nothing [I2];
}

const LIMIT: usize = 10_000;

fn refused<T: std::fmt::Debug>(answer: Result<T>, field: &'static str, problem: Problem) -> Outcome {
    let expected = Invalid::new(field, problem);
    let right = matches!(&answer, Err(StoreError::Invalid(invalid)) if *invalid == expected);
    let mut seen = format!("{answer:?}");
    seen.truncate(500);
    ensure!(I1, right, "input that should be refused as {expected:?} was answered {seen}");
    Ok(())
}

/// Receipts of jobs that there are not, but for the first.
fn receipts(first: Receipt, count: usize) -> Vec<Receipt> {
    let others = (0..).map(|number| Receipt { job: JobId::new(i64::MAX - number), epoch: Epoch::new(1) });
    [first].into_iter().chain(others).take(count).collect()
}

async fn a_batch_beyond_the_limit_is_refused(stage: Stage) -> Outcome {
    dead_letter(&stage, new_job("q"), "no").await?;
    let held = stage.leased(new_job("q")).await?;
    let before = stage.dump().await?;
    let store = &stage.store;
    let count = LIMIT + 1;
    let too_many = || Problem::TooMany { count, limit: LIMIT };
    let jobs = vec![new_job("q").build()?; count];
    refused(store.enqueue(&jobs).await, "jobs", too_many())?;
    let shown = receipts(held.receipt(), count);
    let items: Vec<_> = shown.iter().map(|receipt| (*receipt, Verdict::done())).collect();
    refused(store.settle(&items).await, "items", too_many())?;
    refused(store.heartbeat(&shown, lease_for(9 * HOUR)?).await, "receipts", too_many())?;
    refused(store.receipts(&shown).await, "receipts", too_many())?;
    refused(store.release(&shown).await, "receipts", too_many())?;
    let ids: Vec<_> = before.history.iter().map(|job| job.id).chain(shown.iter().map(|r| r.job)).collect();
    let ids = ids[..count].to_vec();
    let redrive = Redrive { ids: Some(ids.clone()), ..Redrive::all(BatchSize::MAX) };
    refused(store.redrive(&redrive).await, "ids", too_many())?;
    let prune = Prune { ids: Some(ids), ..Prune::older_than(Duration::ZERO, BatchSize::MAX)? };
    refused(store.prune(&prune).await, "ids", too_many())?;
    holds(I1, &stage, &before, "a refused batch changed something").await
}

/// A document that is larger than the limit by so many bytes.
fn document(stage: &Stage, above: usize) -> Outcome<(Json, Problem)> {
    let limit = stage.store.capabilities().payload_limit;
    let bytes = limit + above;
    Ok((Json::new(&"x".repeat(bytes - 2))?, Problem::TooLong { bytes, limit }))
}

async fn a_payload_beyond_the_limit_is_refused(stage: Stage) -> Outcome {
    stage.enqueue(new_job("q")).await?;
    let before = stage.dump().await?;
    for above in [1, 1000] {
        let (large, problem) = document(&stage, above)?;
        let good = new_job("q").build()?;
        let batch = [good.clone(), new_job("q").payload(&large).build()?, good];
        refused(stage.store.enqueue(&batch).await, "payload", problem)?;
    }
    holds(I1, &stage, &before, "a refused payload changed something").await
}

async fn a_verdict_beyond_the_limit_is_refused(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 2).await?;
    let jobs = stage.claim("q", 2).await?;
    ensure_eq!(I1, "leased", jobs.len(), 2);
    let before = stage.dump().await?;
    let (large, problem) = document(&stage, 1)?;
    let verdicts = [
        (Verdict::Done(large.clone()), "result"),
        (Verdict::Retry { error: large.clone(), after: RetryAfter::Backoff }, "error"),
        (Verdict::Dead { error: large.clone() }, "error"),
        (Verdict::Discard { reason: large }, "reason"),
    ];
    for (verdict, field) in verdicts {
        let items = [(jobs[0].receipt(), Verdict::done()), (jobs[1].receipt(), verdict)];
        refused(stage.store.settle(&items).await, field, problem.clone())?;
    }
    holds(I1, &stage, &before, "a refused verdict changed something").await
}

async fn a_reason_beyond_the_limit_is_refused(stage: Stage) -> Outcome {
    let waiting = stage.enqueue(new_job("q").delay(HOUR)).await?;
    let held = stage.leased(new_job("q")).await?;
    let before = stage.dump().await?;
    let (large, problem) = document(&stage, 1)?;
    for id in [waiting, held.id] {
        refused(stage.store.discard(id, large.clone()).await, "reason", problem.clone())?;
    }
    holds(I1, &stage, &before, "a refused reason changed something").await
}

async fn a_batch_at_the_limit_is_answered(stage: Stage) -> Outcome {
    let held = stage.leased(new_job("q")).await?;
    let dead = dead_letter(&stage, new_job("q"), "no").await?;
    let shown = receipts(held.receipt(), LIMIT);
    let beats = stage.store.heartbeat(&shown, lease_for(2 * HOUR)?).await?;
    let lost = beats.iter().filter(|beat| **beat == HeartbeatOutcome::Lost).count();
    ensure_eq!(I1, "heartbeats answered and lost", (beats.len(), lost), (LIMIT, LIMIT - 1));
    let worth = stage.store.receipts(&shown).await?;
    let gone = worth.iter().filter(|worth| **worth == ReceiptStatus::Gone).count();
    ensure_eq!(I1, "receipts answered and gone", (worth.len(), gone), (LIMIT, LIMIT - 1));
    let items: Vec<_> = shown.iter().map(|receipt| (*receipt, Verdict::done())).collect();
    let outcomes = stage.store.settle(&items).await?;
    let lost = outcomes.iter().filter(|outcome| outcome.is_lost()).count();
    ensure_eq!(I1, "verdicts answered and lost", (outcomes.len(), lost), (LIMIT, LIMIT - 1));
    let mut ids: Vec<_> = shown[1..].iter().map(|receipt| receipt.job).collect();
    ids.push(dead);
    let redrive = Redrive { ids: Some(ids.clone()), ..Redrive::all(BatchSize::MAX) };
    let redriven = stage.store.redrive(&redrive).await?;
    ensure_eq!(I1, "redriven", redriven, Redriven { jobs: vec![dead], conflicts: Vec::new() });
    ids[0] = held.id;
    let prune = Prune { ids: Some(ids), ..Prune::older_than(Duration::ZERO, BatchSize::MAX)? };
    ensure_eq!(I1, "pruned", stage.store.prune(&prune).await?, 1);
    Ok(())
}

async fn a_document_at_the_limit_is_kept(stage: Stage) -> Outcome {
    let (large, _) = document(&stage, 0)?;
    let id = stage.enqueue(new_job("q").payload(&large)).await?;
    ensure!(I1, stage.live(id).await?.payload == large, "the largest payload came back changed");
    let job = stage.claim_one("q").await?;
    let retry = Verdict::Retry { error: large.clone(), after: RetryAfter::Delay(Delay::ZERO) };
    stage.settle(job.receipt(), retry).await?;
    ensure!(
        I1,
        stage.live(id).await?.last_error.as_ref() == Some(&large),
        "the largest error came back changed"
    );
    let job = stage.claim_one("q").await?;
    stage.settle(job.receipt(), Verdict::Done(large.clone())).await?;
    let kept = *stage.finished(id).await?.outcome.document() == large;
    ensure!(I1, kept, "the largest result came back changed");
    Ok(())
}

async fn an_empty_batch_is_answered_with_nothing(stage: Stage) -> Outcome {
    stage.leased(new_job("q")).await?;
    stage.enqueue(new_job("q")).await?;
    let before = stage.dump().await?;
    let store = &stage.store;
    ensure_eq!(I2, "enqueue", store.enqueue(&[]).await?, []);
    ensure_eq!(I2, "settle", store.settle(&[]).await?, [] as [SettleOutcome; 0]);
    ensure_eq!(I2, "heartbeat", store.heartbeat(&[], lease_for(HOUR)?).await?, []);
    ensure_eq!(I2, "release", store.release(&[]).await?, []);
    ensure_eq!(I2, "receipts", store.receipts(&[]).await?, []);
    holds(I2, &stage, &before, "an empty batch changed something").await
}
