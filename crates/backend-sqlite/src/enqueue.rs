//! Accepting jobs.

use diesel::sql_types::BigInt;
use leasehold_core::{Enqueued, JobId, NewJob};
use leasehold_sql::{Rules, headers_json};

use crate::error::Failure;
use crate::policy::rules;
use crate::session::Session;

/// Accepts jobs, one after the other: within the transaction they are one step (E1, E2, E10).
pub(crate) fn enqueue(session: &mut Session<'_>, jobs: &[NewJob]) -> Result<Vec<Enqueued>, Failure> {
    let mut rules = rules(session)?;
    jobs.iter().map(|job| enqueue_one(session, &mut rules, job)).collect()
}

fn enqueue_one(session: &mut Session<'_>, rules: &mut Rules, job: &NewJob) -> Result<Enqueued, Failure> {
    let max_attempts = job.max_attempts().unwrap_or_else(|| rules.of(job.queue()).max_attempts); // E12
    let params = vec![
        job.queue().as_str().into(),
        job.kind().as_str().into(),
        i64::from(job.priority()).into(),
        job.unique_key().map(|key| key.as_str()).into(),
        job.payload().as_str().into(),
        headers_json(job.headers()).into(),
        max_attempts.get().into(),
        job.schedule().available_at(session.now).into(), // E8
        session.now.into(),
    ];
    let sql = session.sql;
    if let Some(id) = session.row::<BigInt, i64>(&sql.enqueue, params)? {
        session.wake(job.queue().as_str());
        return Ok(Enqueued { id: JobId::new(id), deduplicated: false });
    }
    let key = job.unique_key().map(|key| key.as_str());
    let taken = session.row::<BigInt, i64>(&sql.taken, vec![job.queue().as_str().into(), key.into()])?;
    let id = taken.ok_or_else(|| Failure::Other("a unique key was taken by no job".into()))?;
    Ok(Enqueued { id: JobId::new(id), deduplicated: true }) // E3, E4
}
