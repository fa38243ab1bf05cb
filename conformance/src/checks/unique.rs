//! Enqueueing with unique keys.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_core::{JobFilter, JobId, Json, Schedule, Verdict};

use crate::check::checks;
use crate::dump::all_jobs;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, new_job};

checks! { "enqueue":
    a_live_job_with_the_same_key_wins [E3];
    the_first_of_a_batch_wins [E4];
    a_key_is_taken_in_every_live_state [E6];
    a_key_is_free_after_every_ending [E6];
    keys_and_names_are_compared_byte_for_byte [E7];
    jobs_without_a_key_are_never_duplicates [E7];
    long_keys_are_told_apart [E7];
    an_exhausted_job_has_its_key [E6];
}

async fn a_live_job_with_the_same_key_wins(stage: Stage) -> Outcome {
    let id = stage.enqueue(new_job("q").unique_key("k").payload("first").priority(1)).await?;
    let before = stage.dump().await?;
    let second = new_job("q")
        .unique_key("k")
        .payload("second")
        .priority(99)
        .max_attempts(1)
        .delay(HOUR)
        .header("a", "b")
        .build()?;
    let answers = stage.store.enqueue(std::slice::from_ref(&second)).await?;
    ensure!(E3, answers.len() == 1 && answers[0].deduplicated, "a duplicate was answered {answers:?}");
    ensure_eq!(E3, "id of the duplicate", answers[0].id, id);
    let difference = stage.dump().await?.difference(&before);
    ensure!(E3, difference.is_none(), "a duplicate changed something: {difference:?}");

    stage.claim_one("q").await?;
    let before = stage.dump().await?;
    let answers = stage.store.enqueue(&[second]).await?;
    ensure!(E3, answers[0].deduplicated && answers[0].id == id, "a duplicate of a leased job: {answers:?}");
    let difference = stage.dump().await?.difference(&before);
    ensure!(E3, difference.is_none(), "a duplicate changed a leased job: {difference:?}");
    Ok(())
}

async fn the_first_of_a_batch_wins(stage: Stage) -> Outcome {
    let keyed = |key: &str, payload: u32| new_job("q").unique_key(key).payload(&payload).build();
    let batch = [
        keyed("a", 1)?,
        keyed("b", 2)?,
        keyed("a", 3)?,
        new_job("q").build()?,
        keyed("b", 4)?,
        keyed("a", 5)?,
    ];
    let answers = stage.store.enqueue(&batch).await?;
    ensure_eq!(E4, "number of answers", answers.len(), batch.len());
    let duplicates: Vec<_> = answers.iter().map(|answer| answer.deduplicated).collect();
    ensure_eq!(E4, "deduplicated", duplicates, [false, false, true, false, true, true]);
    let pairs = [(2, 0), (4, 1), (5, 0)];
    for (second, first) in pairs {
        ensure_eq!(E4, format!("id of job {second} of the batch"), answers[second].id, answers[first].id);
    }
    ensure_eq!(E4, "payload of the winner", stage.live(answers[0].id).await?.payload, Json::new(&1)?);
    let count = all_jobs(&*stage.store, JobFilter::default()).await?.len();
    ensure_eq!(E4, "jobs in the queue", count, 3);
    Ok(())
}

async fn a_key_is_taken_in_every_live_state(stage: Stage) -> Outcome {
    let id = stage.enqueue(new_job("q").unique_key("k").delay(HOUR)).await?;
    expect_taken(&stage, id, "scheduled").await?;
    stage.age(HOUR).await?;
    expect_taken(&stage, id, "ready").await?;
    let job = stage.claim_one("q").await?;
    expect_taken(&stage, id, "running").await?;
    stage.settle(job.receipt(), Verdict::retry_after("again", HOUR)?).await?;
    expect_taken(&stage, id, "retrying").await?;
    stage.age(HOUR).await?;
    let job = stage.claim_one("q").await?;
    stage.settle(job.receipt(), Verdict::snooze(Duration::ZERO)?).await?;
    expect_taken(&stage, id, "snoozed").await?;
    stage.claim_one("q").await?;
    stage.age(2 * HOUR).await?;
    expect_taken(&stage, id, "expired").await?;
    stage.reclaim().await?;
    expect_taken(&stage, id, "reclaimed").await?;
    stage.claim_one("q").await?;
    stage.store.retry_later(id, Schedule::after(HOUR)?).await?;
    expect_taken(&stage, id, "sent back").await
}

