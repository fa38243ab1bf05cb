//! Extending leases.

use leasehold_core::time::{between, later};
use leasehold_core::{HeartbeatOutcome, LeaseFor, Receipt};

use crate::state::State;

/// Extends each lease that is still live, in order (H5).
pub(crate) fn heartbeat(state: &mut State, receipts: &[Receipt], extend: LeaseFor) -> Vec<HeartbeatOutcome> {
    receipts.iter().map(|receipt| extend_one(state, receipt, extend)).collect()
}

fn extend_one(state: &mut State, receipt: &Receipt, extend: LeaseFor) -> HeartbeatOutcome {
    let Some(row) = state.held(receipt) else {
        state.tell_lost(receipt);
        return HeartbeatOutcome::Lost; // H4
    };
    let (now, slot) = (state.now, row.slot);
    if state.locks.is_locked(receipt.job) {
        return HeartbeatOutcome::Pending; // T10
    }
    let Some(before) = row.job.lease.as_ref().map(|lease| lease.until).filter(|until| *until > now) else {
        return HeartbeatOutcome::Lost; // H3
    };
    let until = later(now, state.queues[slot].policy.lease_for(extend).get()); // H1, P6
    if until <= before {
        return HeartbeatOutcome::Extended { until: before, left: between(now, before) }; // H2
    }
    state.update(receipt.job, |job, _| {
        if let Some(lease) = &mut job.lease {
            lease.until = until;
        }
        job.updated_at = now; // H6
    });
    state.queues.touch(slot);
    HeartbeatOutcome::Extended { until, left: between(now, until) }
}
