//! When it is worth to look again.

use chrono::{DateTime, Utc};
use leasehold_core::contract::{N1, N2};
use leasehold_core::{Job, LeaseFor, NextAvailable, QueuePolicy, Queues, Schedule, Verdict, time};

use super::scene::{TOKEN, at_most, dead_letter, every_state, fifo, paused, queues, slow_rate, within};
use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job};

checks! { "next":
    nothing_comes_of_nothing [N2];
    a_schedule_is_awaited [N1, N2];
    the_end_of_a_lease_is_awaited [N1, N2];
    what_is_there_already_is_told_at_once [N1];
    the_soonest_of_all_queues_asked_for_counts [N1];
    a_paused_queue_is_not_awaited [N2] needs Policies;
    a_fifo_queue_awaits_its_first_job [N1, N2] needs Fifo;
    a_full_queue_awaits_the_end_of_a_lease [N1, N2] needs ConcurrencyLimit;
    a_spent_rate_awaits_its_next_token [N1, N2] needs RateLimit;
    a_prefix_is_compared_byte_for_byte [N1];
}

async fn next(stage: &Stage, selection: &str) -> Outcome<Option<DateTime<Utc>>> {
    let (from, next) = (stage.now().await?, stage.store.next_available_at(&queues(selection)?).await?);
    let to = stage.now().await?;
    if let Some(NextAvailable { at, wait }) = next {
        let allowed = time::between(to, at)..=time::between(from, at);
        ensure!(
            N1,
            allowed.contains(&wait),
            "next at {at} is said to be {wait:?} away, expected {allowed:?}"
        );
    }
    Ok(next.map(|next| next.at))
}

fn end(job: &Job) -> Option<DateTime<Utc>> {
    job.lease.as_ref().map(|lease| lease.until)
}

async fn nothing_comes_of_nothing(stage: Stage) -> Outcome {
    ensure_eq!(N2, "next of an empty store", next(&stage, "*").await?, None);
    let done = stage.leased(new_job("q")).await?;
    stage.settle(done.receipt(), Verdict::done()).await?;
    dead_letter(&stage, new_job("q"), "no").await?;
    ensure_eq!(N2, "next of finished jobs", next(&stage, "q").await?, None);
    stage.enqueue(new_job("other")).await?;
    ensure_eq!(N2, "next where only another queue has jobs", next(&stage, "q").await?, None);
    ensure_eq!(N2, "next of an unused prefix", next(&stage, "q*").await?, None);
    Ok(())
}

async fn a_schedule_is_awaited(stage: Stage) -> Outcome {
    stage.enqueue(new_job("q").delay(3 * HOUR)).await?;
    let soon = stage.enqueue(new_job("q").delay(2 * HOUR)).await?;
    let at = stage.live(soon).await?.available_at;
    ensure_eq!(N1, "next of two scheduled jobs", next(&stage, "q").await?, Some(at));
    ensure_eq!(N1, "next over a prefix", next(&stage, "*").await?, Some(at));
    stage.age(time::between(stage.now().await?, at)).await?;
    ensure_eq!(N1, "leased at the time told", stage.claim_one("q").await?.id, soon);

    let retried = stage.leased(new_job("r")).await?;
    stage.settle(retried.receipt(), Verdict::retry_after("no", HOUR)?).await?;
    let at = stage.live(retried.id).await?.available_at;
    ensure_eq!(N1, "next of a retrying job", next(&stage, "r").await?, Some(at));
    stage.age(time::between(stage.now().await?, at)).await?;
    ensure_eq!(N1, "leased at the time told", stage.claim_one("r").await?.id, retried.id);
    Ok(())
}

async fn the_end_of_a_lease_is_awaited(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 2).await?;
    let first = stage.claim_one("q").await?;
    let second = stage.claim_one("q").await?;
    stage.store.heartbeat(&[first.receipt()], lease_for(5 * HOUR)?).await?;
    ensure_eq!(N1, "next of two leases", next(&stage, "q").await?, end(&second));
    stage.enqueue(new_job("q").delay(4 * HOUR)).await?;
    let at = next(&stage, "q").await?;
    ensure_eq!(N1, "next of two leases and a later schedule", at, end(&second));
    stage.age(time::between(stage.now().await?, at.unwrap_or_default())).await?;
    let passed = end(&stage.live(second.id).await?);
    ensure_eq!(N1, "next of a passed lease", next(&stage, "q").await?, passed);
    let reclaimed = stage.reclaim().await?;
    ensure!(N1, reclaimed.len() == 1, "at the time told the lease should have passed: {reclaimed:?}");
    Ok(())
}

async fn what_is_there_already_is_told_at_once(stage: Stage) -> Outcome {
    stage.enqueue(new_job("ready").delay(HOUR)).await?;
    let older = stage.enqueue(new_job("ready")).await?;
    stage.age(2 * HOUR).await?;
    stage.enqueue(new_job("ready").priority(9)).await?;
    let at = stage.live(older).await?.available_at;
    ensure_eq!(N1, "next of Ready jobs", next(&stage, "ready").await?, Some(at));

    let last = stage.leased(new_job("spent").max_attempts(1)).await?;
    stage.store.retry_later(last.id, Schedule::after(9 * HOUR)?).await?;
    let from = stage.now().await?;
    let seen = next(&stage, "spent").await?;
    let to = stage.now().await?;
    let Some(seen) = seen else {
        ensure!(N1, false, "an Exhausted job waits for a reclaim, but nothing is told");
        return Ok(());
    };
    within(N1, "next of an Exhausted job", seen, (from, to))
}

