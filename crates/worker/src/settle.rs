//! Settling what handlers have ended, in batches, and never guessing.
//!
//! One [round](Settler::round) makes at most a few calls and comes back, whatever the store does. What is not settled by then
//! is to be sent again: the rest of its batch is not kept waiting.

mod batch;
mod document;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Fate, FinalStatus, Job, Policies, Receipt, ReceiptStatus, SettleOutcome, Store, StoreError, Verdict,
    limits,
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub(crate) use self::batch::{Batch, Unsettled};
use self::batch::{Failed, Item, Next};
pub(crate) use self::document::refused;
use crate::call::answer_until;
use crate::execute::{Finished, not_committed};
use crate::leases::Leases;
use crate::outage::with_causes;
use crate::panics::{contain, log};
use crate::report::Reporter;
use crate::router::Ending;

/// For how long the answer to a verdict is awaited. It holds up the rest of its batch.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same when the worker is about to end.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// What settles.
pub(crate) struct Settler {
    store: Arc<dyn Store>,
    leases: Arc<Leases>,
    reporter: Reporter,
    payload_limit: usize,
    /// Fires when the worker is about to end.
    pub(crate) hurry: CancellationToken,
}

/// What came of one round.
#[derive(Default)]
pub(crate) struct Round {
    /// Jobs for which nothing is left to do.
    pub(crate) done: Vec<Done>,
    pub(crate) again: Vec<Batch>,
    /// The last error, if a call failed.
    pub(crate) error: Option<StoreError>,
}

/// A job for which nothing is left to do.
pub(crate) struct Done {
    pub(crate) job: Unsettled,
    pub(crate) end: End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// A verdict counted.
    Settled,
    /// The lease was lost before.
    Lost,
    /// The store fails for this job alone: it comes back when its lease has passed.
    GivenUp,
}

impl Settler {
    pub(crate) fn new(store: Arc<dyn Store>, leases: Arc<Leases>, reporter: Reporter) -> Self {
        let payload_limit = contain(|| store.capabilities().payload_limit).unwrap_or(limits::PAYLOAD_BYTES);
        Self { store, leases, reporter, payload_limit, hurry: CancellationToken::new() }
    }

    /// Jobs that have just ended, to be settled together.
    pub(crate) fn batch(&self, jobs: Vec<Finished>) -> Batch {
        Batch::new(jobs, self.payload_limit)
    }

    /// Tries to settle a batch, once.
    pub(crate) async fn round(&self, mut batch: Batch) -> Round {
        let start = Instant::now();
        let mut round = Round::default();
        let (mut ready, asked): (Vec<_>, Vec<_>) =
            std::mem::take(&mut batch.items).into_iter().partition(|item| item.next == Next::Send);
        ready.extend(self.ask(&batch, asked, &mut round).await);
        self.send(&batch, ready, &mut round).await;
        self.reporter.settling_took(start.elapsed());
        round
    }

    /// Sends verdicts.
    async fn send(&self, batch: &Batch, mut items: Vec<Item>, round: &mut Round) {
        if items.is_empty() {
            return;
        }
        let verdicts: Vec<(Receipt, Verdict)> =
            items.iter().map(|item| (item.receipt(), item.verdict.clone())).collect();
        let answer = self.answer(batch, "settle", async || self.store.settle(&verdicts).await).await;
        match answer {
            Ok(outcomes) => self.learn(batch, items, outcomes, round).await,
            Err(error) if error.is_unknown() => {
                let is_alone = items.len() == 1;
                items.iter_mut().for_each(Item::in_doubt);
                let mut held = self.ask(batch, items, round).await;
                if is_alone {
                    held = held.into_iter().map(Item::not_applied).collect();
                }
                self.failed(batch.with(held), error, round);
            }
            Err(error) => {
                let doubtful = !matches!(error, StoreError::Invalid(_) | StoreError::Unavailable { .. });
                items.iter_mut().for_each(|item| item.doubtful |= doubtful);
                self.failed(batch.with(items), error, round);
            }
        }
    }

