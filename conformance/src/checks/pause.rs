//! Pausing and resuming queues.

use std::time::Duration;

use leasehold_core::contract::P10;
use leasehold_core::{
    BatchSize, Fate, HeartbeatOutcome, Json, MaxAttempts, QueueOrder, QueuePolicy, Redrive, Schedule,
    Verdict, backend,
};

use super::scene::{dead_letter, holds, pattern};
use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, ids, lease_for, new_job, request, request_named};

checks! { "pause":
    nothing_is_leased_from_a_paused_queue [P1] needs Policies;
    a_handle_goes_by_what_another_has_said [P1] needs Policies;
    a_handle_goes_by_the_order_that_another_has_said [P4] needs Fifo;
    holders_go_on_in_a_paused_queue [P1] needs Policies;
    jobs_come_and_go_in_a_paused_queue [P1] needs Policies;
    a_prefix_is_paused_as_a_whole [P1, P10] needs Policies;
    one_queue_of_a_paused_prefix_is_resumed [P1, P10] needs Policies;
    resume_goes_by_the_nearest_wider_policy [P10] needs Policies;
    pause_and_resume_keep_the_rest_of_a_policy [P10] needs Policies;
    pausing_twice_is_pausing_once [P10] needs Policies;
}

async fn nothing_is_leased_from_a_paused_queue(stage: Stage) -> Outcome {
    let other = stage.connect().await?;
    stage.store.pause(&pattern("q")?).await?;
    let waiting = stage.enqueue(new_job("q").priority(9)).await?;
    let open = stage.enqueue_many("open", 3).await?;
    for store in [&stage.store, &other] {
        ensure_eq!(P1, "leased by its name", store.dequeue(&request("q", 10)?).await?, []);
        ensure_eq!(P1, "leased by a prefix", store.dequeue(&request("q*", 10)?).await?, []);
    }
    let mixed = stage.store.dequeue(&request_named(&["q", "open"], 1)?).await?;
    ensure_eq!(P1, "leased of a paused queue and another", ids(&mixed), open[..1]);
    let mixed = other.dequeue(&request("*", 10)?).await?;
    ensure_eq!(P1, "leased over all queues", ids(&mixed), open[1..]);
    other.resume(&pattern("q")?).await?;
    ensure_eq!(P1, "leased after resume", ids(&stage.claim("q", 10).await?), [waiting]);
    Ok(())
}

/// The first call of a handle after a change by another one, in each of the ways to ask, and the first call of a new handle.
async fn a_handle_goes_by_what_another_has_said(stage: Stage) -> Outcome {
    let ways = [("a", request("a", 9)?), ("b", request_named(&["b", "other"], 9)?), ("c", request("c*", 9)?)];
    for (name, way) in ways {
        let other = stage.connect().await?;
        ensure_eq!(D13, "leased of nothing", other.dequeue(&way).await?, []);
        stage.store.pause(&pattern(name)?).await?;
        let waiting = stage.enqueue_many(name, 3).await?;
        ensure_eq!(P1, "leased after another handle has paused", other.dequeue(&way).await?, []);
        ensure_eq!(P1, "leased by a new handle", stage.connect().await?.dequeue(&way).await?, []);
        stage.store.resume(&pattern(name)?).await?;
        ensure_eq!(P1, "leased after another handle has resumed", ids(&other.dequeue(&way).await?), waiting);
    }
    Ok(())
}

/// The same for a Fifo queue.
async fn a_handle_goes_by_the_order_that_another_has_said(stage: Stage) -> Outcome {
    let ways = [("a", request("a", 9)?), ("b", request_named(&["b", "other"], 9)?), ("c", request("c*", 9)?)];
    for (name, way) in ways {
        let other = stage.connect().await?;
        ensure_eq!(D13, "leased of nothing", other.dequeue(&way).await?, []);
        let fifo = QueuePolicy { order: Some(QueueOrder::Fifo), ..QueuePolicy::default() };
        stage.set_policy(&format!("{name}*"), fifo).await?;
        let waiting = stage.enqueue_many(name, 3).await?;
        let first = stage.connect().await?.dequeue(&way).await?;
        ensure_eq!(P4, "leased by a new handle from a Fifo queue", ids(&first), waiting[..1]);
        ensure_eq!(P4, "leased after another handle has said Fifo", other.dequeue(&way).await?, []);
        stage.set_policy(&format!("{name}*"), QueuePolicy::default()).await?;
        ensure_eq!(P4, "leased without the policy", other.dequeue(&way).await?.len(), 2);
    }
    Ok(())
}

