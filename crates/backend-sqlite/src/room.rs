//! Ids that are there twice: a live job has the id of a finished one (C7).
//!
//! It happens when `job_queue` was restored from an older backup than `job_history`. Such a job could never end, and one of them would fail
//! a whole reclaim. So the finished job gets another id, and the ids of new jobs begin behind all there are.

use diesel::sql_types::BigInt;

use crate::error::Failure;
use crate::session::Session;

/// Gives those finished jobs that have one of these ids another one, and tells by how much it is larger.
pub(crate) fn make_room(session: &mut Session<'_>, ids: &[i64]) -> Result<i64, Failure> {
    let (Some(first), Some(last)) = (ids.iter().min(), ids.iter().max()) else { return Ok(0) };
    let sql = session.sql;
    let largest = session.row::<BigInt, i64>(&sql.largest, Vec::new())?.unwrap_or_default();
    let by = largest.saturating_add(1).saturating_sub(*first);
    let moved = session.count(&sql.move_finished, vec![by.into(), ids.iter().copied().collect()])?;
    session.count(&sql.skip_ids, vec![last.saturating_add(by).into()])?;
    tracing::warn!(
        finished_jobs = moved,
        "live jobs had the ids of finished ones, which were given other ids: was a table restored from a backup?"
    );
    Ok(by)
}
