//! Queues in strict order.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold_core::{
    BatchSize, Dequeue, JobId, Json, QueueOrder, QueuePolicy, Redrive, Schedule, Store, Verdict,
};

use super::scene::{claim_at_once, fifo, handles};
use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, ids, new_job, request, request_named};

checks! { "fifo":
    jobs_are_leased_one_at_a_time_in_the_order_of_their_ids [P4] needs Fifo;
    several_handles_keep_the_order [P4] needs Fifo;
    a_first_job_that_waits_blocks_its_queue [P5] needs Fifo;
    a_first_job_that_is_leased_blocks_its_queue [P5, P4] needs Fifo;
    an_exhausted_first_job_blocks_until_it_is_reclaimed [P5] needs Fifo;
    every_end_of_the_first_job_lets_the_second_go [P4] needs Fifo;
    a_redriven_job_goes_first_again [P4] needs Fifo;
    a_blocked_queue_blocks_no_other [P5, P13] needs Fifo;
    several_fifo_queues_give_one_job_each [P4] needs Fifo;
    a_fifo_queue_takes_its_place_by_priority [P4] needs Fifo;
    a_queue_with_leases_becomes_fifo [P4] needs Fifo;
    racing_claims_get_one_job [P4] needs Fifo;
    racing_workers_keep_the_order [P4] needs Fifo;
    the_order_holds_for_handles_that_are_open [P4, P9] needs Fifo;
}

async fn expect_leased(stage: &Stage, selection: &str, expected: &[JobId], why: &str) -> Outcome {
    let jobs = stage.claim(selection, 10).await?;
    ensure_eq!(P4, format!("leased over {selection}, {why}"), ids(&jobs), expected);
    Ok(())
}

async fn expect_blocked(stage: &Stage, why: &str) -> Outcome {
    for selection in ["q", "q*"] {
        let jobs = stage.claim(selection, 10).await?;
        ensure!(P5, jobs.is_empty(), "the first job {why}, but leased over {selection} were {jobs:?}");
    }
    Ok(())
}

async fn jobs_are_leased_one_at_a_time_in_the_order_of_their_ids(stage: Stage) -> Outcome {
    stage.set_policy("q", fifo()).await?;
    let mut waiting = Vec::new();
    for priority in [0, 9, -9, 5, 5, i32::MAX] {
        waiting.push(stage.enqueue(new_job("q").priority(priority)).await?);
    }
    for (turn, id) in waiting.into_iter().enumerate() {
        let selection = if turn % 2 == 0 { "q" } else { "q*" };
        let jobs = stage.claim(selection, 10).await?;
        ensure_eq!(P4, format!("leased in turn {turn}"), ids(&jobs), [id]);
        expect_blocked(&stage, "is leased").await?;
        stage.settle(jobs[0].receipt(), Verdict::done()).await?;
    }
    Ok(())
}

async fn several_handles_keep_the_order(stage: Stage) -> Outcome {
    stage.set_policy("q", fifo()).await?;
    let handles = handles(&stage, 3).await?;
    for (turn, id) in stage.enqueue_many("q", 9).await?.into_iter().enumerate() {
        let jobs = handles[turn % 3].dequeue(&request("q", 10)?).await?;
        ensure_eq!(P4, format!("leased by handle {}", turn % 3), ids(&jobs), [id]);
        for store in &handles {
            ensure_eq!(P4, "leased beside it", store.dequeue(&request("q", 10)?).await?, []);
        }
        let outcomes = handles[(turn + 1) % 3].settle(&[(jobs[0].receipt(), Verdict::done())]).await?;
        ensure!(P4, !outcomes[0].is_lost(), "a good verdict was answered {outcomes:?}");
    }
    Ok(())
}

async fn a_first_job_that_waits_blocks_its_queue(stage: Stage) -> Outcome {
    stage.set_policy("q", fifo()).await?;
    let head = stage.enqueue(new_job("q").delay(HOUR)).await?;
    let next = stage.enqueue(new_job("q").priority(9)).await?;
    expect_blocked(&stage, "is scheduled").await?;
    stage.age(HOUR).await?;
    for (verdict, why) in
        [(Verdict::retry_after("no", HOUR)?, "is retrying"), (Verdict::snooze(HOUR)?, "was snoozed")]
    {
        let job = stage.claim_one("q").await?;
        ensure_eq!(P4, "leased when the first job was Ready", job.id, head);
        stage.settle(job.receipt(), verdict).await?;
        expect_blocked(&stage, why).await?;
        stage.age(HOUR).await?;
    }
    stage.store.retry_later(head, Schedule::after(HOUR)?).await?;
    expect_blocked(&stage, "was put off").await?;
    stage.store.promote(head).await?;
    let job = stage.claim_one("q").await?;
    ensure_eq!(P4, "leased when the first job was promoted", job.id, head);
    stage.settle(job.receipt(), Verdict::done()).await?;
    expect_leased(&stage, "q", &[next], "after the first was done").await
}

