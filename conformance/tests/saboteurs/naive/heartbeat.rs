//! Extending leases.

use chrono::{DateTime, Utc};
use leasehold_core::{HeartbeatOutcome, LeaseFor, Receipt, Result, backend, time};

use super::{Naive, State, breathe};
use crate::fault::Fault;

pub(super) async fn heartbeat(
    store: &Naive,
    receipts: &[Receipt],
    extend: LeaseFor,
) -> Result<Vec<HeartbeatOutcome>> {
    backend::check_batch("receipts", receipts.len())?;
    if store.has(Fault::HeartbeatWaitsForTransactions)
        && store.atomically(|state, _| !state.locked.is_empty()).await
    {
        std::future::pending::<()>().await;
    }
    if store.has(Fault::HeartbeatChecksThenActs) {
        let mut before = store.atomically(|state, _| state.clone()).await;
        breathe().await;
        let act = |state: &mut State, now| {
            let outcomes = before.heartbeat(receipts, extend, now);
            for receipt in receipts {
                if let (Some(job), Some(known)) =
                    (state.jobs.get_mut(&receipt.job), before.jobs.get(&receipt.job))
                {
                    job.lease = known.lease.clone();
                }
            }
            outcomes
        };
        return Ok(store.atomically(act).await);
    }
    Ok(store.atomically(|state, now| state.heartbeat(receipts, extend, now)).await)
}

impl State {
    fn heartbeat(
        &mut self,
        receipts: &[Receipt],
        extend: LeaseFor,
        now: DateTime<Utc>,
    ) -> Vec<HeartbeatOutcome> {
        let mut outcomes: Vec<_> =
            receipts.iter().map(|receipt| self.extend(*receipt, extend, now)).collect();
        if self.has(Fault::HeartbeatAnswersOutOfOrder) {
            outcomes.sort_by_key(|outcome| *outcome == HeartbeatOutcome::Lost);
        }
        if self.has(Fault::HeartbeatAnswersOnce) {
            outcomes.dedup();
        }
        if self.has(Fault::LostHeartbeatSpoilsTheBatch) && outcomes.contains(&HeartbeatOutcome::Lost) {
            outcomes.fill(HeartbeatOutcome::Lost);
        }
        outcomes
    }

    fn extend(&mut self, receipt: Receipt, extend: LeaseFor, now: DateTime<Utc>) -> HeartbeatOutcome {
        let fault = self.fault;
        let any_epoch = self.has(Fault::HeartbeatByIdOnly);
        let touch = self.has(Fault::LostHeartbeatTouchesUpdatedAt);
        let Some(job) = self.jobs.get_mut(&receipt.job) else { return self.heartbeat_lost(receipt, now) };
        let queue = job.queue.clone();
        let good = job.epoch == receipt.epoch || any_epoch;
        let passed = job.lease.as_ref().is_some_and(|lease| lease.until <= now);
        if good
            && job.lease.is_some()
            && self.rows.contains_key(&receipt.job)
            && !(passed && fault == Some(Fault::LockedPassedLeaseIsLost))
        {
            return HeartbeatOutcome::Pending;
        }
        let lease = job.lease.as_mut().filter(|lease| {
            good && (lease.until > now || fault == Some(Fault::HeartbeatRevivesAnExpiredLease))
        });
        let Some(lease) = lease else {
            let passed = good && job.lease.is_some();
            if touch {
                job.updated_at = now;
            }
            // A lease that has passed cannot be extended, but its receipt is not stale.
            return if passed { HeartbeatOutcome::Lost } else { self.heartbeat_lost(receipt, now) };
        };
        let old = lease.until;
        let length = self.lease_length(&queue, extend, Fault::HeartbeatIgnoresMaxLease);
        let asked = match fault {
            Some(Fault::HeartbeatAddsToTheEnd) => time::later(old, length),
            _ => time::later(self.or_hosts(now, Fault::HeartbeatByTheHostsClock), length),
        };
        let until = if fault == Some(Fault::HeartbeatShortens) { asked } else { asked.max(old) };
        self.write_lease(receipt, until, now);
        let told = if fault == Some(Fault::HeartbeatTellsWhatWasAsked) { asked } else { until };
        HeartbeatOutcome::Extended { until: told, left: time::between(now, told) }
    }

    fn write_lease(&mut self, receipt: Receipt, until: DateTime<Utc>, now: DateTime<Utc>) {
        let fault = self.fault;
        let Some(job) = self.jobs.get_mut(&receipt.job) else { return };
        job.updated_at = now;
        if let Some(lease) = &mut job.lease {
            lease.until = until;
        }
        match fault {
            Some(Fault::HeartbeatRaisesTheEpoch) => job.epoch = job.epoch.next(),
            Some(Fault::HeartbeatSpendsAnAttempt) => job.attempts += 1,
            Some(Fault::HeartbeatForgetsTheError) => job.last_error = None,
            _ => {}
        }
    }

    fn heartbeat_lost(&mut self, receipt: Receipt, now: DateTime<Utc>) -> HeartbeatOutcome {
        self.tell_lost(receipt, now);
        HeartbeatOutcome::Lost
    }
}