async fn the_soonest_of_all_queues_asked_for_counts(stage: Stage) -> Outcome {
    let mut at = Vec::new();
    for (queue, hours) in [("game:1", 3), ("game:2", 2), ("other", 1)] {
        let id = stage.enqueue(new_job(queue).delay(hours * HOUR)).await?;
        at.push(Some(stage.live(id).await?.available_at));
    }
    let named = |names: [&str; 2]| Queues::named(names);
    let asked = [
        (queues("game:*")?, at[1]),
        (queues("game:1")?, at[0]),
        (Queues::all(), at[2]),
        (named(["game:1", "none"])?, at[0]),
        (named(["game:1", "other"])?, at[2]),
    ];
    for (selection, expected) in asked {
        let seen = stage.store.next_available_at(&selection).await?.map(|next| next.at);
        ensure_eq!(N1, format!("next of {selection:?}"), seen, expected);
    }
    Ok(())
}

async fn a_paused_queue_is_not_awaited(stage: Stage) -> Outcome {
    every_state(&stage, ["shut"]).await?;
    stage.set_policy("shut", paused()).await?;
    ensure_eq!(N2, "next of a paused queue", next(&stage, "shut").await?, None);
    let id = stage.enqueue(new_job("open").delay(HOUR)).await?;
    let at = stage.live(id).await?.available_at;
    ensure_eq!(N2, "next of a paused queue and another", next(&stage, "*").await?, Some(at));
    Ok(())
}

async fn a_fifo_queue_awaits_its_first_job(stage: Stage) -> Outcome {
    stage.set_policy("q", fifo()).await?;
    let head = stage.enqueue(new_job("q").delay(2 * HOUR)).await?;
    stage.enqueue(new_job("q")).await?;
    stage.enqueue(new_job("q").delay(HOUR)).await?;
    let at = stage.live(head).await?.available_at;
    ensure_eq!(N2, "next of a Fifo queue whose first job is scheduled", next(&stage, "q").await?, Some(at));
    stage.age(2 * HOUR).await?;
    let leased = stage.claim_one("q").await?;
    ensure_eq!(N2, "next of a Fifo queue with a lease", next(&stage, "q").await?, end(&leased));
    stage.settle(leased.receipt(), Verdict::done()).await?;
    let at = next(&stage, "q").await?;
    let now = stage.now().await?;
    ensure!(N1, at.is_some_and(|at| at <= now), "the second job is Ready, but told is {at:?} ({now})");
    Ok(())
}

async fn a_full_queue_awaits_the_end_of_a_lease(stage: Stage) -> Outcome {
    let max_lease = Some(LeaseFor::new(3 * HOUR)?);
    stage.set_policy("q", QueuePolicy { max_lease, ..at_most(2)? }).await?;
    stage.enqueue_many("q", 3).await?;
    let first = stage.claim_one("q").await?;
    let now = stage.now().await?;
    let at = next(&stage, "q").await?;
    ensure!(N1, at.is_some_and(|at| at <= now), "one more may be leased, but told is {at:?} ({now})");
    let second = stage.claim_one("q").await?;
    stage.store.heartbeat(&[first.receipt()], lease_for(2 * HOUR)?).await?;
    ensure_eq!(N2, "next of a full queue", next(&stage, "q").await?, end(&second));
    stage.enqueue(new_job("q").delay(HOUR / 2)).await?;
    ensure_eq!(N2, "next of a full queue with a schedule", next(&stage, "q").await?, end(&second));
    stage.settle(second.receipt(), Verdict::done()).await?;
    let now = stage.now().await?;
    let at = next(&stage, "q").await?;
    ensure!(N1, at.is_some_and(|at| at <= now), "a place was freed, but told is {at:?} ({now})");
    Ok(())
}

async fn a_spent_rate_awaits_its_next_token(stage: Stage) -> Outcome {
    stage.set_policy("q", slow_rate(1)?).await?;
    let ids = stage.enqueue_many("q", 3).await?;
    let from = stage.now().await?;
    let job = stage.claim_one("q").await?;
    let to = stage.now().await?;
    stage.settle(job.receipt(), Verdict::done()).await?;
    let token = next(&stage, "q").await?.unwrap_or_default();
    let bracket = (time::later(from, TOKEN), time::later(to, TOKEN));
    within(N2, "next of a queue without a token", token, bracket)?;
    stage.age(time::between(stage.now().await?, token)).await?;
    let job = stage.claim_one("q").await?;
    ensure_eq!(N1, "leased at the time told", job.id, ids[1]);
    stage.store.retry_later(ids[2], Schedule::after(3 * HOUR)?).await?;
    let at = stage.live(ids[2]).await?.available_at;
    stage.settle(job.receipt(), Verdict::done()).await?;
    ensure_eq!(N1, "next of a schedule after the token", next(&stage, "q").await?, Some(at));
    Ok(())
}

async fn a_prefix_is_compared_byte_for_byte(stage: Stage) -> Outcome {
    for name in ["axb", "A_b", "a-b"] {
        stage.enqueue(new_job(name).delay(HOUR)).await?;
    }
    ensure_eq!(N2, "next of a_*, of which there is none", next(&stage, "a_*").await?, None);
    let id = stage.enqueue(new_job("a_b").delay(2 * HOUR)).await?;
    let at = stage.live(id).await?.available_at;
    ensure_eq!(N1, "next of a_*", next(&stage, "a_*").await?, Some(at));
    Ok(())
}
