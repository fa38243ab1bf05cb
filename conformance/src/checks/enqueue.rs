//! Enqueueing: batches, unique keys, schedules, round trips.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::{
    Epoch, JobFilter, JobState, Json, MaxAttempts, NewJob, QueuePolicy, Record, Verdict, time,
};

use crate::check::checks;
use crate::dump::all_jobs;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job};

checks! { "enqueue":
    a_refused_batch_leaves_nothing [E1];
    answers_come_in_order [E2, E10];
    a_job_waits_for_its_time [E8];
    a_time_in_the_past_means_now [E8];
    everything_comes_back_equal [E9];
    awkward_payloads_come_back_equal [E9];
    a_new_job_is_untouched [E11];
    attempts_default_to_five [E12];
    attempts_default_to_the_policy [E12] needs Policies;
    ids_are_never_given_twice [E10];
    a_full_batch_is_accepted [E1, E2];
    ids_are_never_given_twice_where_nothing_is_kept [E10] needs Policies;
}

async fn a_refused_batch_leaves_nothing(stage: Stage) -> Outcome {
    let limit = stage.store.capabilities().payload_limit;
    let good = new_job("q").payload("fits").build()?;
    let bad = new_job("q").payload(&"x".repeat(limit)).build()?;
    let answer = stage.store.enqueue(&[good.clone(), bad, good]).await;
    ensure!(E1, answer.is_err(), "a batch with a payload beyond the limit was answered {answer:?}");
    let left = all_jobs(&*stage.store, JobFilter::default()).await?;
    ensure!(E1, left.is_empty(), "the batch was refused, but the queue has {left:?}");
    Ok(())
}

async fn answers_come_in_order(stage: Stage) -> Outcome {
    let first = stage.enqueue(new_job("q").unique_key("taken").payload(&0)).await?;
    let batch = [
        new_job("q").payload(&1).build()?,
        new_job("q").payload(&2).unique_key("taken").build()?,
        new_job("other").payload(&3).priority(9).build()?,
        new_job("q").payload(&4).delay(HOUR).build()?,
    ];
    let answers = stage.store.enqueue(&batch).await?;
    ensure_eq!(E2, "number of answers", answers.len(), batch.len());
    let duplicates: Vec<_> = answers.iter().map(|answer| answer.deduplicated).collect();
    ensure_eq!(E2, "deduplicated", duplicates, [false, true, false, false]);
    ensure_eq!(E2, "id of the duplicate", answers[1].id, first);
    for (answer, job) in answers.iter().zip(&batch).filter(|(answer, _)| !answer.deduplicated) {
        let stored = stage.live(answer.id).await?;
        ensure_eq!(E2, format!("payload of job {}", answer.id), stored.payload, *job.payload());
    }
    let ids = [first, answers[0].id, answers[2].id, answers[3].id];
    ensure!(E10, ids.is_sorted() && ids[0].get() > 0, "one caller got the ids {ids:?}, in this order");
    Ok(())
}

async fn a_job_waits_for_its_time(stage: Stage) -> Outcome {
    let before = stage.now().await?;
    let delayed = stage.enqueue(new_job("q").delay(HOUR)).await?;
    let after = stage.now().await?;
    let at = time::later(after, 2 * HOUR);
    let timed = stage.enqueue(new_job("q").at(at)).await?;
    let far = "9999-12-31T23:59:59.999999Z".parse::<DateTime<Utc>>().unwrap_or(at);
    let last = stage.enqueue(new_job("q").at(far)).await?;

    let seen = stage.live(delayed).await?.available_at;
    let allowed = time::later(before, HOUR)..=time::later(after, HOUR);
    ensure!(
        E8,
        allowed.contains(&seen),
        "a delay of an hour made it available at {seen}, expected {allowed:?}"
    );
    ensure_eq!(E8, "available_at", stage.live(timed).await?.available_at, at);
    ensure_eq!(E8, "available_at in 9999", stage.live(last).await?.available_at, far);

    ensure_eq!(E8, "leased before its time", stage.claim("q", 10).await?.len(), 0);
    stage.age(HOUR - Duration::from_secs(60)).await?;
    ensure_eq!(E8, "leased a minute before its time", stage.claim("q", 10).await?.len(), 0);
    stage.age(Duration::from_secs(60)).await?;
    ensure_eq!(E8, "leased when the delay was over", stage.claim_one("q").await?.id, delayed);
    stage.age(HOUR + Duration::from_secs(60)).await?;
    ensure_eq!(E8, "leased when its time had come", stage.claim_one("q").await?.id, timed);
    ensure_eq!(E8, "leased long before its time", stage.claim("q", 10).await?.len(), 0);
    Ok(())
}

