//! An administrator's word on one job.

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Text};
use leasehold_core::{Intervention, JobId, Json, StoreError, Verdict};
use leasehold_sql::{Rules, Stored};

use crate::endings::{End, Endings, Locked, lease_ended};
use crate::error::Failure;
use crate::policy::rules;
use crate::session::Session;

/// How often a job that is nowhere is looked for again: it may be on its way back from the history.
const LOOKS: u32 = 3;

/// Does what the administrator says, whoever holds the job.
pub(crate) async fn intervene(
    session: &mut Session<'_>,
    id: JobId,
    intervention: &Intervention,
) -> Result<(), Failure> {
    if let Intervention::Discard { reason } = intervention {
        session.packet.check_verdict(&Verdict::Discard { reason: reason.clone() })?;
    }
    session.begin().await?;
    let (job, queue) = lock(session, id).await?;
    let (now, mut rules) = rules(session).await?;
    let (sql, number) = (session.sql, id.get());
    match intervention {
        Intervention::RetryLater(schedule) => {
            lease_ended(session, &mut rules, &queue);
            let at = schedule.available_at(now); // A1
            session.count(&sql.retry_later, vec![at.into(), now.into(), number.into()]).await?;
        }
        Intervention::Discard { reason } => discard(session, &mut rules, job, &queue, reason, now).await?,
        Intervention::Promote => {
            let params = vec![now.into(), now.into(), number.into(), now.into()];
            session.count(&sql.promote, params).await?;
        }
    }
    session.commit().await?;
    session.wake(&queue);
    Ok(())
}

/// Locks the job, and tells its queue (A5).
async fn lock(session: &mut Session<'_>, id: JobId) -> Result<(Locked, Stored), Failure> {
    let sql = session.sql;
    for _ in 0..LOOKS {
        let found: Option<(Stored, i64, i64)> =
            session.row::<(Text, BigInt, BigInt), _>(&sql.queue_of, vec![id.get().into()]).await?;
        if let Some((queue, epoch, leased)) = found {
            return Ok((Locked { id: id.get(), epoch, is_leased: leased != 0 }, queue));
        }
        if session.row::<BigInt, i64>(&sql.is_finished, vec![id.get().into()]).await?.is_some() {
            return Err(StoreError::conflict(format!("job {id} is finished")).into());
        }
    }
    Err(StoreError::NotFound(id).into())
}

/// Ends the job (A2).
async fn discard(
    session: &mut Session<'_>,
    rules: &mut Rules,
    job: Locked,
    queue: &str,
    reason: &Json,
    now: DateTime<Utc>,
) -> Result<(), Failure> {
    lease_ended(session, rules, queue);
    let mut endings = Endings::default();
    endings.finish(rules, job, queue, End { raise: true, ..End::discarded(Some(reason.as_str())) }); // A4
    endings.write(session, now).await
}
