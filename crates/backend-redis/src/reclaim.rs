//! Reclaim: of the queues that may have passed leases, so many in one script.

use leasehold_core::{
    BatchSize, Kind, OnExpiry, QueueName, ReclaimFate, Reclaimed, Result, WorkerId, backend,
};

use crate::error::Effect;
use crate::fan;
use crate::keys::Shard;
use crate::link::{JOBS_PER_SCRIPT, Link, QUEUES_PER_SCRIPT, answered_id, answered_time, queue_name};
use crate::script::scripts;

/// Where among the keys, id, kind, attempts, worker, when it is available again.
type Taken = (usize, String, String, u32, String, String);

/// Each shard in turn, from one by chance, so that none is starved by a full page of another. Queues that may have passed
/// leases are asked for in all shards at once: mostly there are none.
pub(crate) async fn reclaim(link: &Link, limit: BatchSize) -> Result<Vec<Reclaimed>> {
    let looks = link.layout.shards().map(|shard| async move {
        let queues = overdue(link, shard).await?;
        Ok(if queues.is_empty() { Vec::new() } else { vec![(shard, queues)] })
    });
    let mut shards = fan::some(looks).await?;
    if !shards.is_empty() {
        let first = fastrand::usize(..shards.len());
        shards.rotate_left(first);
    }
    let mut reclaimed = Vec::new();
    for (shard, mut queues) in shards {
        while !queues.is_empty() && reclaimed.len() < limit.as_usize() {
            let wanted = (limit.as_usize() - reclaimed.len()).min(JOBS_PER_SCRIPT);
            match take(link, shard, &queues, wanted).await {
                Ok(taken) => reclaimed.extend(taken),
                Err(error) if reclaimed.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "a shard did not answer; what others gave is told");
                    break;
                }
            }
            queues = overdue(link, shard).await.unwrap_or_default();
        }
    }
    Ok(reclaimed)
}

async fn overdue(link: &Link, shard: Shard) -> Result<Vec<QueueName>> {
    let names: Vec<String> = link
        .run("reclaim", Effect::Read, (&scripts::overdue, shard), |_, call| {
            call.arg(QUEUES_PER_SCRIPT);
        })
        .await?;
    Ok(names.into_iter().filter_map(queue_name).collect())
}

async fn take(link: &Link, shard: Shard, queues: &[QueueName], limit: usize) -> Result<Vec<Reclaimed>> {
    let seed = fastrand::u32(1..i32::MAX as u32);
    let taken: Vec<Taken> = link
        .run("reclaim", Effect::Write, (&scripts::reclaim, shard), |directory, call| {
            call.arg(limit).arg(seed);
            for queue in queues {
                let policy = directory.policy(queue);
                let waits = if policy.on_expiry == OnExpiry::Backoff { "backoff" } else { "" };
                call.key(link.layout.queue(queue)).arg(waits).arg(policy.backoff.jitter());
                call.backoff(&policy.backoff);
            }
        })
        .await?;
    Ok(taken.into_iter().filter_map(|taken| crate::row::readable(told(queues, taken))).collect())
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
