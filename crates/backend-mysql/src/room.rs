//! Ids that are there twice: a live job has the id of a finished one (C7).
//!
//! It happens when `job_queue` was restored from an older backup than `job_history`. Such a job could never end, and one of them would fail
//! a whole reclaim. So the finished job gets another id, and the ids of new jobs begin behind all there are.

use diesel::sql_types::BigInt;

use crate::error::Failure;
use crate::session::Session;

/// A margin for ids that are given to new jobs in this moment.
const MARGIN: i64 = 1_000_000;

/// Gives those finished jobs that have one of these ids another one, in the transaction that is open.
pub(crate) async fn make_room(session: &mut Session<'_>, ids: &[i64]) -> Result<(), Failure> {
    let (Some(first), Some(last)) = (ids.iter().min(), ids.iter().max()) else { return Ok(()) };
    let sql = session.sql;
    let largest = session.row::<BigInt, i64>(&sql.largest, Vec::new()).await?.unwrap_or_default();
    let by = largest.saturating_add(MARGIN).saturating_sub(*first);
    session.say("SAVEPOINT leasehold_room").await?;
    session.count(&sql.skip_ids, vec![last.saturating_add(by).saturating_add(1).into()]).await?;
    session.say("ROLLBACK TO SAVEPOINT leasehold_room").await?;
    let moved = session.count_listed(&sql.move_finished, vec![by.into()], ids, Vec::new()).await?;
    tracing::warn!(
        finished_jobs = moved,
        "live jobs had the ids of finished ones, which were given other ids: was a table restored from a backup?"
    );
    Ok(())
}

/// What is said if an id is taken although there was room for it: others have made room at the same time.
pub(crate) fn again(failure: Failure) -> Failure {
    match failure {
        Failure::Taken(error) => Failure::Again(error),
        failure => failure,
    }
}
