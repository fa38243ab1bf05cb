//! What a backend does in its own way against what follows from its required methods.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::contract::{Clause, N1, N2, Y1, Y2, Y3, Y4, Y5};
use leasehold_core::{BatchSize, Epoch, Explanation, JobId, Queues, Receipt, Store, Verdict};

use super::scene::{at_most, dead_letter, every_state, fifo, paused, queues, slow_rate};
use super::stats::tidy;
use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure_eq};
use crate::plain::Plain;
use crate::stage::{HOUR, Stage, new_job, queue};

checks! { "derived":
    stats_agree_with_the_default [Q1, Q2, Q3];
    explanations_agree_with_the_default [Y1, Y2, Y3, Y4, Y5];
    next_available_at_agrees_with_the_default [N1, N2];
    stuck_agrees_with_the_default [G4];
    receipts_agree_with_the_default [G5];
    what_holds_for_a_queue_agrees_with_the_default [P8];
}

const QUEUES: [&str; 6] = ["plain", "shut", "full", "line", "g:1", "g:2"];

/// Six queues with jobs in every state, dead letters and finished jobs, under every sort of policy that the backend
/// keeps.
async fn rich(stage: &Stage) -> Outcome<Plain> {
    for name in QUEUES.into_iter().chain(["slow"]) {
        dead_letter(stage, new_job(name), "no").await?;
        let done = stage.leased(new_job(name)).await?;
        stage.settle(done.receipt(), Verdict::done()).await?;
    }
    every_state(stage, QUEUES).await?;
    for name in QUEUES {
        stage.enqueue(new_job(name).priority(3)).await?;
        stage.enqueue(new_job(name).priority(5).delay(HOUR)).await?;
    }
    let can = stage.store.capabilities();
    if can.policies {
        stage.set_policy("shut*", paused()).await?;
    }
    if can.concurrency_limit {
        stage.set_policy("full", at_most(2)?).await?;
        stage.set_policy("g:*", at_most(3)?).await?;
    }
    if can.fifo {
        stage.set_policy("line", fifo()).await?;
        stage.set_policy("g:2", fifo()).await?;
    }
    if can.rate_limit {
        stage.set_policy("slow", slow_rate(2)?).await?;
    }
    stage.enqueue_many("slow", 5).await?;
    for job in stage.claim("slow", 2).await? {
        stage.settle(job.receipt(), Verdict::done()).await?;
    }
    Ok(Plain::new(Arc::clone(&stage.store)))
}

fn selections() -> Outcome<Vec<Queues>> {
    let mut all: Vec<_> =
        QUEUES.into_iter().chain(["slow", "none", "g:*", "s*", "*"]).map(queues).collect::<Outcome<_>>()?;
    all.push(Queues::named(["full", "shut", "none"])?);
    all.push(Queues::named(["slow", "line"])?);
    Ok(all)
}

async fn stats_agree_with_the_default(stage: Stage) -> Outcome {
    let plain = rich(&stage).await?;
    for selection in selections()? {
        let (own, default) = (stage.store.stats(&selection).await?, plain.stats(&selection).await?);
        ensure_eq!(Q1, format!("stats of {selection:?}"), tidy(own), tidy(default));
    }
    Ok(())
}

async fn explanations_agree_with_the_default(stage: Stage) -> Outcome {
    let plain = rich(&stage).await?;
    for hours in [0, 3, 9] {
        stage.age(hours * HOUR).await?;
        let dump = stage.dump().await?;
        let ids = dump.jobs.iter().map(|job| job.id).chain(dump.history.iter().map(|job| job.id));
        for id in ids.chain([JobId::new(i64::MAX)]) {
            let (own, default) = (stage.store.explain(id).await?, plain.explain(id).await?);
            if own != default {
                let observed = format!("job {id} is explained as {own:?}, the default says {default:?}");
                return Err(Problem::Broken(clause_of(&default), observed));
            }
        }
    }
    Ok(())
}

/// The clause that promises this explanation.
fn clause_of(explanation: &Explanation) -> Clause {
    match explanation {
        Explanation::Unknown | Explanation::Finished { .. } | Explanation::DeadLetter { .. } => Y1,
        Explanation::Leased { .. } | Explanation::LeaseExpired { .. } => Y2,
        Explanation::Exhausted | Explanation::Scheduled { .. } | Explanation::Retrying { .. } => Y3,
        Explanation::Paused | Explanation::ConcurrencyLimit { .. } | Explanation::RateLimit { .. } => Y4,
        _ => Y5,
    }
}

async fn next_available_at_agrees_with_the_default(stage: Stage) -> Outcome {
    let plain = rich(&stage).await?;
    compare_next(&stage, &plain).await?;
    stage.reclaim().await?;
    compare_next(&stage, &plain).await?;
    stage.claim("*", 99).await?;
    compare_next(&stage, &plain).await?;
    stage.age(3 * HOUR).await?;
    compare_next(&stage, &plain).await
}

/// An Exhausted job is worth a look *now*, whenever that is asked.
async fn compare_next(stage: &Stage, plain: &Plain) -> Outcome {
    for selection in selections()? {
        let from = stage.now().await?;
        let own = stage.store.next_available_at(&selection).await?.map(|next| next.at);
        let default = plain.next_available_at(&selection).await?.map(|next| next.at);
        let to = stage.now().await?;
        let is_now = |time: Option<DateTime<Utc>>| time.is_some_and(|time| (from..=to).contains(&time));
        let agree = own == default || (is_now(own) && is_now(default));
        if !agree {
            let early = own.is_some_and(|own| default.is_none_or(|default| own < default));
            let observed =
                format!("next of {selection:?} is {own:?}, the default says {default:?} (at {to})");
            return Err(Problem::Broken(if early { N2 } else { N1 }, observed));
        }
    }
    Ok(())
}

async fn stuck_agrees_with_the_default(stage: Stage) -> Outcome {
    let plain = rich(&stage).await?;
    for hours in [0, 1, 3] {
        stage.age(hours * HOUR).await?;
        for (age, limit) in [(Duration::ZERO, 10_000), (HOUR / 2, 10_000), (5 * HOUR / 2, 3), (9 * HOUR, 1)] {
            let limit = BatchSize::new(limit)?;
            let (own, default) = (stage.store.stuck(age, limit).await?, plain.stuck(age, limit).await?);
            ensure_eq!(G4, format!("stuck for {age:?}, {limit:?}"), own, default);
        }
    }
    Ok(())
}

async fn receipts_agree_with_the_default(stage: Stage) -> Outcome {
    let plain = rich(&stage).await?;
    let dump = stage.dump().await?;
    let ids = dump.jobs.iter().map(|job| job.id).chain(dump.history.iter().map(|job| job.id));
    let ids = ids.chain([JobId::new(i64::MAX), JobId::new(-1)]);
    let every = ids.flat_map(|job| (0..4).map(move |epoch| Receipt { job, epoch: Epoch::new(epoch) }));
    let every: Vec<_> = every.collect();
    let (own, default) = (stage.store.receipts(&every).await?, plain.receipts(&every).await?);
    ensure_eq!(G5, format!("answers for {every:?}"), own, default);
    Ok(())
}

async fn what_holds_for_a_queue_agrees_with_the_default(stage: Stage) -> Outcome {
    let plain = rich(&stage).await?;
    for name in QUEUES.into_iter().chain(["slow", "none", "g:", "g:22", "shut2", "Shut"]) {
        let (own, default) = (stage.store.policy(&queue(name)?).await?, plain.policy(&queue(name)?).await?);
        ensure_eq!(P8, format!("what holds for {name}"), own, default);
    }
    Ok(())
}
