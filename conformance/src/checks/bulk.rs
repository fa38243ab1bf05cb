//! As much as one call may carry: limits of a database's own (parameters, packet and index sizes) must not show.

use leasehold_core::{
    BatchSize, Dequeue, HeartbeatOutcome, JobFilter, JobState, NewJob, QueueStats, Queues, ReceiptStatus,
    SettleOutcome, UniqueKey, Verdict,
};

use crate::check::checks;
use crate::dump::all_jobs;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, ids, lease_for, new_job, request, request_named};

checks! { "bulk":
    ten_thousand_jobs_live_their_life_in_a_few_calls [D5, H5, S1, G5];
    ten_thousand_passed_leases_are_reclaimed_in_one_call [R5];
    ten_thousand_unique_keys_are_deduplicated_in_one_call [E4, E3];
    thousands_of_queues_are_asked_for_by_name [D9, Q3];
    thousands_of_queues_take_turns [D11];
    the_longest_names_come_back_equal [E9];
    a_large_call_gets_all_that_can_be_leased [D13];
    one_order_over_thousands_of_named_queues [D6];
}

const MANY: u32 = 10_000;

async fn ten_thousand_jobs_live_their_life_in_a_few_calls(stage: Stage) -> Outcome {
    let enqueued = stage.enqueue_many("q", MANY as usize).await?;
    let mut jobs = Vec::new();
    // A batch need not be filled, but it must not take for ever either.
    for _ in 0..100 {
        let leased = stage.claim("q", MANY).await?;
        if leased.is_empty() {
            break;
        }
        jobs.extend(leased);
    }
    ensure!(D5, ids(&jobs) == enqueued, "{} of {MANY} jobs were leased, or not in order", jobs.len());
    let receipts: Vec<_> = jobs.iter().map(|job| job.receipt()).collect();
    let extended = stage.store.heartbeat(&receipts, lease_for(2 * HOUR)?).await?;
    let lost = extended.iter().filter(|answer| **answer == HeartbeatOutcome::Lost).count();
    ensure_eq!(H5, "answers and lost leases", (extended.len(), lost), (receipts.len(), 0));
    let worth = stage.store.receipts(&receipts).await?;
    let held = worth.iter().filter(|status| matches!(status, ReceiptStatus::Held { .. })).count();
    ensure_eq!(G5, "receipts held", held, receipts.len());
    let items: Vec<_> = receipts.iter().map(|receipt| (*receipt, Verdict::done())).collect();
    let outcomes = stage.store.settle(&items).await?;
    let lost = outcomes.iter().filter(|outcome| SettleOutcome::is_lost(outcome)).count();
    ensure_eq!(S1, "outcomes and lost leases", (outcomes.len(), lost), (items.len(), 0));
    let dump = stage.dump().await?;
    ensure_eq!(S1, "live and finished", (dump.jobs.len(), dump.history.len()), (0, MANY as usize));
    Ok(())
}

async fn ten_thousand_passed_leases_are_reclaimed_in_one_call(stage: Stage) -> Outcome {
    stage.enqueue_many("q", MANY as usize).await?;
    for _ in 0..100 {
        if stage.claim("q", MANY).await?.is_empty() {
            break;
        }
    }
    stage.age(2 * HOUR).await?;
    let reclaimed = stage.store.reclaim(BatchSize::MAX).await?;
    ensure_eq!(R5, "reclaimed", reclaimed.len(), MANY as usize);
    let stats = stage.store.stats(&"q".parse()?).await?;
    ensure_eq!(R5, "Ready", stats.first().map(|row| row.count(JobState::Ready)), Some(MANY.into()));
    Ok(())
}

async fn ten_thousand_unique_keys_are_deduplicated_in_one_call(stage: Stage) -> Outcome {
    let keyed = |number: u32| new_job("q").unique_key(format!("key {number}")).build();
    // Every key twice in the batch, then the whole batch again.
    let batch = (0..MANY).map(|number| keyed(number / 2)).collect::<Result<Vec<_>, _>>()?;
    let first = stage.store.enqueue(&batch).await?;
    let fresh = first.iter().filter(|answer| !answer.deduplicated).count();
    ensure_eq!(E4, "answers and accepted jobs", (first.len(), fresh), (MANY as usize, MANY as usize / 2));
    let wrong = first.chunks(2).filter(|pair| pair[0].id != pair[1].id || pair[0].deduplicated).count();
    ensure_eq!(E4, "pairs with different answers", wrong, 0);
    let second = stage.store.enqueue(&batch).await?;
    let same = first.iter().zip(&second).all(|(a, b)| a.id == b.id && b.deduplicated);
    ensure!(E3, same, "the same batch again was answered with other jobs");
    let live = all_jobs(&*stage.store, JobFilter::default()).await?.len();
    ensure_eq!(E3, "live jobs", live, MANY as usize / 2);
    Ok(())
}

async fn thousands_of_queues_are_asked_for_by_name(stage: Stage) -> Outcome {
    let names: Vec<_> = (0..MANY).map(|number| format!("queue {number}")).collect();
    let jobs = names.iter().step_by(100).map(|name| new_job(name).build()).collect::<Result<Vec<_>, _>>()?;
    stage.store.enqueue(&jobs).await?;
    stage.enqueue(new_job("another").priority(9)).await?;
    let queues = Queues::named(names.iter().map(String::as_str))?;
    let stats = stage.store.stats(&queues).await?;
    let live: u64 = stats.iter().map(QueueStats::live).sum();
    ensure_eq!(Q3, "rows and live jobs", (stats.len(), live), (names.len(), 100));
    let request = Dequeue { lease_for: lease_for(HOUR)?, ..Dequeue::new(queues, "suite")?.limit(1000)? };
    let mut leased = Vec::new();
    for _ in 0..200 {
        let jobs = stage.store.dequeue(&request).await?;
        if jobs.is_empty() {
            break;
        }
        leased.extend(jobs);
    }
    let strangers = leased.iter().filter(|job| job.queue.as_str() == "another").count();
    ensure_eq!(D9, "leased, and of another queue", (leased.len(), strangers), (100, 0));
    Ok(())
}