async fn a_time_in_the_past_means_now(stage: Stage) -> Outcome {
    let before = stage.now().await?;
    let past = ["0001-01-01T00:00:00Z".parse().unwrap_or(before), time::earlier(before, HOUR)];
    for at in past {
        let id = stage.enqueue(new_job("q").at(at)).await?;
        let seen = stage.live(id).await?.available_at;
        let after = stage.now().await?;
        ensure!(
            E8,
            (before..=after).contains(&seen),
            "enqueued for {at}, it is available at {seen}, not now ({before})"
        );
        ensure_eq!(E8, "leased", stage.claim_one("q").await?.id, id);
    }
    Ok(())
}

async fn everything_comes_back_equal(stage: Stage) -> Outcome {
    let payload = serde_json::json!({ "text": "héllo \"w\\orld\" 🚀\n", "list": [1, 2.5, null, true], "deep": { "a": {} } });
    let new = NewJob::builder("q ~!", "kind ~!")
        .payload(&payload)
        .priority(i32::MIN)
        .unique_key("ключ 🔑")
        .max_attempts(1000)
        .header("traceparent", "00-4bf9-00f0-01")
        .header("x 'q' \"d\" \\", "värde \n 🚀")
        .header("empty", "")
        .build()?;
    let id = stage.store.enqueue(std::slice::from_ref(&new)).await?[0].id;
    same_as_enqueued(&stage.live(id).await?, &new, "get")?;
    let listed = all_jobs(&*stage.store, JobFilter::default()).await?;
    ensure_eq!(E9, "listed jobs", listed.len(), 1);
    same_as_enqueued(&listed[0], &new, "jobs")?;
    let leased = stage.claim_one("q ~!").await?;
    same_as_enqueued(&leased, &new, "dequeue")?;
    stage.store.heartbeat(&[leased.receipt()], lease_for(2 * HOUR)?).await?;
    stage.settle(leased.receipt(), Verdict::retry_after("again", Duration::ZERO)?).await?;
    same_as_enqueued(&stage.claim_one("q ~!").await?, &new, "dequeue after a retry")?;
    stage.age(2 * HOUR).await?;
    stage.reclaim().await?;
    let leased = stage.claim_one("q ~!").await?;
    same_as_enqueued(&leased, &new, "dequeue after a reclaim")?;
    stage.settle(leased.receipt(), Verdict::done()).await?;
    let done = stage.finished(id).await?;
    ensure_eq!(E9, "payload in the history", done.payload, *new.payload());
    ensure_eq!(E9, "headers in the history", done.headers, *new.headers());
    ensure_eq!(E9, "unique key in the history", done.unique_key.as_ref(), new.unique_key());

    let high = stage.enqueue(new_job("q").priority(i32::MAX)).await?;
    ensure_eq!(E9, "largest priority", stage.live(high).await?.priority, i32::MAX);
    Ok(())
}

fn same_as_enqueued(job: &leasehold_core::Job, new: &NewJob, way: &str) -> Outcome {
    ensure_eq!(E9, format!("queue from {way}"), job.queue, *new.queue());
    ensure_eq!(E9, format!("kind from {way}"), job.kind, *new.kind());
    ensure_eq!(E9, format!("priority from {way}"), job.priority, new.priority());
    ensure_eq!(E9, format!("unique key from {way}"), job.unique_key.as_ref(), new.unique_key());
    ensure_eq!(E9, format!("payload from {way}"), job.payload, *new.payload());
    ensure_eq!(E9, format!("headers from {way}"), job.headers, *new.headers());
    let allowed = new.max_attempts().unwrap_or(MaxAttempts::DEFAULT);
    ensure_eq!(E9, format!("max_attempts from {way}"), job.max_attempts, allowed);
    Ok(())
}

async fn awkward_payloads_come_back_equal(stage: Stage) -> Outcome {
    let documents = [
        "null",
        "true",
        "0",
        "-1",
        "\"\"",
        "[]",
        "{}",
        "1.5",
        "1e300",
        "-2.5e-300",
        "0.1",
        "1e16",
        "123456789.125",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615",
        "9007199254740993",
        r#"{"b":1,"a":2,"":3,"B":4}"#,
        r#"["\\u0000","\u0001","\u007f","\u2028","\ud83d\ude80"]"#,
        r#"{"null":null,"nested":[[[[[[[[1]]]]]]]]}"#,
        r#""' OR 1=1; -- {{}} %s ? $1 :x""#,
    ];
    let mut documents = documents.map(Json::parse).into_iter().collect::<Result<Vec<_>, _>>()?;
    documents.push(Json::new(&"🚀".repeat(50_000))?);
    let limit = stage.store.capabilities().payload_limit;
    documents.push(Json::new(&"x".repeat(limit - 2))?);
    documents.push(Json::parse(&format!("{}{}", "[".repeat(64), "]".repeat(64)))?);
    for document in documents {
        let id = stage.enqueue(new_job("q").payload(&document)).await?;
        let job = stage.claim_one("q").await?;
        let shown: String = document.as_str().chars().take(80).collect();
        ensure!(E9, job.id == id && job.payload == document, "the payload {shown} came back changed");
        stage.settle(job.receipt(), Verdict::Done(document.clone())).await?;
        let done = stage.finished(id).await?;
        let kept = done.payload == document && *done.outcome.document() == document;
        ensure!(E9, kept, "the payload or result {shown} came back changed from the history");
    }
    Ok(())
}

