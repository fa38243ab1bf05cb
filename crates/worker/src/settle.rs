//! Settling what handlers have ended, in batches, and never guessing.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Fate, FinalStatus, Receipt, ReceiptStatus, SettleOutcome, Store, StoreError, Verdict};
use tokio::time::Instant;

use crate::call::answer;
use crate::execute::{Finished, not_committed};
use crate::leases::Leases;
use crate::outage::{Outage, with_causes};
use crate::report::Reporter;
use crate::router::Ending;

/// How often a batch is sent that the store refuses for a reason that does not pass by itself.
const TRIES: u32 = 5;

/// What settles.
pub(crate) struct Settler {
    store: Arc<dyn Store>,
    leases: Arc<Leases>,
    reporter: Reporter,
    patience: Duration,
    outage: Outage,
}

/// A job with the verdict that is to be applied.
struct Item {
    finished: Finished,
    verdict: Verdict,
    /// Whether a verdict for this receipt may have been applied without our knowing.
    doubtful: bool,
}

impl Settler {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        leases: Arc<Leases>,
        reporter: Reporter,
        patience: Duration,
    ) -> Self {
        Self { store, leases, reporter, patience, outage: Outage::new("settle") }
    }

    /// Settles a batch. When this returns, each job is settled or is no longer ours, except for so many of which the store
    /// would not hear: they come back when their leases have passed.
    pub(crate) async fn settle(&self, batch: Vec<Finished>) -> usize {
        let receipts: Vec<Receipt> = batch.iter().map(|finished| finished.job.receipt()).collect();
        let start = Instant::now();
        let (proofs, verdicts): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|finished| matches!(finished.ending, Ending::Settled(_)));
        let mut items: Vec<Item> = verdicts.into_iter().filter_map(Item::of).collect();
        items.extend(self.check(proofs).await);
        let unsettled = self.apply(items, TRIES).await;
        if unsettled > 0 {
            tracing::error!(
                jobs = unsettled,
                "the store refuses the verdicts; the jobs come back when their leases have passed"
            );
        }
        self.leases.let_go(&receipts);
        self.reporter.settling_took(start.elapsed());
        unsettled
    }

    /// Looks whether what handlers have settled themselves was committed. What was not is to be tried again.
    async fn check(&self, proofs: Vec<Finished>) -> Vec<Item> {
        if proofs.is_empty() {
            return Vec::new();
        }
        let statuses = self.ask(proofs.iter()).await;
        let mut left = Vec::new();
        for (finished, status) in proofs.into_iter().zip(statuses) {
            let Some(status) = status else { continue };
            match (&finished.ending, status) {
                (_, ReceiptStatus::Held { .. }) => {
                    self.reporter.not_committed(&finished.job);
                    left.push(Item { finished, verdict: not_committed(), doubtful: true });
                }
                (Ending::Settled(proof), _) if proof.receipt() == finished.job.receipt() => {
                    self.reporter.settled(&finished.job, proof.fate(), finished.took);
                }
                (_, status) => self.conclude(&finished, status),
            }
        }
        left
    }

    /// Sends verdicts until they are applied or refused. How many are neither after so many errors that do not pass by
    /// themselves.
    async fn apply(&self, mut items: Vec<Item>, tries: u32) -> usize {
        let mut outage = self.outage.clone();
        let mut tried = 0;
        while !items.is_empty() {
            let error = match self.send(&items).await {
                Ok(outcomes) => {
                    outage.over();
                    self.learn(items, outcomes).await;
                    return 0;
                }
                Err(error) => error,
            };
            // A batch that is refused for one of its verdicts, or because of one job, holds up no other.
            let refused = matches!(error, StoreError::Invalid(_));
            tried += u32::from(is_lasting(&error));
            if tried >= tries {
                outage.give_up();
            }
            if items.len() > 1 && (refused || tried >= tries) {
                return self.apply_each(items, if refused { tries } else { 1 }).await;
            }
            if tried >= tries {
                return items.len();
            }
            if let StoreError::Invalid(invalid) = error {
                // Nothing that a handler returns may leave its job in the air.
                items.iter_mut().for_each(|item| {
                    item.verdict = Verdict::retry(format_args!("verdict refused: {invalid}"));
                });
                continue;
            }
            let pause = outage.failed(&with_causes(&error));
            if error.is_unknown() {
                items = self.unsettled(items).await;
            }
            items.iter_mut().for_each(|item| item.doubtful |= !error.is_retryable());
            tokio::time::sleep(pause).await;
        }
        0
    }

    async fn apply_each(&self, items: Vec<Item>, tries: u32) -> usize {
        let mut unsettled = 0;
        for item in items {
            unsettled += Box::pin(self.apply(vec![item], tries)).await;
        }
        unsettled
    }

    async fn send(&self, items: &[Item]) -> Result<Vec<SettleOutcome>, StoreError> {
        let batch: Vec<(Receipt, Verdict)> = items.iter().map(Item::asked).collect();
        let answer = answer("settle", self.patience, async || self.store.settle(&batch).await).await;
        self.reporter.store_said(&answer);
        answer
    }

    /// The answer was lost. What has been settled is concluded, the rest remains.
    async fn unsettled(&self, items: Vec<Item>) -> Vec<Item> {
        let statuses = self.ask(items.iter().map(|item| &item.finished)).await;
        let mut left = Vec::new();
        for (item, status) in items.into_iter().zip(statuses) {
            match status {
                Some(ReceiptStatus::Held { .. }) => left.push(item),
                Some(status) => self.conclude_item(&item, status),
                None => {}
            }
        }
        left
    }

    async fn learn(&self, items: Vec<Item>, outcomes: Vec<SettleOutcome>) {
        let mut doubtful = Vec::new();
        for (item, outcome) in items.into_iter().zip(outcomes) {
            match outcome {
                SettleOutcome::Settled(settled) => {
                    self.reporter.settled(&item.finished.job, settled.fate(), item.finished.took);
                }
                SettleOutcome::LeaseLost if item.doubtful || item.finished.transactional => {
                    doubtful.push(item);
                }
                SettleOutcome::LeaseLost => self.refused(item.finished.job.receipt()),
            }
        }
        if !doubtful.is_empty() {
            let statuses = self.ask(doubtful.iter().map(|item| &item.finished)).await;
            for (item, status) in doubtful.iter().zip(statuses) {
                if let Some(status) = status {
                    self.conclude_item(item, status);
                }
            }
        }
    }

    /// What the jobs' receipts are worth, asked until there is an answer: nothing else may be done before. Nothing is said of
    /// those of which the store will not speak.
    async fn ask(&self, jobs: impl Iterator<Item = &Finished>) -> Vec<Option<ReceiptStatus>> {
        let receipts: Vec<Receipt> = jobs.map(|finished| finished.job.receipt()).collect();
        if let Some(statuses) = self.ask_often(&receipts, TRIES).await {
            return statuses.into_iter().map(Some).collect();
        }
        let mut statuses = Vec::new();
        for receipt in receipts {
            let status = self.ask_often(&[receipt], 1).await;
            if status.is_none() {
                tracing::error!(%receipt, "the store does not say what became of a job");
            }
            statuses.push(status.and_then(|status| status.first().copied()));
        }
        statuses
    }

    /// Asks until there is an answer, or so many errors that do not pass by themselves.
    async fn ask_often(&self, receipts: &[Receipt], tries: u32) -> Option<Vec<ReceiptStatus>> {
        let mut outage = self.outage.clone();
        let mut tried = 0;
        loop {
            let statuses =
                answer("receipts", self.patience, async || self.store.receipts(receipts).await).await;
            let error = match statuses {
                Ok(statuses) => {
                    outage.over();
                    return Some(statuses);
                }
                Err(error) => error,
            };
            tried += u32::from(is_lasting(&error));
            if tried >= tries {
                outage.give_up();
                return None;
            }
            tokio::time::sleep(outage.failed(&with_causes(&error))).await;
        }
    }

    /// The receipt is stale, and this is what a verdict of somebody's has made of the job.
    fn conclude(&self, finished: &Finished, status: ReceiptStatus) {
        let fate = match status {
            ReceiptStatus::Finished { status: FinalStatus::Completed } => Fate::Completed,
            ReceiptStatus::Finished { status: FinalStatus::DeadLetter } => Fate::DeadLettered,
            ReceiptStatus::Finished { status: FinalStatus::Discarded } => Fate::Discarded,
            ReceiptStatus::Requeued => Fate::Retrying { available_at: finished.job.available_at },
            _ => return self.refused(finished.job.receipt()),
        };
        self.reporter.settled(&finished.job, fate, finished.took);
    }

    /// The same of an item whose own verdict tells what a queue that keeps no history does not.
    fn conclude_item(&self, item: &Item, status: ReceiptStatus) {
        match (&item.verdict, status) {
            (Verdict::Snooze { .. }, ReceiptStatus::Requeued) => {
                let available_at = item.finished.job.available_at;
                self.reporter.settled(&item.finished.job, Fate::Snoozed { available_at }, item.finished.took);
            }
            (_, status) => self.conclude(&item.finished, status),
        }
    }

    fn refused(&self, receipt: Receipt) {
        if self.leases.refused(&receipt) {
            self.reporter.lease_lost(receipt, "the store refused the verdict");
        }
    }
}

impl Item {
    fn of(finished: Finished) -> Option<Self> {
        match &finished.ending {
            Ending::Verdict(verdict) => Some(Self { verdict: verdict.clone(), finished, doubtful: false }),
            Ending::Settled(_) => None,
        }
    }

    fn asked(&self) -> (Receipt, Verdict) {
        (self.finished.job.receipt(), self.verdict.clone())
    }
}

/// Whether the same call is likely to fail so again.
fn is_lasting(error: &StoreError) -> bool {
    !error.is_retryable() && !error.is_unknown()
}

/// The verdict that gives a job back unharmed, for those that were never started.
pub(crate) fn released(job: Arc<leasehold_core::Job>, source: usize) -> Finished {
    let ending = Ending::Verdict(Verdict::release());
    Finished { job, source, ending, transactional: false, took: Duration::ZERO }
}
