//! An administrator's word on one job.

use leasehold_core::{Intervention, JobId, Result, Schedule, StoreError};

use crate::error::Effect;
use crate::id;
use crate::link::Link;
use crate::script::scripts;
use crate::settle::kept;

pub(crate) async fn intervene(link: &Link, job: JobId, word: &Intervention) -> Result<()> {
    let queue = link.locate_anew("intervene", [job].into_iter()).await?.pop().flatten();
    let queue = queue.ok_or(StoreError::NotFound(job))?;
    let (name, document, schedule) = match word {
        Intervention::RetryLater(schedule) => ("retry_later", "", *schedule),
        Intervention::Discard { reason } => ("discard", reason.as_str(), Schedule::Now),
        Intervention::Promote => ("promote", "", Schedule::Now),
    };
    let answer: String = link
        .run(
            "intervene",
            Effect::Write,
            (&scripts::intervene, link.layout.shard(&queue)),
            |directory, call| {
                call.key(link.layout.queue(&queue)).arg(id::text(job)).arg(name).arg(document);
                call.arg(kept(directory.policy(&queue).archive)).schedule(schedule);
            },
        )
        .await?;
    match answer.as_str() {
        "done" => Ok(()),
        "unknown" => Err(StoreError::NotFound(job)), // A5
        status => Err(StoreError::conflict(format!("job {job} is {status}"))), // A5
    }
}
