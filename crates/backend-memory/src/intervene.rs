//! An administrator's word on one job.

use leasehold_core::backend::{self, Applied};
use leasehold_core::{EventKind, Intervention, JobId, Result, StoreError};

use crate::state::{Row, State};

/// Does what the administrator says, whoever holds the job.
pub(crate) fn intervene(state: &mut State, id: JobId, intervention: &Intervention) -> Result<()> {
    let Some(Row { job, slot }) = state.jobs.get(&id).map(Box::as_ref) else {
        return Err(match state.history.get(id) {
            Some(_) => StoreError::conflict(format!("job {id} is finished")),
            None => StoreError::NotFound(id),
        }); // A5
    };
    let slot = *slot;
    let Some(applied) = backend::apply_intervention(job.clone(), intervention, state.now) else {
        return Ok(()); // A3
    };
    if state.locks.is_locked(id) {
        return Err(StoreError::row_locked("intervene")); // T10
    }
    state.remove(id);
    match applied {
        Applied::Live(job, _) => {
            state.tell(EventKind::Retried, &job.queue, id);
            state.insert(slot, job); // A1, A3
        }
        Applied::Finished(job, _) => {
            state.tell(EventKind::Settled, &job.queue, id);
            state.archive(slot, job); // A2
        }
    }
    Ok(())
}
