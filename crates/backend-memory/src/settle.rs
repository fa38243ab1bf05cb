//! Applying verdicts.

use leasehold_core::backend::{self, Applied};
use leasehold_core::{EventKind, Fate, Receipt, SettleOutcome, Verdict};

use crate::directory::Slot;
use crate::state::{Row, State};

/// Applies each verdict whose receipt is good, in order (S1).
pub(crate) fn settle(state: &mut State, items: &[(Receipt, Verdict)]) -> Vec<SettleOutcome> {
    items.iter().map(|(receipt, verdict)| settle_one(state, receipt, verdict)).collect()
}

/// Puts what a verdict has made of a job in the place from which the job was removed.
pub(crate) fn put(state: &mut State, slot: Slot, applied: Applied) -> Fate {
    match applied {
        Applied::Live(job, fate) => {
            state.tell(EventKind::Retried, &job.queue, job.id);
            state.insert(slot, job);
            fate
        }
        Applied::Finished(job, fate) => {
            let kind = if fate == Fate::DeadLettered { EventKind::DeadLettered } else { EventKind::Settled };
            state.tell(kind, &job.queue, job.id);
            state.archive(slot, job);
            fate
        }
    }
}

fn settle_one(state: &mut State, receipt: &Receipt, verdict: &Verdict) -> SettleOutcome {
    let held = state.held(receipt).is_some(); // S10, S11, S13
    if held && state.locks.is_locked(receipt.job) {
        return SettleOutcome::Pending; // S14
    }
    let Some(Row { job, slot }) = held.then(|| state.remove(receipt.job)).flatten() else {
        state.tell_lost(receipt);
        return SettleOutcome::LeaseLost; // S2
    };
    let random = state.random();
    let policy = &state.queues[slot].policy;
    let applied = backend::apply_verdict(job, verdict.clone(), policy, state.now, random); // S3 to S9
    backend::settled_outcome(*receipt, put(state, slot, applied))
}