    async fn learn(&self, batch: &Batch, items: Vec<Item>, outcomes: Vec<SettleOutcome>, round: &mut Round) {
        let (mut stale, mut locked, mut unanswered) = (Vec::new(), Vec::new(), Vec::new());
        let outcomes = outcomes.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        for (mut item, outcome) in items.into_iter().zip(outcomes) {
            match outcome {
                Some(SettleOutcome::Settled(settled)) => self.settled(&item, settled.fate(), round),
                Some(SettleOutcome::LeaseLost) => {
                    // Perhaps by the handler itself, or by an earlier try.
                    item.next = Next::AskWhatHappened;
                    stale.push(item);
                }
                // Also what a newer store may answer: it is not settled yet.
                Some(_) => locked.push(item),
                None => {
                    item.in_doubt();
                    unanswered.push(item);
                }
            }
        }
        self.failed(batch.with(unanswered), StoreError::corrupt("settle gave too few outcomes"), round);
        locked.extend(self.ask(batch, stale, round).await);
        if !locked.is_empty() {
            self.reporter.settle_again(locked.len(), "locked");
            let batch = batch.with(locked).locked();
            batch.say_if_stubborn("another transaction has the row locked");
            round.again.push(batch);
        }
    }

    /// Asks what these receipts are worth. Gives those items whose verdict is to be sent.
    async fn ask(&self, batch: &Batch, items: Vec<Item>, round: &mut Round) -> Vec<Item> {
        if items.is_empty() {
            return items;
        }
        let receipts: Vec<Receipt> = items.iter().map(Item::receipt).collect();
        let answer = self.answer(batch, "receipts", async || self.store.receipts(&receipts).await).await;
        let statuses = match answer {
            Ok(statuses) => statuses,
            Err(error) => {
                self.failed(batch.with(items), error, round);
                return Vec::new();
            }
        };
        let (mut held, mut gone, mut unanswered) = (Vec::new(), Vec::new(), Vec::new());
        let statuses = statuses.into_iter().map(Some).chain(std::iter::repeat(None));
        for (item, status) in items.into_iter().zip(statuses) {
            match status {
                Some(ReceiptStatus::Held { .. }) => held.push(self.held(item)),
                Some(ReceiptStatus::Gone) => gone.push(item),
                Some(status) => self.conclude(&item, status, round),
                None => unanswered.push(item),
            }
        }
        self.gone(gone, round).await;
        self.failed(batch.with(unanswered), StoreError::corrupt("receipts gave too few answers"), round);
        held
    }

    /// The receipt is still good, so nothing was settled with it.
    fn held(&self, mut item: Item) -> Item {
        if item.next == Next::AskForProof {
            self.reporter.not_committed(&item.finished.job);
            item.verdict = not_committed();
        }
        item.next = Next::Send;
        item
    }

    /// The receipt is stale, because a verdict with this very receipt counted.
    fn conclude(&self, item: &Item, status: ReceiptStatus, round: &mut Round) {
        let available_at = item.finished.job.available_at;
        let fate = match (status, &item.verdict) {
            (ReceiptStatus::Finished { status: FinalStatus::Completed }, _) => Fate::Completed,
            (ReceiptStatus::Finished { status: FinalStatus::DeadLetter }, _) => Fate::DeadLettered,
            (ReceiptStatus::Finished { status: FinalStatus::Discarded }, _) => Fate::Discarded,
            (ReceiptStatus::Requeued, Verdict::Snooze { .. }) => Fate::Snoozed { available_at },
            (ReceiptStatus::Requeued, _) => Fate::Retrying { available_at },
            _ => return self.refused(item, round),
        };
        self.settled(item, item.own_proof().unwrap_or(fate), round);
    }

    /// The receipts are stale, and the store has no trace of a verdict. That is a lost lease, unless the queue keeps no trace
    /// of jobs that ended so.
    async fn gone(&self, items: Vec<Item>, round: &mut Round) {
        let policies = match items.iter().any(|item| item.traceless().is_some()) {
            true => {
                let call = async || self.store.policies().await;
                answer_until("policies", self.limit(), call).await.unwrap_or_default()
            }
            false => Policies::default(),
        };
        for item in items {
            let kept = |fate| policies.effective(&item.finished.job.queue).archive.keeps(fate);
            match item.traceless() {
                Some((fate, status)) if !kept(status) => self.settled(&item, fate, round),
                _ => self.refused(&item, round),
            }
        }
    }

