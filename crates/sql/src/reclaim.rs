//! What is told of a reclaimed job.

use leasehold_core::backend::stored;
use leasehold_core::{JobId, Kind, QueueName, ReclaimFate, Reclaimed, Result, WorkerId};

/// A job that was reclaimed, by its columns as they were.
///
/// # Errors
/// [`Corrupt`](leasehold_core::StoreError::Corrupt): the job was reclaimed all the same.
pub fn reclaimed(
    id: i64,
    queue: &str,
    kind: &str,
    attempts: i64,
    worker: Option<&str>,
    fate: ReclaimFate,
) -> Result<Reclaimed> {
    let id = JobId::new(id);
    Ok(Reclaimed {
        id,
        queue: stored(QueueName::new(queue), "queue_name", id)?,
        kind: stored(Kind::new(kind), "kind", id)?,
        attempts: u32::try_from(attempts).unwrap_or_default(),
        worker: worker.map(|worker| stored(WorkerId::new(worker), "locked_by", id)).transpose()?,
        fate,
    })
}
