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
mod tests;