    fn settled(&self, item: &Item, fate: Fate, round: &mut Round) {
        let Finished { job, source, took, .. } = &item.finished;
        self.reporter.settled(*source, job, fate, *took);
        round.done.push(Done { job: item.unsettled(), end: End::Settled });
    }

    fn refused(&self, item: &Item, round: &mut Round) {
        if self.leases.refused(&item.receipt()) {
            self.reporter.lease_lost(item.receipt(), "the store refused the verdict");
        }
        round.done.push(Done { job: item.unsettled(), end: End::Lost });
    }

    /// A call for these has failed.
    fn failed(&self, batch: Batch, error: StoreError, round: &mut Round) {
        if batch.is_empty() {
            return;
        }
        let Failed { again, given_up } = batch.failed(&error, self.hurry.is_cancelled());
        for item in given_up {
            let (receipt, error) = (item.receipt(), with_causes(&error));
            log!(error, %receipt, error, "the store refuses the verdict; the job comes back when its lease has passed");
            round.done.push(Done { job: item.unsettled(), end: End::GivenUp });
        }
        self.reporter.settle_again(again.iter().map(Batch::len).sum(), why(&error));
        again.iter().for_each(|batch| batch.say_if_stubborn(&with_causes(&error)));
        round.again.extend(again);
        round.error = Some(error);
    }

    async fn answer<T>(
        &self,
        batch: &Batch,
        operation: &'static str,
        call: impl AsyncFnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let answer = answer_until(operation, self.limit(), call).await;
        // What fails for one job alone says nothing about the store.
        if answer.is_ok() || !batch.is_stubborn() {
            self.reporter.store_said(&answer);
        }
        answer
    }

    /// Until when an answer is awaited.
    async fn limit(&self) {
        let hurry = async {
            self.hurry.cancelled().await;
            sleep(LAST_PATIENCE).await;
        };
        tokio::select! {
            () = sleep(PATIENCE) => {}
            () = hurry => {}
        }
    }
}

impl Round {
    /// The task has died with the verdicts of these jobs.
    pub(crate) fn died(jobs: &[Unsettled], text: &str) -> Self {
        log!(
            error,
            jobs = jobs.len(),
            error = text,
            "settling panicked; the jobs come back when their leases have passed"
        );
        let done = jobs.iter().map(|job| Done { job: *job, end: End::GivenUp }).collect();
        Self { done, again: Vec::new(), error: Some(StoreError::backend("settle", text.to_owned())) }
    }
}

impl Item {
    /// The answer was lost: the verdict was applied or it was not.
    fn in_doubt(&mut self) {
        self.next = Next::AskWhatHappened;
        self.doubtful = true;
    }

    /// What became of the job by the proof that its handler returned, if it is a proof of this job.
    fn own_proof(&self) -> Option<Fate> {
        match &self.finished.ending {
            Ending::Settled(proof) if proof.receipt() == self.receipt() => {
                Some(proof.fate()).filter(|_| self.next == Next::AskForProof)
            }
            _ => None,
        }
    }

    /// How the job has ended if it left no trace.
    fn traceless(&self) -> Option<(Fate, FinalStatus)> {
        let completed = (Fate::Completed, FinalStatus::Completed);
        let discarded = (Fate::Discarded, FinalStatus::Discarded);
        match (self.own_proof(), &self.verdict) {
            (Some(Fate::Completed), _) => Some(completed),
            (Some(Fate::Discarded), _) => Some(discarded),
            (None, Verdict::Done(_)) if self.doubtful => Some(completed),
            (None, Verdict::Discard { .. }) if self.doubtful => Some(discarded),
            _ => None,
        }
    }
}

/// Why verdicts are sent again, as in metrics.
fn why(error: &StoreError) -> &'static str {
    match error {
        StoreError::Invalid(_) => "refused",
        StoreError::Unavailable { .. } => "unavailable",
        StoreError::Unknown { .. } => "unknown",
        _ => "failed",
    }
}

/// The end of a job that was leased and not started.
pub(crate) fn not_started(job: Arc<Job>, source: usize, verdict: Verdict) -> Finished {
    Finished { job, source, ending: Ending::Verdict(verdict), took: Duration::ZERO }
}

#[cfg(test)]
mod tests {
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
        let verdicts =
            |batch: &Batch| batch.items.iter().map(|item| item.verdict.clone()).collect::<Vec<_>>();
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
}
