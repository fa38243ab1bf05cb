//! Rate limits.

use std::time::Duration;

use leasehold_core::{
    BatchSize, Explanation, JobFilter, Json, MaxAttempts, Prune, QueuePolicy, RateLimit, Schedule, Verdict,
};

use super::scene::{SLOW, TOKEN, claim_at_once, handles, pattern, slow_rate, urgent};
use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, ids, new_job, request, request_named};

checks! { "rate":
    the_burst_is_granted_at_once_and_then_the_rate [P3] needs RateLimit;
    several_calls_and_handles_share_the_rate [P3] needs RateLimit;
    tokens_are_not_given_back [P3] needs RateLimit;
    only_a_lease_takes_a_token [P3] needs RateLimit;
    a_queue_that_was_empty_keeps_its_bucket [P3] needs RateLimit;
    the_rate_of_a_prefix_is_for_each_queue [P3] needs RateLimit;
    a_changed_rate_starts_full [P3] needs RateLimit;
    an_unchanged_rate_keeps_its_bucket [P3] needs RateLimit;
    a_spent_rate_holds_back_no_other_queue [P13] needs RateLimit;
    racing_claims_stay_within_the_burst [P3] needs RateLimit;
    a_fifo_queue_has_its_rate_too [P3] needs RateLimit, Fifo;
    a_rate_that_comes_back_starts_full [P3] needs RateLimit;
    usage_tells_of_a_queue_that_is_empty [P3] needs RateLimit;
    a_clock_that_was_set_back_delays_no_token [P14] needs RateLimit;
    a_clock_that_was_set_back_delays_no_look [P14, N1, Y4] needs RateLimit;
}

/// Leases as many as the rate allows.
async fn granted(stage: &Stage) -> Outcome<usize> {
    Ok(stage.claim("q", 99).await?.len())
}

async fn the_burst_is_granted_at_once_and_then_the_rate(stage: Stage) -> Outcome {
    stage.set_policy("q", slow_rate(5)?).await?;
    stage.enqueue_many("q", 60).await?;
    ensure_eq!(P3, "granted of a full bucket of 5", granted(&stage).await?, 5);
    ensure_eq!(P3, "granted of an empty bucket", granted(&stage).await?, 0);
    // 3.6 tokens an hour, of which the broken one is kept.
    for (hours, expected) in [(1, 3), (1, 4), (1, 3), (9, 5), (99, 5)] {
        stage.age(hours * HOUR).await?;
        ensure_eq!(P3, format!("granted after {hours} hours more"), granted(&stage).await?, expected);
        ensure_eq!(P3, "granted after that", granted(&stage).await?, 0);
    }
    stage.age(TOKEN).await?;
    ensure_eq!(P3, "granted after the time of one token", granted(&stage).await?, 1);
    Ok(())
}

async fn several_calls_and_handles_share_the_rate(stage: Stage) -> Outcome {
    stage.set_policy("q", slow_rate(4)?).await?;
    let other = stage.connect().await?;
    let waiting = stage.enqueue_many("q", 9).await?;
    ensure_eq!(P3, "the first lease", stage.claim_one("q").await?.id, waiting[0]);
    ensure_eq!(P3, "the second", ids(&other.dequeue(&request("q", 1)?).await?), waiting[1..2]);
    let rest = other.dequeue(&request("q*", 9)?).await?;
    ensure_eq!(P3, "leased over a prefix with two tokens left", ids(&rest), waiting[2..4]);
    for store in [&stage.store, &other, &stage.connect().await?] {
        for selection in ["q", "*"] {
            ensure_eq!(P3, "leased without a token", store.dequeue(&request(selection, 9)?).await?, []);
        }
    }
    Ok(())
}

async fn tokens_are_not_given_back(stage: Stage) -> Outcome {
    stage.set_policy("q", slow_rate(3)?).await?;
    stage.enqueue_many("q", 9).await?;
    let jobs = stage.claim("q", 3).await?;
    ensure_eq!(P3, "granted of a full bucket of 3", jobs.len(), 3);
    stage.settle(jobs[0].receipt(), Verdict::done()).await?;
    stage.store.release(&[jobs[1].receipt()]).await?;
    stage.store.retry_later(jobs[2].id, Schedule::Now).await?;
    ensure_eq!(P3, "granted after settle, release and retry_later", granted(&stage).await?, 0);
    Ok(())
}

async fn an_unchanged_rate_keeps_its_bucket(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 30).await?;
    stage.set_policy("q", slow_rate(2)?).await?;
    ensure_eq!(P3, "granted of a full bucket of 2", granted(&stage).await?, 2);
    stage.store.pause(&pattern("q")?).await?;
    stage.store.resume(&pattern("q")?).await?;
    ensure_eq!(P3, "granted after pause and resume", granted(&stage).await?, 0);
    let max_attempts = Some(MaxAttempts::new(9)?);
    stage.set_policy("q", QueuePolicy { max_attempts, ..slow_rate(2)? }).await?;
    ensure_eq!(P3, "granted after another field was set", granted(&stage).await?, 0);
    stage.set_policy("*", slow_rate(4)?).await?;
    ensure_eq!(P3, "granted after a rate was set that holds for others", granted(&stage).await?, 0);
    stage.set_policy("q", QueuePolicy::default()).await?;
    ensure_eq!(P3, "granted after that rate came to hold", granted(&stage).await?, 4);
    ensure_eq!(P3, "granted after that", granted(&stage).await?, 0);
    Ok(())
}

