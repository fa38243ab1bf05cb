//! Settling what handlers have ended, in batches, and never guessing.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use leasehold_core::{Fate, FinalStatus, Receipt, ReceiptStatus, SettleOutcome, Store, StoreError, Verdict};
use tokio::time::Instant;

use crate::execute::{Finished, not_committed};
use crate::leases::Leases;
use crate::outage::{Outage, with_causes};
use crate::report::Reporter;
use crate::router::Ending;

/// How often a batch is sent that the store refuses for a reason that does not pass by itself.
const TRIES: u32 = 5;

/// What settles.
pub(crate) struct Settler {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) reporter: Reporter,
    /// Whether it was said that the store does not answer, to settlements and to questions.
    pub(crate) said: [Arc<AtomicBool>; 2],
}

/// A job with the verdict that is to be applied.
struct Item {
    finished: Finished,
    verdict: Verdict,
    /// Whether a verdict for this receipt may have been applied without our knowing.
    doubtful: bool,
}

impl Settler {
    /// Settles a batch. When this returns, each job is settled, or is no longer ours.
    pub(crate) async fn settle(&self, batch: Vec<Finished>) {
        let receipts: Vec<Receipt> = batch.iter().map(|finished| finished.job.receipt()).collect();
        let start = Instant::now();
        let (proofs, verdicts): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|finished| matches!(finished.ending, Ending::Settled(_)));
        let mut items: Vec<Item> = verdicts.into_iter().filter_map(Item::of).collect();
        items.extend(self.check(proofs).await);
        self.apply(items).await;
        self.leases.let_go(&receipts);
        self.reporter.settling_took(start.elapsed());
    }

    /// Looks whether what handlers have settled themselves was committed. What was not is to be tried again.
    async fn check(&self, proofs: Vec<Finished>) -> Vec<Item> {
        if proofs.is_empty() {
            return Vec::new();
        }
        let receipts: Vec<Receipt> = proofs.iter().map(|finished| finished.job.receipt()).collect();
        let statuses = self.ask(&receipts).await;
        let mut left = Vec::new();
        for (finished, status) in proofs.into_iter().zip(statuses) {
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

    async fn apply(&self, mut items: Vec<Item>) {
        let mut outage = Outage::sharing("settle", &self.said[0]);
        let mut tries = 0;
        while !items.is_empty() {
            let batch: Vec<(Receipt, Verdict)> = items.iter().map(Item::asked).collect();
            let answer = self.store.settle(&batch).await;
            self.reporter
                .store(!matches!(answer, Err(StoreError::Unavailable { .. } | StoreError::Unknown { .. })));
            let pause = match answer {
                Ok(outcomes) => {
                    outage.over();
                    return self.learn(items, outcomes).await;
                }
                Err(error @ StoreError::Unknown { .. }) => {
                    let pause = outage.failed(&with_causes(&error));
                    items = self.unsettled(items).await;
                    pause
                }
                Err(StoreError::Invalid(invalid)) if items.len() == 1 => {
                    // Nothing that a handler returns may leave its job in the air.
                    items.iter_mut().for_each(|item| {
                        item.verdict = Verdict::retry(format_args!("verdict refused: {invalid}"));
                    });
                    tries += 1;
                    Duration::ZERO
                }
                Err(StoreError::Invalid(_)) => {
                    for item in items {
                        Box::pin(self.apply(vec![item])).await;
                    }
                    return;
                }
                Err(error) => {
                    tries += u32::from(!error.is_retryable());
                    outage.failed(&with_causes(&error))
                }
            };
            if tries >= TRIES {
                let jobs = items.len();
                tracing::error!(
                    jobs,
                    "the store refuses the verdicts; the jobs come back when their leases have passed"
                );
                return;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// The answer was lost. What has been settled is concluded, the rest remains.
    async fn unsettled(&self, items: Vec<Item>) -> Vec<Item> {
        let receipts: Vec<Receipt> = items.iter().map(|item| item.finished.job.receipt()).collect();
        let statuses = self.ask(&receipts).await;
        let mut left = Vec::new();
        for (mut item, status) in items.into_iter().zip(statuses) {
            item.doubtful = true;
            match status {
                ReceiptStatus::Held { .. } => left.push(item),
                status => self.conclude_item(&item, status),
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
            let receipts: Vec<Receipt> = doubtful.iter().map(|item| item.finished.job.receipt()).collect();
            let statuses = self.ask(&receipts).await;
            for (item, status) in doubtful.iter().zip(statuses) {
                self.conclude_item(item, status);
            }
        }
    }

    /// What the receipts are worth, asked until there is an answer.
    async fn ask(&self, receipts: &[Receipt]) -> Vec<ReceiptStatus> {
        let mut outage = Outage::sharing("receipts", &self.said[1]);
        loop {
            match self.store.receipts(receipts).await {
                Ok(statuses) => {
                    outage.over();
                    return statuses;
                }
                Err(error) => tokio::time::sleep(outage.failed(&with_causes(&error))).await,
            }
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
        if self.leases.lose(&receipt) {
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

/// The verdict that gives a job back unharmed, for those that were never started.
pub(crate) fn released(job: Arc<leasehold_core::Job>) -> Finished {
    Finished { job, ending: Ending::Verdict(Verdict::release()), transactional: false, took: Duration::ZERO }
}