async fn thousands_of_queues_take_turns(stage: Stage) -> Outcome {
    let count = 2000;
    let jobs = (0..2 * count).map(|number| new_job(&format!("room:{}", number / 2)).build());
    stage.store.enqueue(&jobs.collect::<Result<Vec<_>, _>>()?).await?;
    let mut served = std::collections::BTreeMap::new();
    for _ in 0..count {
        let jobs = stage.store.dequeue(&request("room:*", 500)?).await?;
        ensure!(D11, !jobs.is_empty(), "nothing was leased after {} queues", served.len());
        for job in jobs {
            *served.entry(job.queue).or_insert(0) += 1;
        }
        if served.values().sum::<i32>() >= count {
            break;
        }
    }
    let twice = served.values().filter(|times| **times > 1).count();
    ensure!(D11, twice <= 500, "{twice} of {count} queues were served twice before all were served once");
    let total: i32 = served.values().sum();
    ensure!(
        D11,
        served.len() as i32 >= count - (total - count),
        "after {total} leases only {} queues were served",
        served.len()
    );
    Ok(())
}

/// By one name, by several and by a prefix; more than there is, as many, and fewer.
async fn a_large_call_gets_all_that_can_be_leased(stage: Stage) -> Outcome {
    let half = MANY as usize / 2;
    for name in ["many:1", "many:2"] {
        stage.enqueue_many(name, half).await?;
    }
    let both = ["many:1", "many:2"];
    let calls = [
        (request("many:1", MANY)?, half),
        (request_named(&both, MANY)?, 2 * half),
        (request("many:*", MANY)?, 2 * half),
        (request("many:*", 1001)?, 1001),
    ];
    for (request, expected) in calls {
        let jobs = stage.store.dequeue(&request).await?;
        let what = format!("leased by one call for {} of {:?}", request.limit, request.queues);
        ensure_eq!(D13, what, jobs.len(), expected);
        stage.store.release(&jobs.iter().map(|job| job.receipt()).collect::<Vec<_>>()).await?;
    }
    Ok(())
}

async fn the_longest_names_come_back_equal(stage: Stage) -> Outcome {
    let name = |last: char| "~".repeat(127) + &last.to_string();
    let key = |last: char| "é".repeat(127) + &last.to_string();
    for last in ['a', 'b'] {
        let mut new = NewJob::builder(name(last), name(last)).unique_key(key(last));
        for number in 0..64 {
            new = new.header(format!("{number:0>128}"), "v".repeat(127));
        }
        let new = new.build()?;
        let answers = stage.store.enqueue(std::slice::from_ref(&new)).await?;
        ensure!(E9, !answers[0].deduplicated, "names that differ in byte 128 or 255 are taken for one");
        let request = Dequeue::new(name(last).as_str(), name(last))?.lease_for(HOUR)?;
        let jobs = stage.store.dequeue(&request).await?;
        ensure_eq!(E9, "leased", ids(&jobs), [answers[0].id]);
        let job = &jobs[0];
        let same = job.queue == *new.queue() && job.kind == *new.kind() && job.headers == *new.headers();
        ensure!(E9, same, "the longest queue, kind or headers came back as {job:?}");
        ensure_eq!(E9, "unique key", job.unique_key, Some(UniqueKey::new(key(last))?));
        ensure_eq!(E9, "worker", job.lease.as_ref().map(|lease| lease.worker.to_string()), Some(name(last)));
        stage.settle(job.receipt(), Verdict::done()).await?;
        let done = stage.finished(job.id).await?;
        let same = done.queue == *new.queue() && done.kind == *new.kind() && done.headers == *new.headers();
        ensure!(E9, same, "the longest queue, kind or headers came back from the history as {done:?}");
        ensure_eq!(
            E9,
            "worker in the history",
            done.processed_by.map(|worker| worker.to_string()),
            Some(name(last))
        );
    }
    Ok(())
}

async fn one_order_over_thousands_of_named_queues(stage: Stage) -> Outcome {
    let names: Vec<_> = (0..3000).map(|number| format!("queue {number:04}")).collect();
    // The last queue has the most urgent job.
    let jobs =
        names.iter().enumerate().step_by(30).map(|(at, name)| new_job(name).priority(at as i32).build());
    let answers = stage.store.enqueue(&jobs.collect::<Result<Vec<_>, _>>()?).await?;
    let expected: Vec<_> = answers.iter().rev().map(|answer| answer.id).collect();
    let queues = Queues::named(names.iter().map(String::as_str))?;
    let request = Dequeue { lease_for: lease_for(HOUR)?, ..Dequeue::new(queues, "suite")?.limit(7)? };
    let mut leased = Vec::new();
    for _ in 0..200 {
        let jobs = stage.store.dequeue(&request).await?;
        if jobs.is_empty() {
            break;
        }
        leased.extend(ids(&jobs));
    }
    ensure_eq!(D6, "order over 3000 named queues", leased, expected);
    Ok(())
}
