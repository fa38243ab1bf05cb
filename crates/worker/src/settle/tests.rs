//! Settling against stores that fail.

use std::collections::HashSet;

use leasehold_core::{Capabilities, Epoch, JobId, MockStore, NewJob, WorkerId, backend};

use super::*;
use crate::report::Labels;

fn job() -> Job {
    let new = NewJob::builder("q", "k").build().unwrap();
    backend::accepted(JobId::new(1), &new, &Default::default(), Default::default())
}

fn settler(mut store: MockStore) -> (Settler, Reporter) {
    store.expect_capabilities().return_const(Capabilities::minimal());
    let labels =
        Labels { worker: WorkerId::new("w").unwrap(), queues: Vec::new(), kinds: HashSet::default() };
    let reporter = Reporter::new(labels);
    (Settler::new(Arc::new(store), Arc::new(Leases::default()), reporter.clone()), reporter)
}

#[test]
fn the_reason_for_sending_again_is_told_by_the_error() {
    let lost = || "lost".to_owned();
    let told: Vec<_> = [
        NewJob::builder("", "k").build().map(|_| ()).unwrap_err().into(),
        StoreError::unavailable("settle", lost()),
        StoreError::unknown("settle", lost()),
        StoreError::backend("settle", lost()),
    ]
    .iter()
    .map(why)
    .collect();
    assert_eq!(told, ["refused", "unavailable", "unknown", "failed"]);
}

/// A handler that settles another job in its transaction, and returns the proof of that, has not settled its own.
#[test]
fn the_proof_of_another_job_is_none() {
    let job = job();
    let own = job.receipt();
    let other = Receipt { job: JobId::new(2), epoch: Epoch::new(1) };
    for (receipt, fate) in [(own, Some(Fate::Completed)), (other, None)] {
        let ending = Ending::Settled(backend::settled(receipt, Fate::Completed));
        let finished = Finished { job: Arc::new(job.clone()), source: 0, ending, took: Duration::ZERO };
        let batch = Batch::new(vec![finished], 1 << 20);
        assert_eq!(batch.items[0].next, Next::AskForProof);
        assert_eq!(batch.items[0].own_proof(), fate, "{receipt}");
    }
}

/// First the document says why it was refused, then there is none, then the job is left to its lease.
#[test]
fn a_verdict_that_is_refused_says_less_each_time() {
    let finished = not_started(Arc::new(job()), 0, Verdict::done_with("result").unwrap());
    let refused: StoreError = NewJob::builder("", "k").build().unwrap_err().into();
    let mut batch = Batch::new(vec![finished], 1 << 20);
    for less in [Verdict::Done(super::refused(&refused.to_string())), Verdict::done()] {
        let mut failed = batch.failed(&refused, false);
        batch = failed.again.remove(0);
        assert_eq!((&batch.items[0].verdict, failed.given_up.len()), (&less, 0));
    }
    let failed = batch.failed(&refused, false);
    assert_eq!((failed.again.len(), failed.given_up.len()), (0, 1));
}

/// One of them was refused: which, is found out before any of them says less.
#[test]
fn a_batch_that_is_refused_is_split_and_its_verdicts_stay() {
    let finished = || not_started(Arc::new(job()), 0, Verdict::done_with("result").unwrap());
    let refused: StoreError = NewJob::builder("", "k").build().unwrap_err().into();
    let failed = Batch::new(vec![finished(), finished()], 1 << 20).failed(&refused, false);
    let verdicts = |batch: &Batch| batch.items.iter().map(|item| item.verdict.clone()).collect::<Vec<_>>();
    let expected = [[Verdict::done_with("result").unwrap()], [Verdict::done_with("result").unwrap()]];
    assert_eq!(failed.again.iter().map(verdicts).collect::<Vec<_>>(), expected);
    assert!(failed.given_up.is_empty());
}

