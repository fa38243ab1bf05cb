//! Heartbeat: one script for all the leases.

use leasehold_core::{HeartbeatOutcome, LeaseFor, Receipt, Result, StoreError, time};

use crate::error::Effect;
use crate::id;
use crate::link::{Link, Places, answered_time};
use crate::script::{micros, scripts};

pub(crate) async fn heartbeat(
    link: &Link,
    receipts: &[Receipt],
    extend: LeaseFor,
) -> Result<Vec<HeartbeatOutcome>> {
    let queues = link.locate("heartbeat", receipts.iter().map(|receipt| receipt.job)).await?;
    let known: Vec<_> = receipts
        .iter()
        .zip(&queues)
        .filter_map(|(receipt, queue)| Some((receipt, queue.as_ref()?)))
        .collect();
    let mut outcomes = Vec::new().into_iter();
    if !known.is_empty() {
        let places = Places::new(known.iter().map(|(_, queue)| *queue));
        let answers: Vec<String> = link
            .run("heartbeat", Effect::Write, &scripts::heartbeat, |directory, call| {
                places.keys(&link.prefix, call);
                call.arg(known.len());
                for (receipt, queue) in &known {
                    let length = directory.policy(queue).lease_for(extend); // P6
                    call.arg(places.of(queue)).arg(id::text(receipt.job)).arg(receipt.epoch.get());
                    call.arg(micros(length.get()));
                }
            })
            .await?;
        outcomes = told(&answers)?.into_iter();
    }
    let answer = |queue: &Option<_>| queue.as_ref().and_then(|_| outcomes.next());
    Ok(queues.iter().map(answer).map(|answer| answer.unwrap_or(HeartbeatOutcome::Lost)).collect())
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