async fn a_first_job_that_is_leased_blocks_its_queue(stage: Stage) -> Outcome {
    stage.set_policy("q", fifo()).await?;
    let waiting = stage.enqueue_many("q", 2).await?;
    stage.claim_one("q").await?;
    expect_blocked(&stage, "is leased").await?;
    stage.age(2 * HOUR).await?;
    expect_blocked(&stage, "has a lease that passed").await?;
    stage.reclaim().await?;
    expect_leased(&stage, "q", &waiting[..1], "after its lease was reclaimed").await
}

async fn an_exhausted_first_job_blocks_until_it_is_reclaimed(stage: Stage) -> Outcome {
    stage.set_policy("q", fifo()).await?;
    let head = stage.leased(new_job("q").max_attempts(1)).await?;
    let next = stage.enqueue(new_job("q")).await?;
    stage.store.retry_later(head.id, Schedule::Now).await?;
    expect_blocked(&stage, "is exhausted").await?;
    stage.reclaim().await?;
    expect_leased(&stage, "q", &[next], "after the first became a dead letter").await
}

async fn every_end_of_the_first_job_lets_the_second_go(stage: Stage) -> Outcome {
    stage.set_policy("q", fifo()).await?;
    let waiting = stage.enqueue_many("q", 6).await?;
    for (turn, verdict) in
        [Verdict::done(), Verdict::dead("no"), Verdict::discard("no")].into_iter().enumerate()
    {
        let job = stage.claim_one("q").await?;
        ensure_eq!(P4, format!("leased in turn {turn}"), job.id, waiting[turn]);
        stage.settle(job.receipt(), verdict).await?;
    }
    stage.store.discard(waiting[3], Json::null()).await?;
    let job = stage.claim_one("q").await?;
    ensure_eq!(P4, "leased after the first was discarded while it waited", job.id, waiting[4]);
    stage.store.discard(job.id, Json::null()).await?;
    expect_leased(&stage, "q", &waiting[5..], "after the first was discarded while it was leased").await
}

async fn a_redriven_job_goes_first_again(stage: Stage) -> Outcome {
    stage.set_policy("q", fifo()).await?;
    let waiting = stage.enqueue_many("q", 3).await?;
    let dead = stage.claim_one("q").await?;
    stage.settle(dead.receipt(), Verdict::dead("no")).await?;
    let second = stage.claim_one("q").await?;
    ensure_eq!(P4, "leased after the first died", second.id, waiting[1]);
    stage.store.redrive(&Redrive::all(BatchSize::MAX)).await?;
    expect_leased(&stage, "q*", &[], "while the second is leased and the first was redriven").await?;
    stage.age(2 * HOUR).await?;
    expect_leased(&stage, "q", &[], "while the second has a lease that passed").await?;
    stage.settle(second.receipt(), Verdict::done()).await?;
    expect_leased(&stage, "q", &waiting[..1], "after the first was redriven").await
}

async fn a_blocked_queue_blocks_no_other(stage: Stage) -> Outcome {
    stage.set_policy("q*", fifo()).await?;
    stage.enqueue(new_job("q").priority(9).delay(HOUR)).await?;
    for _ in 0..12 {
        stage.enqueue(new_job("q").priority(9)).await?;
    }
    let other = stage.enqueue(new_job("q2")).await?;
    let open = stage.enqueue_many("open", 4).await?;
    let jobs = stage.store.dequeue(&request_named(&["q", "q2", "open"], 2)?).await?;
    ensure_eq!(P5, "leased beside a blocked queue", ids(&jobs), [other, open[0]]);
    let jobs = stage.claim("*", 2).await?;
    ensure_eq!(P5, "leased over all queues beside a blocked one", ids(&jobs), open[1..3]);
    Ok(())
}

async fn several_fifo_queues_give_one_job_each(stage: Stage) -> Outcome {
    stage.set_policy("g:*", fifo()).await?;
    let names = ["g:1", "g:2", "g:3"];
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for name in names {
        let waiting = stage.enqueue_many(name, 3).await?;
        first.push(waiting[0]);
        second.push(waiting[1]);
    }
    let jobs = stage.store.dequeue(&request_named(&names, 10)?).await?;
    ensure_eq!(P4, "leased from three Fifo queues by name", ids(&jobs), first);
    ensure_eq!(P4, "leased beside them", stage.claim("g:*", 10).await?, []);
    for job in jobs {
        stage.settle(job.receipt(), Verdict::done()).await?;
    }
    let mut leased = ids(&stage.claim("g:*", 10).await?);
    leased.sort_unstable();
    ensure_eq!(P4, "leased from three Fifo queues by their prefix", leased, second);
    Ok(())
}

