//! Heartbeat: one script for all the leases of a shard.

use leasehold_core::{HeartbeatOutcome, LeaseFor, QueueName, Receipt, Result, StoreError, time};

use crate::error::Effect;
use crate::keys::Shard;
use crate::link::{Link, Places, answered_time, grouped};
use crate::script::{micros, scripts};
use crate::{fan, id};

pub(crate) async fn heartbeat(
    link: &Link,
    receipts: &[Receipt],
    extend: LeaseFor,
) -> Result<Vec<HeartbeatOutcome>> {
    let queues = link.locate("heartbeat", receipts.iter().map(|receipt| receipt.job)).await?;
    let queues = &queues;
    let known = queues.iter().enumerate();
    let known = known.filter_map(|(place, queue)| Some((link.layout.shard(queue.as_ref()?), place)));
    let calls = grouped(known).into_iter().map(|(shard, places)| async move {
        let held: Vec<_> =
            places.iter().filter_map(|place| Some((receipts[*place], queues[*place].as_ref()?))).collect();
        let outcomes = extend_shard(link, shard, &held, extend).await?;
        Ok((places, outcomes))
    });
    fan::answers("heartbeat", HeartbeatOutcome::Lost, receipts.len(), calls).await
}

async fn extend_shard(
    link: &Link,
    shard: Shard,
    held: &[(Receipt, &QueueName)],
    extend: LeaseFor,
) -> Result<Vec<HeartbeatOutcome>> {
    let places = Places::new(held.iter().map(|(_, queue)| *queue));
    let answers: Vec<String> = link
        .run("heartbeat", Effect::Write, (&scripts::heartbeat, shard), |directory, call| {
            places.keys(&link.layout, call);
            call.arg(held.len());
            for (receipt, queue) in held {
                let length = directory.policy(queue).lease_for(extend); // P6
                call.arg(places.of(queue)).arg(id::text(receipt.job)).arg(receipt.epoch.get());
                call.arg(micros(length.get()));
            }
        })
        .await?;
    told(&answers)
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
