//! An administrator's word on one job.

use diesel::sql_types::{BigInt, Text};
use leasehold_core::{Intervention, JobId, Json, StoreError};
use leasehold_sql::Stored;

use crate::error::Failure;
use crate::policy::rules;
use crate::session::Session;
use crate::settle::{End, finish, lease_ended};

/// Does what the administrator says, whoever holds the job.
pub(crate) fn intervene(
    session: &mut Session<'_>,
    id: JobId,
    intervention: &Intervention,
) -> Result<(), Failure> {
    let (sql, number) = (session.sql, id.get());
    let Some(queue) = session.row::<Text, Stored>(&sql.queue_of, vec![number.into()])? else {
        return Err(missing(session, id)?.into()); // A5
    };
    match intervention {
        Intervention::RetryLater(schedule) => {
            let at = schedule.available_at(session.now); // A1
            session.count(&sql.retry_later, vec![number.into(), at.into(), session.now.into()])?;
        }
        Intervention::Discard { reason } => discard(session, number, &queue, reason)?,
        Intervention::Promote => drop(session.count(&sql.promote, vec![number.into(), session.now.into()])?),
    }
    session.wake(&queue);
    Ok(())
}

/// Ends the job (A2).
fn discard(session: &mut Session<'_>, id: i64, queue: &str, reason: &Json) -> Result<(), Failure> {
    let mut rules = rules(session)?;
    lease_ended(session, &mut rules, queue);
    let end = End { raise: true, ..End::discarded(Some(reason.as_str())) }; // A4
    finish(session, &mut rules, id, queue, &end)
}

fn missing(session: &mut Session<'_>, id: JobId) -> Result<StoreError, Failure> {
    let sql = session.sql;
    Ok(match session.row::<BigInt, i64>(&sql.is_finished, vec![id.get().into()])? {
        Some(_) => StoreError::conflict(format!("job {id} is finished")),
        None => StoreError::NotFound(id),
    })
}