async fn a_fifo_queue_takes_its_place_by_priority(stage: Stage) -> Outcome {
    stage.set_policy("f", fifo()).await?;
    let low = stage.enqueue(new_job("p").priority(1)).await?;
    let head = stage.enqueue(new_job("f").priority(5)).await?;
    stage.enqueue(new_job("f").priority(99)).await?;
    let high = stage.enqueue(new_job("p").priority(9)).await?;
    let older = stage.enqueue(new_job("p").priority(1)).await?;
    let jobs = stage.store.dequeue(&request_named(&["f", "p"], 10)?).await?;
    ensure_eq!(P4, "leased in the order of priority", ids(&jobs), [high, head, low, older]);
    Ok(())
}

async fn a_queue_with_leases_becomes_fifo(stage: Stage) -> Outcome {
    let waiting = stage.enqueue_many("q", 5).await?;
    let jobs = stage.claim("q", 2).await?;
    stage.set_policy("q", fifo()).await?;
    expect_leased(&stage, "q", &[], "with leases from before it was Fifo").await?;
    stage.settle(jobs[0].receipt(), Verdict::retry_after("no", Duration::ZERO)?).await?;
    expect_leased(&stage, "q", &[], "with a lease behind the first job").await?;
    stage.age(2 * HOUR).await?;
    expect_leased(&stage, "q", &[], "with a passed lease behind the first job, before a reclaim").await?;
    stage.reclaim().await?;
    expect_leased(&stage, "q", &waiting[..1], "after all leases had ended").await?;
    let order = Some(QueueOrder::Priority);
    stage.set_policy("q", QueuePolicy { order, ..QueuePolicy::default() }).await?;
    ensure_eq!(P4, "leased when the queue was no longer Fifo", stage.claim("q", 10).await?.len(), 4);
    Ok(())
}

async fn racing_claims_get_one_job(stage: Stage) -> Outcome {
    stage.set_policy("q", fifo()).await?;
    let handles = handles(&stage, 4).await?;
    for (round, id) in stage.enqueue_many("q", 15).await?.into_iter().enumerate() {
        let request = request(if round % 2 == 0 { "q" } else { "*" }, 5)?;
        let mut jobs = claim_at_once(&handles, &request).await?;
        if jobs.is_empty() {
            jobs = stage.claim("q", 5).await?;
        }
        ensure_eq!(P4, format!("leased in round {round}"), ids(&jobs), [id]);
        let verdict = if round % 3 == 0 { Verdict::dead("no") } else { Verdict::done() };
        stage.settle(jobs[0].receipt(), verdict).await?;
    }
    Ok(())
}

async fn racing_workers_keep_the_order(stage: Stage) -> Outcome {
    stage.set_policy("q", fifo()).await?;
    let waiting = stage.enqueue_many("q", 40).await?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for store in handles(&stage, 6).await? {
        tasks.push(tokio::spawn(work(store, request("q", 5)?, Arc::clone(&seen), waiting.len())));
    }
    for task in tasks {
        task.await.map_err(|panic| Problem::Harness(panic.into()))??;
    }
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
    ensure_eq!(P4, "the order in which six workers had the jobs", seen, waiting);
    Ok(())
}

/// Writes each job down while it is held, so that the list is in the order of the leases if there is one at a time.
async fn work(
    store: Arc<dyn Store>,
    request: Dequeue,
    seen: Arc<Mutex<Vec<JobId>>>,
    count: usize,
) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        let jobs = store.dequeue(&request).await?;
        ensure!(P4, jobs.len() <= 1, "one call leased {jobs:?}");
        let done = {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.extend(ids(&jobs));
            seen.len() >= count
        };
        tokio::task::yield_now().await;
        let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect();
        store.settle(&items).await?;
        if done {
            break;
        }
    }
    Ok(())
}

async fn the_order_holds_for_handles_that_are_open(stage: Stage) -> Outcome {
    let other = stage.connect().await?;
    let first = stage.enqueue(new_job("q")).await?;
    let urgent = stage.enqueue(new_job("q").priority(9)).await?;
    let jobs = other.dequeue(&crate::stage::request("q", 1)?).await?;
    ensure_eq!(P4, "leased by priority", jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [urgent]);
    other.release(&[jobs[0].receipt()]).await?;
    stage.set_policy("q", fifo()).await?;
    let jobs = other.dequeue(&crate::stage::request("q", 9)?).await?;
    ensure_eq!(P4, "leased in order", jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [first]);
    Ok(())
}