async fn a_new_job_is_untouched(stage: Stage) -> Outcome {
    let before = stage.now().await?;
    let id = stage.enqueue(new_job("q")).await?;
    let after = stage.now().await?;
    let job = stage.live(id).await?;
    ensure_eq!(E11, "attempts", job.attempts, 0);
    ensure_eq!(E11, "lease", job.lease, None);
    ensure_eq!(E11, "epoch", job.epoch, Epoch::ZERO);
    ensure_eq!(E11, "first_leased_at", job.first_leased_at, None);
    ensure_eq!(E11, "last_error", job.last_error, None);
    for (name, time) in
        [("created_at", job.created_at), ("updated_at", job.updated_at), ("available_at", job.available_at)]
    {
        ensure!(E11, (before..=after).contains(&time), "{name} is {time}, expected {before} to {after}");
    }
    ensure_eq!(E11, "state", job.state(after), JobState::Ready);
    Ok(())
}

async fn attempts_default_to_five(stage: Stage) -> Outcome {
    let id = stage.enqueue(new_job("q")).await?;
    ensure_eq!(E12, "max_attempts", stage.live(id).await?.max_attempts.get(), 5);
    let id = stage.enqueue(new_job("q").max_attempts(7)).await?;
    ensure_eq!(E12, "max_attempts that the job says", stage.live(id).await?.max_attempts.get(), 7);
    Ok(())
}

async fn attempts_default_to_the_policy(stage: Stage) -> Outcome {
    let older = stage.enqueue(new_job("q")).await?;
    let policy = QueuePolicy { max_attempts: Some(MaxAttempts::new(2)?), ..QueuePolicy::default() };
    stage.set_policy("q", policy).await?;
    let id = stage.enqueue(new_job("q")).await?;
    ensure_eq!(E12, "max_attempts of the queue's policy", stage.live(id).await?.max_attempts.get(), 2);
    let id = stage.enqueue(new_job("q").max_attempts(7)).await?;
    ensure_eq!(E12, "max_attempts that the job says", stage.live(id).await?.max_attempts.get(), 7);
    ensure_eq!(E12, "max_attempts of a job from before", stage.live(older).await?.max_attempts.get(), 5);
    let id = stage.enqueue(new_job("other")).await?;
    ensure_eq!(E12, "max_attempts in another queue", stage.live(id).await?.max_attempts.get(), 5);
    Ok(())
}

async fn ids_are_never_given_twice(stage: Stage) -> Outcome {
    let mut seen = BTreeSet::new();
    for round in 0..20 {
        let id = stage.enqueue(new_job("q")).await?;
        let above = seen.last().is_none_or(|last| *last < id);
        ensure!(E10, above && seen.insert(id), "round {round}: the id {id} was given after {seen:?}");
        let job = stage.claim_one("q").await?;
        stage.settle(job.receipt(), Verdict::done()).await?;
        if round % 5 == 4 {
            let all = leasehold_core::Prune::older_than(Duration::ZERO, leasehold_core::BatchSize::MAX)?;
            stage.store.prune(&all).await?;
        }
    }
    let first = seen.first().map_or(0, |id| id.get());
    ensure!(E10, first > 0, "the first id is {first}");
    Ok(())
}

async fn a_full_batch_is_accepted(stage: Stage) -> Outcome {
    let count = 10_000;
    let ids = stage.enqueue_many("q", count).await?;
    let distinct: BTreeSet<_> = ids.iter().collect();
    ensure_eq!(E2, "distinct ids", distinct.len(), count);
    let listed = all_jobs(&*stage.store, JobFilter::default()).await?;
    ensure_eq!(E1, "jobs in the queue", listed.len(), count);
    let last = stage.store.get(ids[count - 1]).await?;
    ensure!(E1, matches!(last, Some(Record::Live(_))), "the last job of the batch is {last:?}");
    Ok(())
}

async fn ids_are_never_given_twice_where_nothing_is_kept(stage: Stage) -> Outcome {
    let archive = Some(leasehold_core::Archive::DeadOnly);
    stage.set_policy("q", QueuePolicy { archive, ..QueuePolicy::default() }).await?;
    let mut last: Option<leasehold_core::Job> = None;
    for round in 0..5 {
        let job = stage.leased(new_job("q")).await?;
        if let Some(last) = &last {
            ensure!(E10, job.id > last.id, "round {round}: the id {} was given after {}", job.id, last.id);
            let outcome = stage.try_settle(last.receipt(), Verdict::dead("not mine")).await?;
            ensure!(
                S2,
                outcome.is_lost(),
                "the receipt {} of a job before was answered {outcome:?}",
                last.receipt()
            );
        }
        if round % 2 == 0 {
            stage.settle(job.receipt(), Verdict::done()).await?;
        } else {
            stage.store.discard(job.id, Json::null()).await?;
        }
        last = Some(job);
    }
    Ok(())
}