/// In a queue that keeps dead letters alone, these leave no trace.
#[test]
fn what_can_have_ended_without_a_trace_is_told_by_the_proof_or_the_verdict() {
    let status = |ending: Ending, doubtful: bool| {
        let finished = Finished { job: Arc::new(job()), source: 0, ending, took: Duration::ZERO };
        let mut batch = Batch::new(vec![finished], 1 << 20);
        batch.items[0].doubtful = doubtful;
        batch.items[0].traceless().map(|(_, status)| status)
    };
    let proof = |fate| Ending::Settled(backend::settled(job().receipt(), fate));
    let (completed, discarded) = (Some(FinalStatus::Completed), Some(FinalStatus::Discarded));
    for (fate, expected) in
        [(Fate::Completed, completed), (Fate::Discarded, discarded), (Fate::DeadLettered, None)]
    {
        assert_eq!(status(proof(fate), false), expected, "{fate:?}");
    }
    // A verdict of the worker's counts if the answer to it was lost.
    for (verdict, expected) in [
        (Verdict::done(), completed),
        (Verdict::discard("why"), discarded),
        (Verdict::dead("e"), None),
        (Verdict::retry("e"), None),
    ] {
        assert_eq!(status(Ending::Verdict(verdict.clone()), true), expected, "{verdict:?}");
        assert_eq!(status(Ending::Verdict(verdict.clone()), false), None, "{verdict:?}");
    }
}

#[test]
fn the_jobs_of_a_task_that_died_are_given_up() {
    let jobs = [1, 2].map(|id| Unsettled {
        receipt: Receipt { job: JobId::new(id), epoch: Epoch::new(1) },
        source: id as usize,
    });
    let round = Round::died(&jobs, "a bug");
    let ends: Vec<_> = round.done.iter().map(|done| (done.job, done.end)).collect();
    assert_eq!(ends, jobs.map(|job| (job, End::GivenUp)));
    assert!(round.again.is_empty() && matches!(round.error, Some(StoreError::Backend { .. })));
}

/// The answer to the verdict is lost. What became of the job is told by its receipt.
#[tokio::test(start_paused = true)]
async fn a_verdict_whose_answer_was_lost_is_concluded_from_the_receipt() {
    let finished = |status| ReceiptStatus::Finished { status };
    let snooze = || Verdict::snooze(Duration::from_secs(1)).unwrap();
    for (status, verdict, expected) in [
        (finished(FinalStatus::Completed), Verdict::done(), [1, 0, 0, 0, 0, 0]),
        (finished(FinalStatus::DeadLetter), Verdict::retry("e"), [0, 1, 0, 0, 0, 0]),
        (finished(FinalStatus::Discarded), Verdict::discard("why"), [0, 0, 1, 0, 0, 0]),
        (ReceiptStatus::Requeued, snooze(), [0, 0, 0, 1, 0, 0]),
        (ReceiptStatus::Requeued, Verdict::retry("e"), [0, 0, 0, 0, 1, 0]),
        (ReceiptStatus::Gone, Verdict::retry("e"), [0, 0, 0, 0, 0, 1]),
    ] {
        let mut store = MockStore::new();
        store.expect_settle().returning(|_| Err(StoreError::unknown("settle", "lost")));
        store.expect_receipts().returning(move |_| Ok(vec![status]));
        let (settler, reporter) = settler(store);
        let job = Arc::new(job());
        settler.leases.hold(std::slice::from_ref(&job), Instant::now(), |_| false);
        let round = settler.round(settler.batch(vec![not_started(job, 0, verdict)])).await;
        let end = if status == ReceiptStatus::Gone { End::Lost } else { End::Settled };
        assert_eq!(round.done.iter().map(|done| done.end).collect::<Vec<_>>(), [end], "{status:?}");
        assert!(round.again.is_empty(), "{status:?}");
        let stats = reporter.stats();
        let ends = [stats.completed, stats.dead_lettered, stats.discarded, stats.snoozed];
        let ends = [ends.as_slice(), &[stats.retried, stats.lease_lost]].concat();
        assert_eq!(ends, expected, "{status:?}");
    }
}

/// Verdicts that fail again and again say nothing about the store. Their reason is likely in the jobs.
#[tokio::test(start_paused = true)]
async fn the_store_is_down_when_verdicts_fail_that_have_not_failed_often() {
    let mut store = MockStore::new();
    store.expect_settle().returning(|_| Err(StoreError::unavailable("settle", "not this one")));
    let (settler, reporter) = settler(store);
    let mut batch = settler.batch(vec![not_started(Arc::new(job()), 0, Verdict::done())]);
    for failures in 0..8 {
        // Another call has succeeded.
        reporter.store_said(&Ok(()));
        assert_eq!(batch.is_stubborn(), failures >= 4, "after {failures} failures");
        batch = settler.round(batch).await.again.remove(0);
        assert_eq!(reporter.stats().store_is_up, failures >= 4, "after {failures} failures");
    }
}

