//! An administrator's word on one job.

use leasehold_core::{
    EventKind, Intervention, Job, JobId, JobState, Outcome, Result, Schedule, StoreError, backend,
};

use crate::state::{Row, State};

/// Does what the administrator says, whoever holds the job.
pub(crate) fn intervene(state: &mut State, id: JobId, intervention: &Intervention) -> Result<()> {
    let Some(row) = state.jobs.get(&id) else {
        return Err(match state.history.get(id) {
            Some(_) => StoreError::conflict(format!("job {id} is finished")),
            None => StoreError::NotFound(id),
        }); // A5
    };
    let waits = matches!(row.job.state(state.now), JobState::Scheduled | JobState::Retrying);
    match intervention {
        Intervention::RetryLater(schedule) => requeue(state, id, schedule),
        Intervention::Discard { reason } => discard(state, id, Outcome::Discarded { reason: reason.clone() }),
        Intervention::Promote if waits => requeue(state, id, &Schedule::Now), // A3
        Intervention::Promote => {}
    }
    Ok(())
}

/// Makes the job available at another time (A1).
fn requeue(state: &mut State, id: JobId, schedule: &Schedule) {
    if let Some(Row { job, slot }) = state.remove(id).map(taken) {
        state.tell(EventKind::Retried, &job.queue, id);
        let available_at = schedule.available_at(state.now);
        state.insert(slot, Job { lease: None, available_at, updated_at: state.now, ..job });
    }
}

/// Ends the job (A2). Its history row names the holder.
fn discard(state: &mut State, id: JobId, outcome: Outcome) {
    if let Some(Row { job, slot }) = state.remove(id).map(taken) {
        state.tell(EventKind::Settled, &job.queue, id);
        state.archive(slot, backend::finished(job, outcome, state.now));
    }
}

/// The job in the epoch after that of its holder, if it has one (A4).
fn taken(mut row: Row) -> Row {
    if row.job.lease.is_some() {
        row.job.epoch = row.job.epoch.next();
    }
    row
}
