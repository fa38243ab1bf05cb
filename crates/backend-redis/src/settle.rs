//! Settle: one script for all the verdicts.

use leasehold_core::{
    Archive, Delay, Fate, QueueName, Receipt, Result, RetryAfter, SettleOutcome, StoreError, Verdict, backend,
};

use crate::directory::Directory;
use crate::error::Effect;
use crate::id;
use crate::link::{Link, Places, answered_time};
use crate::script::{Call, micros, scripts};

pub(crate) async fn settle(link: &Link, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
    let queues = link.locate("settle", items.iter().map(|(receipt, _)| receipt.job)).await?;
    let known: Vec<_> =
        items.iter().zip(&queues).filter_map(|(item, queue)| Some((item, queue.as_ref()?))).collect();
    let mut outcomes = Vec::new().into_iter();
    if !known.is_empty() {
        let places = Places::new(known.iter().map(|(_, queue)| *queue));
        let shares: Vec<f64> = known.iter().map(|_| 2.0 * fastrand::f64() - 1.0).collect();
        let answers: Vec<String> = link
            .run("settle", Effect::Write, &scripts::settle, |directory, call| {
                places.keys(&link.prefix, call);
                call.arg(known.len());
                for (((receipt, verdict), queue), share) in known.iter().zip(&shares) {
                    call.arg(places.of(queue)).arg(id::text(receipt.job)).arg(receipt.epoch.get());
                    item(directory, queue, verdict, *share, call);
                }
            })
            .await?;
        let pairs = known.iter().zip(&answers);
        let outcome = pairs.map(|(((receipt, verdict), _), answer)| outcome(*receipt, verdict, answer));
        outcomes = outcome.collect::<Result<Vec<_>>>()?.into_iter();
    }
    let lost = SettleOutcome::LeaseLost;
    Ok(queues
        .iter()
        .map(|queue| queue.as_ref().and_then(|_| outcomes.next()).unwrap_or(lost.clone()))
        .collect())
}

fn item(directory: &Directory, queue: &QueueName, verdict: &Verdict, share: f64, call: &mut Call) {
    let policy = directory.policy(queue);
    let (name, document, after) = match verdict {
        Verdict::Done(result) => ("completed", result.as_str(), None),
        Verdict::Retry { error, after: RetryAfter::Backoff } => ("retry", error.as_str(), None),
        Verdict::Retry { error, after: RetryAfter::Delay(delay) } => ("retry", error.as_str(), Some(*delay)),
        Verdict::Snooze { after } => ("snooze", "", Some(*after)),
        Verdict::Dead { error } => ("dead_letter", error.as_str(), None),
        Verdict::Discard { reason } => ("discarded", reason.as_str(), None),
    };
    let after = after.map_or_else(String::new, |delay: Delay| micros(delay.get()).to_string());
    call.arg(name).arg(document).arg(after).arg(share * policy.backoff.jitter());
    call.arg(kept(policy.archive)).backoff(&policy.backoff);
}

/// Which finished jobs are kept, as the scripts have it.
pub(crate) fn kept(archive: Archive) -> &'static str {
    archive.as_str()
}

fn outcome(receipt: Receipt, verdict: &Verdict, answer: &str) -> Result<SettleOutcome> {
    let fate = match answer {
        "" => return Ok(SettleOutcome::LeaseLost),
        "completed" => Fate::Completed,
        "dead_letter" => Fate::DeadLettered,
        "discarded" => Fate::Discarded,
        time => {
            let available_at = answered_time(time)?;
            match verdict {
                Verdict::Retry { .. } => Fate::Retrying { available_at },
                Verdict::Snooze { .. } => Fate::Snoozed { available_at },
                _ => return Err(StoreError::corrupt(format!("a script answered {time:?} to a verdict"))),
            }
        }
    };
    Ok(backend::settled_outcome(receipt, fate))
}