/// A verdict that failed in a way that says nothing about whether it was applied may have been, one that the store refused was not.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_after_a_failure_is_a_verdict_that_counted_if_the_failure_left_that_open() {
    for (error, expected) in [
        (StoreError::backend("settle", "no"), [1, 0]),
        (StoreError::corrupt("no"), [1, 0]),
        (StoreError::unavailable("settle", "no"), [0, 1]),
    ] {
        let mut store = MockStore::new();
        let mut failure = Some(error);
        store.expect_settle().returning(move |_| match failure.take() {
            Some(error) => Err(error),
            None => Ok(vec![SettleOutcome::LeaseLost]),
        });
        store.expect_receipts().returning(|_| Ok(vec![ReceiptStatus::Gone]));
        // The queue keeps no trace of what is completed.
        store.expect_policies().returning(|| {
            let policy = leasehold_core::QueuePolicy {
                archive: Some(leasehold_core::Archive::DeadOnly),
                ..Default::default()
            };
            Ok(Policies::new([("q".parse().unwrap(), policy)]))
        });
        let (settler, reporter) = settler(store);
        let job = Arc::new(job());
        settler.leases.hold(std::slice::from_ref(&job), Instant::now(), |_| false);
        let mut round = settler.round(settler.batch(vec![not_started(job, 0, Verdict::done())])).await;
        let round = settler.round(round.again.remove(0)).await;
        assert_eq!((round.done.len(), round.again.len()), (1, 0));
        let stats = reporter.stats();
        assert_eq!([stats.completed, stats.lease_lost], expected);
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_verdict_that_has_failed_alone_is_repeated() {
    let mut store = MockStore::new();
    store.expect_settle().returning(|_| Err(StoreError::unavailable("settle", "no")));
    let (settler, _) = settler(store);
    for (jobs, expected) in [(1, true), (2, false)] {
        let finished = (0..jobs).map(|_| not_started(Arc::new(job()), 0, Verdict::done())).collect();
        let batch = settler.batch(finished);
        assert!(!batch.is_repeated());
        assert_eq!(settler.round(batch).await.again[0].is_repeated(), expected, "{jobs} jobs");
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_hurry_what_is_to_be_sent_later_is_sent_now() {
    let mut store = MockStore::new();
    store.expect_settle().returning(|_| Err(StoreError::unavailable("settle", "no")));
    let (settler, _) = settler(store);
    let mut batch = settler
        .round(settler.batch(vec![not_started(Arc::new(job()), 0, Verdict::done())]))
        .await
        .again
        .remove(0);
    assert!(batch.due() > Instant::now());
    batch.hurry();
    assert_eq!(batch.due(), Instant::now());
}

/// An error that lasts is that of one of the jobs. Each part has one more try, and what does not last costs no try.
#[test]
fn the_parts_of_a_batch_whose_error_lasts_have_one_try_more() {
    let (backend, unavailable) =
        (StoreError::backend("settle", "no"), StoreError::unavailable("settle", "no"));
    let finished = (0..2).map(|_| not_started(Arc::new(job()), 0, Verdict::done())).collect();
    let mut batch = Batch::new(finished, 1 << 20);
    for _ in 1..5 {
        let mut failed = batch.failed(&backend, false);
        assert_eq!((failed.again.len(), failed.given_up.len()), (1, 0));
        batch = failed.again.remove(0);
    }
    let mut parts = batch.failed(&backend, false).again;
    assert_eq!(parts.iter().map(Batch::len).collect::<Vec<_>>(), [1, 1]);
    let mut failed = parts.remove(0).failed(&unavailable, false);
    assert_eq!((failed.again.len(), failed.given_up.len()), (1, 0));
    let failed = failed.again.remove(0).failed(&backend, false);
    assert_eq!((failed.again.len(), failed.given_up.len()), (0, 1));
}

#[test]
fn only_locked_verdicts_are_sent_together_and_no_more_than_a_batch() {
    let batch = |jobs: usize| {
        Batch::new((0..jobs).map(|_| not_started(Arc::new(job()), 0, Verdict::done())).collect(), 1 << 20)
    };
    let locked = |jobs| batch(jobs).locked();
    let failed = |jobs| batch(jobs).failed(&StoreError::unavailable("settle", "no"), false).again.remove(0);
    for (mut one, mut other, joined) in [
        (locked(2), locked(3), true),
        (locked(2), locked(4), false),
        (locked(2), failed(1), false),
        (failed(2), locked(1), false),
    ] {
        let (before, others) = (one.len(), other.len());
        assert_eq!(one.join(&mut other, 5), joined);
        let expected = if joined { (before + others, 0) } else { (before, others) };
        assert_eq!((one.len(), other.len()), expected);
    }
}