async fn only_a_lease_takes_a_token(stage: Stage) -> Outcome {
    stage.set_policy("q", slow_rate(3)?).await?;
    let open = urgent(&stage, "open", 5).await?;
    for _ in 0..5 {
        ensure_eq!(P3, "leased of an empty queue", stage.claim("q", 9).await?, []);
    }
    stage.enqueue_many("q", 9).await?;
    for id in open {
        let jobs = stage.store.dequeue(&request_named(&["open", "q"], 1)?).await?;
        ensure_eq!(P3, "the more urgent job of another queue", ids(&jobs), [id]);
    }
    ensure_eq!(P3, "granted of a bucket from which nothing was taken", granted(&stage).await?, 3);
    Ok(())
}

async fn a_queue_that_was_empty_keeps_its_bucket(stage: Stage) -> Outcome {
    stage.set_policy("q", slow_rate(3)?).await?;
    for turn in 0..5 {
        stage.enqueue(new_job("q")).await?;
        let jobs = stage.claim("q", 9).await?;
        ensure_eq!(
            P3,
            format!("granted in turn {turn} with a burst of 3"),
            jobs.len(),
            usize::from(turn < 3)
        );
        for job in stage.dump().await?.jobs {
            stage.store.discard(job.id, Json::null()).await?;
        }
        stage.store.prune(&Prune::older_than(Duration::ZERO, BatchSize::MAX)?).await?;
    }
    Ok(())
}

async fn the_rate_of_a_prefix_is_for_each_queue(stage: Stage) -> Outcome {
    stage.set_policy("g:*", slow_rate(2)?).await?;
    for name in ["g:1", "g:2", "h"] {
        stage.enqueue_many(name, 4).await?;
    }
    let jobs = stage.store.dequeue(&request_named(&["g:1", "h"], 99)?).await?;
    ensure_eq!(P3, "leased from g:1 with a burst of 2 and from h", jobs.len(), 6);
    let jobs = stage.claim("g:*", 99).await?;
    let names: Vec<_> = jobs.iter().map(|job| job.queue.as_str()).collect();
    ensure_eq!(P3, "leased over the prefix after that", names, ["g:2", "g:2"]);
    Ok(())
}

async fn a_changed_rate_starts_full(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 30).await?;
    stage.set_policy("q", slow_rate(2)?).await?;
    ensure_eq!(P3, "granted of a full bucket of 2", granted(&stage).await?, 2);
    stage.set_policy("q", slow_rate(3)?).await?;
    ensure_eq!(P3, "granted of a bucket that is now one of 3", granted(&stage).await?, 3);
    let rate = Some(RateLimit::new(2.0 * SLOW, 3)?);
    stage.set_policy("q", QueuePolicy { rate, ..QueuePolicy::default() }).await?;
    ensure_eq!(P3, "granted of a bucket that is now filled faster", granted(&stage).await?, 3);
    stage.age(TOKEN).await?;
    ensure_eq!(P3, "granted after the time of two tokens", granted(&stage).await?, 2);
    stage.set_policy("q", QueuePolicy::default()).await?;
    ensure_eq!(P3, "granted without a limit", granted(&stage).await?, 20);
    Ok(())
}

async fn a_spent_rate_holds_back_no_other_queue(stage: Stage) -> Outcome {
    stage.set_policy("slow", slow_rate(2)?).await?;
    let high = urgent(&stage, "slow", 9).await?;
    let low = stage.enqueue_many("open", 9).await?;
    stage.claim_one("slow").await?;
    let both = &["slow", "open"];
    let jobs = stage.store.dequeue(&request_named(both, 3)?).await?;
    ensure_eq!(P13, "leased of a queue with one token and another", ids(&jobs), [high[1], low[0], low[1]]);
    let jobs = stage.store.dequeue(&request_named(both, 3)?).await?;
    ensure_eq!(P13, "leased of a queue without a token and another", ids(&jobs), low[2..5]);
    ensure_eq!(P13, "leased over all queues", ids(&stage.claim("*", 4).await?), low[5..]);
    Ok(())
}

async fn racing_claims_stay_within_the_burst(stage: Stage) -> Outcome {
    let handles = handles(&stage, 4).await?;
    stage.enqueue_many("q", 90).await?;
    for round in 0..8_u32 {
        let burst = 3 + round as usize % 2;
        stage.set_policy("q", slow_rate(burst as u32)?).await?;
        let granted = claim_at_once(&handles, &request("q", 2)?).await?.len();
        ensure!(P3, granted <= burst, "round {round}: {granted} leases of a burst of {burst}");
        let rest = stage.claim("q", 99).await?.len();
        ensure_eq!(P3, format!("round {round}: granted in the end"), granted + rest, burst);
    }
    Ok(())
}

