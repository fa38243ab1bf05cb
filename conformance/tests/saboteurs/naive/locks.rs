//! Rows that open transactions have locked, for a store that locks rows as most databases do.
//!
//! `lock_in` locks a row. `settle_in` does so only with row locks; without them the first to count wins, and a commit that comes
//! too late fails. A heartbeat or a verdict on a locked row is answered Pending, a reclaim skips it, and an administrator or another
//! transaction waits. The commit, the rollback or the drop of a transaction unlocks its rows.

use chrono::{DateTime, Utc};
use leasehold_core::{Job, NewJob, Receipt, Result, SettleOutcome, StoreError, Verdict};

use super::{Naive, State, breathe};
use crate::fault::Fault;

/// Waits until no transaction has any of these rows locked, as a plain `UPDATE` does.
pub(super) async fn wait_for_all(store: &Naive, items: &[(Receipt, Verdict)]) {
    while store.atomically(|state, _| state.has_locked(items)).await {
        breathe().await;
    }
}

/// Waits while a caller wants a key that an open transaction has taken, whoever that is.
pub(super) async fn wait_for_rivals(store: &Naive, jobs: &[NewJob]) {
    while store.atomically(|state, _| state.is_closed_to(jobs)).await {
        breathe().await;
    }
}

impl State {
    fn is_closed_to(&mut self, jobs: &[NewJob]) -> bool {
        let is_wanted = |taken: &Job| {
            let mut wanted = jobs.iter().filter(|job| *job.queue() == taken.queue);
            taken.unique_key.is_some() && wanted.any(|job| job.unique_key() == taken.unique_key.as_ref())
        };
        self.has_rivals |= self.uncommitted.iter().any(|(_, taken)| is_wanted(taken));
        self.has_rivals
    }

    /// Ends the locks of one transaction.
    pub(super) fn unlock(&mut self, owner: u64) {
        self.rows.retain(|_, other| *other != owner);
        self.uncommitted.retain(|(other, _)| *other != owner);
        self.has_rivals &= !self.uncommitted.is_empty();
    }

    pub(super) fn has_locked(&self, items: &[(Receipt, Verdict)]) -> bool {
        items.iter().any(|(receipt, _)| self.rows.contains_key(&receipt.job))
    }

    /// Whether a verdict with this receipt was answered Pending before, and that is to be the end of it.
    pub(super) fn is_dropped(&self, receipt: Receipt) -> bool {
        self.dropped.contains(&receipt) && !self.rows.contains_key(&receipt.job)
    }

    /// What a batch is answered in which a row is locked, if the fault is that it is not answered item by item.
    pub(super) fn spoil_locked_batch(
        &self,
        items: &[(Receipt, Verdict)],
    ) -> Option<Result<Vec<SettleOutcome>>> {
        match self.fault.filter(|_| self.has_locked(items)) {
            Some(Fault::LockedJobSpoilsTheBatch) => {
                Some(Ok(items.iter().map(|_| SettleOutcome::Pending).collect()))
            }
            Some(Fault::LockedJobFailsTheBatch) if items.len() > 1 => {
                Some(Err(StoreError::row_locked("settle")))
            }
            _ => None,
        }
    }

    /// What a verdict on a row is answered that another transaction has locked.
    pub(super) fn locked(&mut self, receipt: Receipt, now: DateTime<Utc>) -> SettleOutcome {
        match self.fault {
            Some(Fault::LockedJobIsLost) => {
                self.tell_lost(receipt, now);
                SettleOutcome::LeaseLost
            }
            Some(Fault::PendingVerdictIsDropped) => {
                self.dropped.insert(receipt);
                SettleOutcome::Pending
            }
            _ => SettleOutcome::Pending,
        }
    }
}
