//! Settle: the verdicts on jobs of a shard, so many in one script.

use leasehold_core::{
    Archive, Delay, Fate, QueueName, Receipt, Result, RetryAfter, SettleOutcome, StoreError, Verdict, backend,
};

use crate::directory::Directory;
use crate::error::Effect;
use crate::keys::Shard;
use crate::link::{Link, Places, TRIES, answered_time};
use crate::portion::portions;
use crate::script::{Call, micros, scripts};
use crate::{fan, id};

pub(crate) async fn settle(link: &Link, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
    let shards = link.by_shard(items.iter().map(|(receipt, _)| receipt.job));
    let calls = shards.into_iter().map(|(shard, places)| async move {
        let items = places.iter().map(|place| &items[*place]).collect::<Vec<_>>();
        let mut outcomes = Vec::with_capacity(items.len());
        for portion in portions(&items, |(_, verdict)| document(verdict).len()) {
            let settled = settle_shard(link, shard, portion).await;
            outcomes.extend(fan::next("settle", settled, !outcomes.is_empty())?);
        }
        Ok((places, outcomes))
    });
    fan::answers("settle", SettleOutcome::LeaseLost, items.len(), calls).await
}

async fn settle_shard(
    link: &Link,
    shard: Shard,
    items: &[&(Receipt, Verdict)],
) -> Result<Vec<SettleOutcome>> {
    let shares: Vec<f64> = items.iter().map(|_| 2.0 * fastrand::f64() - 1.0).collect();
    for _ in 0..TRIES {
        // Each time anew: the number of a queue may be another's by now.
        let queues = link.locate("settle", items.iter().map(|(receipt, _)| receipt.job)).await?;
        let places = Places::new(queues.iter().flatten());
        let answers: Option<Vec<String>> = link
            .try_run("settle", Effect::Write, (&scripts::settle, shard), |directory, call| {
                places.keys(&link.layout, call);
                call.arg(queues.iter().flatten().count());
                for (((receipt, verdict), queue), share) in items.iter().zip(&queues).zip(&shares) {
                    let Some(queue) = queue else { continue };
                    call.arg(places.of(queue)).arg(id::text(receipt.job)).arg(receipt.epoch.get());
                    item(directory, queue, verdict, *share, call);
                }
            })
            .await?;
        if let Some(answers) = answers {
            let mut answers = answers.iter();
            let mut answer = |queue: &Option<_>| queue.as_ref().and_then(|_| answers.next());
            let pairs = items.iter().zip(queues.iter().map(|queue| answer(queue).map_or("", String::as_str)));
            return pairs.map(|((receipt, verdict), answer)| outcome(*receipt, verdict, answer)).collect();
        }
    }
    Err(link.behind("settle"))
}

fn item(directory: &Directory, queue: &QueueName, verdict: &Verdict, share: f64, call: &mut Call) {
    let policy = directory.policy(queue);
    let (name, after) = match verdict {
        Verdict::Done(_) => ("completed", None),
        Verdict::Retry { after: RetryAfter::Backoff, .. } => ("retry", None),
        Verdict::Retry { after: RetryAfter::Delay(delay), .. } => ("retry", Some(*delay)),
        Verdict::Snooze { after } => ("snooze", Some(*after)),
        Verdict::Dead { .. } => ("dead_letter", None),
        Verdict::Discard { .. } => ("discarded", None),
    };
    let after = after.map_or_else(String::new, |delay: Delay| micros(delay.get()).to_string());
    call.arg(name).arg(document(verdict)).arg(after).arg(share * policy.backoff.jitter());
    call.arg(kept(policy.archive)).backoff(&policy.backoff);
}

/// What a verdict leaves with its job.
fn document(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Done(document)
        | Verdict::Retry { error: document, .. }
        | Verdict::Dead { error: document }
        | Verdict::Discard { reason: document } => document.as_str(),
        Verdict::Snooze { .. } => "",
    }
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
