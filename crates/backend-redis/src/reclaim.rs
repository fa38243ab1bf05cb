//! Reclaim: over all queues, so many in one script.

use leasehold_core::{
    BatchSize, Kind, OnExpiry, QueueName, Queues, ReclaimFate, Reclaimed, Result, WorkerId, backend,
};

use crate::error::Effect;
use crate::link::{Link, QUEUES_PER_SCRIPT, answered_id, answered_time};
use crate::script::scripts;

/// Where among the keys, id, kind, attempts, worker, when it is available again.
type Taken = (usize, String, String, u32, String, String);

pub(crate) async fn reclaim(link: &Link, limit: BatchSize) -> Result<Vec<Reclaimed>> {
    let queues = link.select("reclaim", &Queues::all()).await?;
    let mut reclaimed = Vec::new();
    for chunk in queues.chunks(QUEUES_PER_SCRIPT) {
        let left = limit.as_usize() - reclaimed.len();
        if left == 0 {
            break;
        }
        let seed = fastrand::u32(1..i32::MAX as u32);
        let taken: Vec<Taken> = link
            .run("reclaim", Effect::Write, &scripts::reclaim, |directory, call| {
                call.arg(left).arg(seed);
                for queue in chunk {
                    let policy = directory.policy(queue);
                    let waits = if policy.on_expiry == OnExpiry::Backoff { "backoff" } else { "" };
                    call.key(link.prefix.queue(queue)).arg(waits).arg(policy.backoff.jitter());
                    call.backoff(&policy.backoff);
                }
            })
            .await?;
        for taken in taken {
            reclaimed.extend(crate::row::readable(told(chunk, taken)));
        }
    }
    Ok(reclaimed)
}

fn told(queues: &[QueueName], (place, id, kind, attempts, worker, available_at): Taken) -> Result<Reclaimed> {
    let id = answered_id(&id)?;
    let fate = match available_at.as_str() {
        "" => ReclaimFate::DeadLettered,
        time => ReclaimFate::Requeued { available_at: answered_time(time)? },
    };
    let worker = match worker.as_str() {
        "" => None,
        worker => Some(backend::stored(WorkerId::new(worker), "worker", id)?),
    };
    let kind = backend::stored(Kind::new(kind), "kind", id)?;
    Ok(Reclaimed { id, queue: queues[place - 1].clone(), kind, attempts, worker, fate })
}