async fn holders_go_on_in_a_paused_queue(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 6).await?;
    let jobs = stage.claim("q", 6).await?;
    ensure_eq!(P1, "leased before the pause", jobs.len(), 6);
    stage.store.pause(&pattern("q")?).await?;
    let beat = stage.store.heartbeat(&[jobs[0].receipt()], lease_for(4 * HOUR)?).await?;
    ensure!(P1, matches!(beat[..], [HeartbeatOutcome::Extended { .. }]), "heartbeat while paused: {beat:?}");
    let verdicts = [
        (Verdict::done(), Fate::Completed),
        (Verdict::dead("no"), Fate::DeadLettered),
        (Verdict::discard("no"), Fate::Discarded),
    ];
    for ((verdict, fate), job) in verdicts.into_iter().zip(&jobs) {
        let outcome = stage.try_settle(job.receipt(), verdict).await?;
        ensure_eq!(P1, "settled while paused", outcome, backend::settled_outcome(job.receipt(), fate));
    }
    stage.settle(jobs[3].receipt(), Verdict::retry_after("no", Duration::ZERO)?).await?;
    stage.settle(jobs[4].receipt(), Verdict::release()).await?;
    stage.age(2 * HOUR).await?;
    let reclaimed = stage.reclaim().await?;
    let right = reclaimed.len() == 1 && reclaimed[0].id == jobs[5].id;
    ensure!(P1, right, "reclaimed while paused: {reclaimed:?}, expected {}", jobs[5].id);
    ensure_eq!(P1, "leased while paused", stage.claim("q", 10).await?, []);
    stage.store.resume(&pattern("q")?).await?;
    ensure_eq!(P1, "leased after resume", stage.claim("q", 10).await?.len(), 3);
    Ok(())
}

async fn jobs_come_and_go_in_a_paused_queue(stage: Stage) -> Outcome {
    let dead = dead_letter(&stage, new_job("q"), "no").await?;
    stage.store.pause(&pattern("q")?).await?;
    let ready = stage.enqueue(new_job("q")).await?;
    let redriven = stage.store.redrive(&Redrive::all(BatchSize::MAX)).await?;
    ensure_eq!(P1, "redriven while paused", redriven.jobs, [dead]);
    let scheduled = stage.enqueue(new_job("q").delay(HOUR)).await?;
    stage.store.promote(scheduled).await?;
    stage.store.retry_later(ready, Schedule::after(HOUR)?).await?;
    stage.store.discard(dead, Json::null()).await?;
    ensure_eq!(P1, "leased while paused", stage.claim("q", 10).await?, []);
    stage.store.resume(&pattern("q")?).await?;
    ensure_eq!(P1, "leased after resume", ids(&stage.claim("q", 10).await?), [scheduled]);
    Ok(())
}

async fn a_prefix_is_paused_as_a_whole(stage: Stage) -> Outcome {
    stage.store.pause(&pattern("game_*")?).await?;
    let mut open = Vec::new();
    for queue in ["game_1", "game_2", "game:1", "GAME_1", "gam"] {
        let id = stage.enqueue(new_job(queue)).await?;
        open.extend((!queue.starts_with("game_")).then_some(id));
    }
    let mut leased = ids(&stage.claim("*", 10).await?);
    leased.sort_unstable();
    ensure_eq!(P1, "leased while game_* is paused", leased, open);
    let named = stage.store.dequeue(&request_named(&["game_1", "game_2"], 10)?).await?;
    ensure_eq!(P1, "leased by name while game_* is paused", named, []);
    stage.store.resume(&pattern("game_*")?).await?;
    ensure_eq!(P10, "policies after resume", stage.store.policies().await?.len(), 0);
    ensure_eq!(P1, "leased after resume", stage.claim("*", 10).await?.len(), 2);
    Ok(())
}

