//! Heartbeat: the leases of a shard, so many in one script.

use leasehold_core::{HeartbeatOutcome, LeaseFor, Receipt, Result, StoreError, time};

use crate::error::Effect;
use crate::keys::Shard;
use crate::link::{Link, Places, TRIES, answered_time};
use crate::portion::portions;
use crate::script::{micros, scripts};
use crate::{fan, id};

pub(crate) async fn heartbeat(
    link: &Link,
    receipts: &[Receipt],
    extend: LeaseFor,
) -> Result<Vec<HeartbeatOutcome>> {
    let shards = link.by_shard(receipts.iter().map(|receipt| receipt.job));
    let calls = shards.into_iter().map(|(shard, places)| async move {
        let held = places.iter().map(|place| receipts[*place]).collect::<Vec<_>>();
        let mut outcomes = Vec::with_capacity(held.len());
        for portion in portions(&held, |_| 0) {
            let extended = extend_shard(link, shard, portion, extend).await;
            outcomes.extend(fan::next("heartbeat", extended, !outcomes.is_empty())?);
        }
        Ok((places, outcomes))
    });
    fan::answers("heartbeat", HeartbeatOutcome::Lost, receipts.len(), calls).await
}

async fn extend_shard(
    link: &Link,
    shard: Shard,
    held: &[Receipt],
    extend: LeaseFor,
) -> Result<Vec<HeartbeatOutcome>> {
    for _ in 0..TRIES {
        // Each time anew: the number of a queue may be another's by now.
        let queues = link.locate("heartbeat", held.iter().map(|receipt| receipt.job)).await?;
        let places = Places::new(queues.iter().flatten());
        let answers: Option<Vec<String>> = link
            .try_run("heartbeat", Effect::Write, (&scripts::heartbeat, shard), |directory, call| {
                places.keys(&link.layout, call);
                call.arg(queues.iter().flatten().count());
                for (receipt, queue) in held.iter().zip(&queues) {
                    let Some(queue) = queue else { continue };
                    let length = directory.policy(queue).lease_for(extend); // P6
                    call.arg(places.of(queue)).arg(id::text(receipt.job)).arg(receipt.epoch.get());
                    call.arg(micros(length.get()));
                }
            })
            .await?;
        if let Some(answers) = answers {
            let mut told = told(&answers)?.into_iter();
            let mut answer = |queue: &Option<_>| queue.as_ref().and_then(|_| told.next());
            return Ok(queues.iter().map(|queue| answer(queue).unwrap_or(HeartbeatOutcome::Lost)).collect());
        }
    }
    Err(link.behind("heartbeat"))
}

/// The first answer is the time at which the others hold.
fn told(answers: &[String]) -> Result<Vec<HeartbeatOutcome>> {
    let (now, answers) =
        answers.split_first().ok_or_else(|| StoreError::corrupt("a script answered nothing"))?;
    let now = answered_time(now)?;
    let told = |answer: &String| match answer.as_str() {
        "" => Ok(HeartbeatOutcome::Lost),
        time => {
            let until = answered_time(time)?;
            Ok(HeartbeatOutcome::Extended { until, left: time::between(now, until) })
        }
    };
    answers.iter().map(told).collect()
}