async fn expect_taken(stage: &Stage, id: JobId, state: &str) -> Outcome {
    let answers = stage.store.enqueue(&[new_job("q").unique_key("k").build()?]).await?;
    let taken = answers.len() == 1 && answers[0].deduplicated && answers[0].id == id;
    ensure!(E6, taken, "the key of the {state} job {id} was enqueued again and answered {answers:?}");
    Ok(())
}

async fn a_key_is_free_after_every_ending(stage: Stage) -> Outcome {
    let endings = [Verdict::done(), Verdict::dead("no"), Verdict::discard("no"), Verdict::retry("last")];
    for verdict in endings {
        let id = stage.enqueue(new_job("q").unique_key("k").max_attempts(1)).await?;
        let job = stage.claim_one("q").await?;
        ensure_eq!(E6, format!("leased before {verdict:?}"), job.id, id);
        stage.settle(job.receipt(), verdict).await?;
    }
    let expired = stage.leased(new_job("q").unique_key("k").max_attempts(1)).await?;
    stage.age(2 * HOUR).await?;
    stage.reclaim().await?;
    let discarded = stage.enqueue(new_job("q").unique_key("k")).await?;
    ensure!(E6, discarded != expired.id, "the key of the dead letter {discarded} is still taken");
    stage.store.discard(discarded, Json::null()).await?;
    let last = stage.enqueue(new_job("q").unique_key("k")).await?;
    ensure!(E6, last != discarded, "the key of the discarded job {last} is still taken");
    ensure_eq!(E6, "finished jobs", stage.dump().await?.history.len(), 6);
    Ok(())
}

async fn keys_and_names_are_compared_byte_for_byte(stage: Stage) -> Outcome {
    let keys = ["key", "KEY", "Key", "key ", " key", "k\u{e9}y", "ke\u{301}y", "key\t", "ß", "ss", "SS"];
    let queues = ["q", "Q", "q ", " q", "q_", "q%", "q\\", "q'"];
    let mut seen = BTreeSet::new();
    for queue in queues {
        for key in keys {
            let answers = stage.store.enqueue(&[new_job(queue).unique_key(key).build()?]).await?;
            let fresh = answers.len() == 1 && !answers[0].deduplicated && seen.insert(answers[0].id);
            ensure!(E7, fresh, "the new key {key:?} in queue {queue:?} was answered {answers:?}");
        }
    }
    for queue in queues {
        let jobs = stage.claim(queue, 100).await?;
        let strangers: Vec<_> = jobs.iter().filter(|job| job.queue.as_str() != queue).collect();
        ensure!(E7, strangers.is_empty(), "queue {queue:?} gave jobs of other queues: {strangers:?}");
        ensure_eq!(E7, format!("jobs leased from queue {queue:?}"), jobs.len(), keys.len());
    }
    Ok(())
}

async fn jobs_without_a_key_are_never_duplicates(stage: Stage) -> Outcome {
    let same = new_job("q").payload("same").build()?;
    let answers = stage.store.enqueue(&[same.clone(), same.clone()]).await?;
    let again = stage.store.enqueue(&[same]).await?;
    let ids: BTreeSet<_> = answers.iter().chain(&again).map(|answer| answer.id).collect();
    let none = answers.iter().chain(&again).all(|answer| !answer.deduplicated);
    ensure!(E7, ids.len() == 3 && none, "three jobs without a key were answered {answers:?} and {again:?}");
    Ok(())
}

async fn long_keys_are_told_apart(stage: Stage) -> Outcome {
    // Where an index or a column could end: all of these are live in one queue at the same time.
    let mut seen = BTreeSet::new();
    for common in [31, 63, 127, 190, 199, 254] {
        for last in ["a", "b"] {
            let key = "k".repeat(common) + last;
            let answers = stage.store.enqueue(&[new_job("q").unique_key(key.as_str()).build()?]).await?;
            let fresh = answers.len() == 1 && !answers[0].deduplicated && seen.insert(answers[0].id);
            ensure!(E7, fresh, "a key that differs in byte {} was answered {answers:?}", common + 1);
        }
    }
    Ok(())
}

async fn an_exhausted_job_has_its_key(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q").unique_key("k").max_attempts(1)).await?;
    stage.store.retry_later(job.id, Schedule::Now).await?;
    expect_taken(&stage, job.id, "exhausted").await?;
    stage.reclaim().await?;
    let again = stage.store.enqueue(&[new_job("q").unique_key("k").build()?]).await?;
    ensure!(E6, !again[0].deduplicated, "the key of a dead letter is still taken: {again:?}");
    Ok(())
}