async fn one_queue_of_a_paused_prefix_is_resumed(stage: Stage) -> Outcome {
    stage.store.pause(&pattern("game:*")?).await?;
    let first = stage.enqueue(new_job("game:1")).await?;
    let second = stage.enqueue(new_job("game:2")).await?;
    stage.store.resume(&pattern("game:1")?).await?;
    let policies = stage.store.policies().await?;
    ensure_eq!(P10, "paused of game:1", policies.set_for(&pattern("game:1")?).paused, Some(false));
    ensure_eq!(P10, "paused of game:*", policies.set_for(&pattern("game:*")?).paused, Some(true));
    ensure_eq!(P1, "leased of the prefix", ids(&stage.claim("game:*", 10).await?), [first]);
    stage.store.resume(&pattern("game:*")?).await?;
    ensure_eq!(P1, "leased when the prefix was resumed", ids(&stage.claim("game:*", 10).await?), [second]);
    Ok(())
}

async fn resume_goes_by_the_nearest_wider_policy(stage: Stage) -> Outcome {
    stage.store.pause(&pattern("a*")?).await?;
    stage.set_policy("ab*", QueuePolicy { paused: Some(false), ..QueuePolicy::default() }).await?;
    for name in ["abc", "ac"] {
        stage.store.pause(&pattern(name)?).await?;
        stage.store.resume(&pattern(name)?).await?;
    }
    let policies = stage.store.policies().await?;
    ensure_eq!(P10, "paused of abc under ab*", policies.set_for(&pattern("abc")?).paused, None);
    ensure_eq!(P10, "paused of ac under a*", policies.set_for(&pattern("ac")?).paused, Some(false));
    stage.store.resume(&pattern("ab*")?).await?;
    let nested = stage.store.policies().await?.set_for(&pattern("ab*")?).paused;
    ensure_eq!(P10, "paused of ab* under a*", nested, Some(false));
    for name in ["abc", "ac"] {
        let id = stage.enqueue(new_job(name)).await?;
        ensure_eq!(P1, format!("leased from {name}"), stage.claim_one(name).await?.id, id);
    }
    Ok(())
}

async fn pause_and_resume_keep_the_rest_of_a_policy(stage: Stage) -> Outcome {
    let max_attempts = Some(MaxAttempts::new(7)?);
    let rest = QueuePolicy { max_attempts, max_lease: Some(lease_for(HOUR)?), ..QueuePolicy::default() };
    for name in ["q", "game:*"] {
        stage.set_policy(name, rest.clone()).await?;
        stage.store.pause(&pattern(name)?).await?;
        let seen = stage.store.policies().await?.set_for(&pattern(name)?);
        ensure_eq!(P10, "the paused policy", seen, QueuePolicy { paused: Some(true), ..rest.clone() });
        stage.store.resume(&pattern(name)?).await?;
        let seen = stage.store.policies().await?.set_for(&pattern(name)?);
        ensure_eq!(P10, "the resumed policy", seen, rest);
    }
    Ok(())
}

async fn pausing_twice_is_pausing_once(stage: Stage) -> Outcome {
    let empty = stage.dump().await?;
    stage.store.resume(&pattern("q")?).await?;
    holds(P10, &stage, &empty, "a queue that was not paused was resumed").await?;
    stage.store.pause(&pattern("q")?).await?;
    let once = stage.dump().await?;
    stage.store.pause(&pattern("q")?).await?;
    holds(P10, &stage, &once, "a paused queue was paused").await?;
    stage.store.resume(&pattern("q")?).await?;
    holds(P10, &stage, &empty, "one resume ends two pauses").await
}