async fn a_fifo_queue_has_its_rate_too(stage: Stage) -> Outcome {
    let order = Some(leasehold_core::QueueOrder::Fifo);
    stage.set_policy("q", QueuePolicy { order, ..slow_rate(2)? }).await?;
    stage.enqueue_many("q", 9).await?;
    for _ in 0..2 {
        let job = stage.claim_one("q").await?;
        stage.settle(job.receipt(), Verdict::done()).await?;
    }
    for selection in ["q", "*"] {
        ensure_eq!(P3, "leased from a Fifo queue without a token", stage.claim(selection, 9).await?, []);
    }
    stage.age(TOKEN).await?;
    ensure_eq!(P3, "granted after the time of one token", granted(&stage).await?, 1);
    Ok(())
}

async fn a_rate_that_comes_back_starts_full(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 30).await?;
    stage.set_policy("q", slow_rate(2)?).await?;
    ensure_eq!(P3, "granted of a full bucket of 2", granted(&stage).await?, 2);
    stage.set_policy("q", QueuePolicy::default()).await?;
    stage.set_policy("q", slow_rate(2)?).await?;
    ensure_eq!(P3, "granted when there was no limit in between", granted(&stage).await?, 2);
    stage.set_policy("q*", slow_rate(3)?).await?;
    stage.set_policy("q", QueuePolicy::default()).await?;
    stage.set_policy("q", slow_rate(2)?).await?;
    ensure_eq!(P3, "granted when there was another limit in between", granted(&stage).await?, 2);
    Ok(())
}

async fn usage_tells_of_a_queue_that_is_empty(stage: Stage) -> Outcome {
    stage.set_policy("q", slow_rate(1)?).await?;
    let name = crate::stage::queue("q")?;
    let full = stage.store.usage(&name).await?;
    ensure_eq!(P3, "usage of a full bucket", (full.leased, full.next_token_at), (0, None));
    stage.enqueue(new_job("q")).await?;
    let from = stage.now().await?;
    let job = stage.claim_one("q").await?;
    let to = stage.now().await?;
    ensure_eq!(P3, "leased", stage.store.usage(&name).await?.leased, 1);
    stage.settle(job.receipt(), Verdict::done()).await?;
    let usage = stage.store.usage(&name).await?;
    ensure_eq!(P3, "leased after the end", usage.leased, 0);
    let allowed = leasehold_core::time::later(from, TOKEN)..=leasehold_core::time::later(to, TOKEN);
    let told = usage.next_token_at.is_some_and(|at| allowed.contains(&at));
    ensure!(P3, told, "the next token comes at {:?}, expected {allowed:?}", usage.next_token_at);
    Ok(())
}

/// A queue whose bucket of 3 was emptied before the clock was set back by many times what it takes to fill.
async fn set_back(stage: &Stage) -> Outcome {
    stage.age(99 * HOUR).await?;
    stage.set_policy("q", slow_rate(3)?).await?;
    stage.enqueue_many("q", 4).await?;
    for job in stage.claim("q", 4).await? {
        stage.settle(job.receipt(), Verdict::done()).await?;
    }
    stage.set_back(90 * HOUR).await?;
    // The job that is left waits until the clock is where it was.
    stage.enqueue_many("q", 30).await?;
    Ok(())
}

async fn a_clock_that_was_set_back_delays_no_token(stage: Stage) -> Outcome {
    set_back(&stage).await?;
    ensure_eq!(P14, "granted before any token has come", granted(&stage).await?, 0);
    for round in 1..=2 {
        stage.age(TOKEN).await?;
        ensure_eq!(P14, format!("granted after the time of {round} tokens"), granted(&stage).await?, 1);
        ensure_eq!(P14, "granted after that", granted(&stage).await?, 0);
    }
    stage.age(3 * TOKEN).await?;
    ensure_eq!(P14, "granted after the time of a burst", granted(&stage).await?, 3);
    stage.age(99 * HOUR).await?;
    ensure_eq!(P14, "granted of a full bucket", granted(&stage).await?, 3);
    Ok(())
}

async fn a_clock_that_was_set_back_delays_no_look(stage: Stage) -> Outcome {
    set_back(&stage).await?;
    let name = crate::stage::queue("q")?;
    // The first one waits until the clock is where it was.
    let waiting = stage.store.jobs(&JobFilter::default()).await?.items;
    ensure_eq!(P14, "jobs that wait", waiting.len(), 31);
    let next = stage.store.next_available_at(&(&name).into()).await?.map(|next| next.at);
    let usage = stage.store.usage(&name).await?.next_token_at;
    let explained = match stage.store.explain(waiting[1].id).await? {
        Explanation::RateLimit { until } => Some(until),
        _ => None,
    };
    let latest = leasehold_core::time::later(stage.now().await?, TOKEN);
    for (what, told) in [("next_available_at", next), ("usage", usage), ("explain", explained)] {
        let is_soon = told.is_some_and(|told| told <= latest);
        ensure!(P14, is_soon, "{what} tells {told:?} for the next token, expected {latest} at the latest");
    }
    Ok(())
}
