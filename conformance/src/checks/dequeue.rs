//! Leasing: what is leased, how much, and what a lease changes.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_core::{Dequeue, Job, JobState, Lease, Schedule, Verdict, WorkerId, time};

use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, ids, new_job, request};

checks! { "dequeue":
    only_ready_jobs_are_leased [D1];
    a_passed_lease_is_not_leased_again_before_reclaim [D1];
    an_exhausted_job_is_not_leased [D1];
    a_leased_job_is_not_leased_again [D2];
    a_lease_spends_an_attempt [D3];
    every_lease_has_its_own_epoch [D4];
    never_more_than_asked_for [D5];
    a_lease_lasts_as_long_as_asked_for [D7];
    the_first_lease_is_remembered [D8];
    only_the_queues_asked_for [D9];
    a_prefix_is_compared_byte_for_byte [D9];
    others_are_left_alone [D10];
    a_lease_changes_only_the_lease [D10];
    the_answer_is_what_is_stored [D12];
    nothing_leasable_is_kept_back [D13];
    an_empty_queue_gives_nothing [D13];
    a_worker_is_named_to_the_last_byte [D7, S12];
}

async fn only_ready_jobs_are_leased(stage: Stage) -> Outcome {
    let scheduled = stage.enqueue(new_job("q").delay(HOUR).priority(9)).await?;
    let running = stage.leased(new_job("q").priority(8)).await?;
    let retrying = stage.leased(new_job("q").priority(7)).await?;
    stage.settle(retrying.receipt(), Verdict::retry_after("later", HOUR)?).await?;
    let snoozed = stage.leased(new_job("q").priority(6)).await?;
    stage.settle(snoozed.receipt(), Verdict::snooze(HOUR)?).await?;
    let done = stage.leased(new_job("q").priority(5)).await?;
    stage.settle(done.receipt(), Verdict::done()).await?;
    let ready = stage.enqueue(new_job("q")).await?;

    let leased = stage.claim("q", 100).await?;
    ensure!(
        D1,
        ids(&leased) == [ready],
        "only job {ready} was Ready (of scheduled {scheduled}, running {}, retrying {}, snoozed {}), leased were {:?}",
        running.id,
        retrying.id,
        snoozed.id,
        ids(&leased)
    );
    Ok(())
}

async fn a_passed_lease_is_not_leased_again_before_reclaim(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    stage.age(2 * HOUR).await?;
    let leased = stage.claim("q", 10).await?;
    ensure!(
        D1,
        leased.is_empty(),
        "the lease of job {} has passed but was not reclaimed, leased was {leased:?}",
        job.id
    );
    ensure_eq!(D1, "state", stage.live(job.id).await?.state(stage.now().await?), JobState::Expired);
    Ok(())
}

async fn an_exhausted_job_is_not_leased(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q").max_attempts(1)).await?;
    stage.store.retry_later(job.id, Schedule::Now).await?;
    let leased = stage.claim("q", 10).await?;
    ensure!(D1, leased.is_empty(), "the attempts of job {} are spent, leased was {leased:?}", job.id);
    Ok(())
}

async fn a_leased_job_is_not_leased_again(stage: Stage) -> Outcome {
    let other = stage.connect().await?;
    stage.enqueue_many("q", 3).await?;
    let mut seen = BTreeSet::new();
    for round in 0..3 {
        let store = if round % 2 == 0 { &stage.store } else { &other };
        for job in store.dequeue(&request("q", 1)?).await? {
            ensure!(D2, seen.insert(job.id), "round {round}: job {} is leased already", job.id);
        }
    }
    let more = other.dequeue(&request("q", 10)?).await?;
    ensure!(D2, more.is_empty(), "all jobs are leased, but a second handle leased {:?}", ids(&more));
    Ok(())
}

async fn a_lease_spends_an_attempt(stage: Stage) -> Outcome {
    let id = stage.enqueue(new_job("q").max_attempts(3)).await?;
    for attempt in 1..=3 {
        let job = stage.claim_one("q").await?;
        ensure_eq!(D3, "attempts in the answer", job.attempts, attempt);
        ensure_eq!(D3, "attempts in the store", stage.live(id).await?.attempts, attempt);
        if attempt < 3 {
            stage.settle(job.receipt(), Verdict::retry_after("again", Duration::ZERO)?).await?;
        }
    }
    Ok(())
}

async fn every_lease_has_its_own_epoch(stage: Stage) -> Outcome {
    let id = stage.enqueue(new_job("q").max_attempts(9)).await?;
    let mut epochs = Vec::new();
    for round in 0..6 {
        let job = stage.claim_one("q").await?;
        let before = epochs.last().copied().unwrap_or_default();
        ensure!(D4, job.epoch > before, "lease {round} has epoch {}, earlier ones had {epochs:?}", job.epoch);
        ensure_eq!(D4, "epoch in the store", stage.live(id).await?.epoch, job.epoch);
        epochs.push(job.epoch);
        match round {
            0 => stage.settle(job.receipt(), Verdict::retry_after("again", Duration::ZERO)?).await?,
            1 => stage.settle(job.receipt(), Verdict::snooze(Duration::ZERO)?).await?,
            2 => stage.store.retry_later(id, Schedule::Now).await?,
            3 => {
                stage.age(2 * HOUR).await?;
                stage.reclaim().await?;
            }
            4 => {
                stage.store.release(&[job.receipt()]).await?;
            }
            _ => {}
        }
    }
    Ok(())
}

async fn never_more_than_asked_for(stage: Stage) -> Outcome {
    stage.enqueue_many("a", 10).await?;
    stage.enqueue_many("b", 10).await?;
    let mut left = 20;
    for (queues, limit) in [("a", 1), ("a", 3), ("b", 2), ("*", 5), ("*", 1), ("*", 2)] {
        let jobs = stage.claim(queues, limit).await?;
        ensure!(D5, jobs.len() <= limit as usize, "asked for {limit} of {queues:?}, got {:?}", ids(&jobs));
        let distinct: BTreeSet<_> = ids(&jobs).into_iter().collect();
        ensure!(D5, distinct.len() == jobs.len(), "the same job twice in {:?}", ids(&jobs));
        left -= jobs.len();
    }
    stage.enqueue_many("few", 3).await?;
    for queues in ["few", "fe*"] {
        let jobs = stage.claim(queues, 100).await?;
        let distinct: BTreeSet<_> = ids(&jobs).into_iter().collect();
        ensure!(D5, distinct.len() == jobs.len(), "asked for more than there is, got {:?}", ids(&jobs));
        for job in jobs {
            stage.settle(job.receipt(), Verdict::release()).await?;
        }
    }
    for job in stage.claim("few", 100).await? {
        stage.settle(job.receipt(), Verdict::done()).await?;
    }
    let now = stage.now().await?;
    let dump = stage.dump().await?;
    let ready = dump.jobs.iter().filter(|job| job.state(now) == JobState::Ready).count();
    ensure_eq!(D5, "jobs left Ready", ready, left);
    Ok(())
}

async fn a_lease_lasts_as_long_as_asked_for(stage: Stage) -> Outcome {
    let lengths =
        [Duration::from_millis(1), Duration::from_secs(90), Duration::from_micros(3_600_000_001), 24 * HOUR];
    for length in lengths {
        stage.enqueue(new_job("q")).await?;
        let before = stage.now().await?;
        let request = Dequeue::new("q", "worker ~7")?.lease_for(length)?;
        let jobs = stage.store.dequeue(&request).await?;
        let after = stage.now().await?;
        ensure_eq!(D7, "leased", jobs.len(), 1);
        let Some(lease) = &jobs[0].lease else {
            ensure!(D7, false, "the leased job has no lease: {:?}", jobs[0]);
            return Ok(());
        };
        let allowed = time::later(before, length)..=time::later(after, length);
        let until = lease.until;
        ensure!(D7, allowed.contains(&until), "a lease of {length:?} ends at {until}, expected {allowed:?}");
        ensure_eq!(D7, "worker", lease.worker, WorkerId::new("worker ~7")?);
    }
    Ok(())
}

async fn the_first_lease_is_remembered(stage: Stage) -> Outcome {
    stage.enqueue(new_job("q")).await?;
    let before = stage.now().await?;
    let job = stage.claim_one("q").await?;
    let after = stage.now().await?;
    let first = job.first_leased_at;
    let known = first.is_some_and(|first| (before..=after).contains(&first));
    ensure!(D8, known, "first_leased_at is {first:?}, expected {before} to {after}");
    let since_creation = first.map(|first| first - job.created_at);
    stage.settle(job.receipt(), Verdict::retry_after("again", Duration::ZERO)?).await?;
    stage.age(HOUR).await?;
    let again = stage.claim_one("q").await?;
    // Ageing may have shifted every stored time, so compare with another one.
    ensure_eq!(
        D8,
        "time from creation to first lease",
        again.first_leased_at.map(|t| t - again.created_at),
        since_creation
    );
    stage.settle(again.receipt(), Verdict::done()).await?;
    let done = stage.finished(job.id).await?;
    ensure_eq!(D8, "the same in the history", done.started_at.map(|t| t - done.created_at), since_creation);
    Ok(())
}

async fn only_the_queues_asked_for(stage: Stage) -> Outcome {
    for queue in ["mail", "mail:eu", "mai", "sms", "Mail", "xmail"] {
        stage.enqueue(new_job(queue).priority(if queue == "mail" { 0 } else { 9 })).await?;
    }
    for (asked, expected) in [
        ("mail", vec!["mail"]),
        ("mail:*", vec!["mail:eu"]),
        ("m*", vec!["mai"]),
        ("*", vec!["Mail", "sms", "xmail"]),
    ] {
        let mut queues: Vec<_> =
            stage.claim(asked, 10).await?.iter().map(|job| job.queue.to_string()).collect();
        queues.sort();
        ensure!(D9, queues == expected, "asked for {asked:?}, got jobs of {queues:?}, expected {expected:?}");
    }
    Ok(())
}

async fn a_prefix_is_compared_byte_for_byte(stage: Stage) -> Outcome {
    for queue in ["a_b", "aXb", "a%b", "aXXb", "a\\b", "A_b", "a[b]c", "a?b"] {
        stage.enqueue(new_job(queue)).await?;
    }
    for (asked, expected) in
        [("a_*", "a_b"), ("a%*", "a%b"), ("a\\*", "a\\b"), ("A*", "A_b"), ("a[b]*", "a[b]c"), ("a?*", "a?b")]
    {
        let queues: Vec<_> = stage.claim(asked, 10).await?.iter().map(|job| job.queue.to_string()).collect();
        ensure!(
            D9,
            queues == [expected],
            "asked for {asked:?}, got jobs of {queues:?}, expected {expected:?}"
        );
    }
    Ok(())
}

async fn others_are_left_alone(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 5).await?;
    stage.enqueue_many("other", 2).await?;
    stage.enqueue(new_job("q").delay(HOUR)).await?;
    let running = stage.leased(new_job("q").priority(9)).await?;
    let before = stage.dump().await?;
    let leased: BTreeSet<_> = ids(&stage.claim("q", 2).await?).into_iter().collect();
    ensure!(D10, !leased.contains(&running.id), "a running job was leased");
    let after = stage.dump().await?;
    for (old, new) in before.jobs.iter().zip(&after.jobs).filter(|(old, _)| !leased.contains(&old.id)) {
        ensure!(D10, old == new, "a job that was not leased changed: it was {old:?}, is {new:?}");
    }
    ensure_eq!(D10, "jobs in the queue", after.jobs.len(), before.jobs.len());
    Ok(())
}

async fn a_lease_changes_only_the_lease(stage: Stage) -> Outcome {
    let job = stage
        .leased(new_job("q").priority(3).unique_key("k").payload("p").header("h", "v").max_attempts(3))
        .await?;
    stage.settle(job.receipt(), Verdict::retry_after("kept", Duration::ZERO)?).await?;
    let old = stage.live(job.id).await?;
    let new = stage.claim_one("q").await?;
    let expected = Job {
        attempts: old.attempts + 1,
        epoch: new.epoch,
        lease: new.lease.clone(),
        updated_at: new.updated_at,
        ..old.clone()
    };
    ensure!(D10, new == expected, "leasing {old:?} made {new:?}");
    ensure!(D4, new.epoch > old.epoch, "leasing raised the epoch from {} to {}", old.epoch, new.epoch);
    ensure!(
        D10,
        new.updated_at >= old.updated_at,
        "updated_at went back from {} to {}",
        old.updated_at,
        new.updated_at
    );
    Ok(())
}

async fn the_answer_is_what_is_stored(stage: Stage) -> Outcome {
    stage.enqueue(new_job("q").payload("p").priority(1).header("h", "v")).await?;
    stage.enqueue_many("q", 3).await?;
    for job in stage.claim("q", 10).await? {
        ensure_eq!(D12, format!("job {}", job.id), stage.live(job.id).await?, job);
        let named = matches!(&job.lease, Some(Lease { worker, .. }) if worker.as_str() == "suite");
        ensure!(D12, named, "the lease in the answer is {:?}", job.lease);
    }
    Ok(())
}

async fn nothing_leasable_is_kept_back(stage: Stage) -> Outcome {
    for (queue, count) in [("a", 7), ("b", 1), ("c", 30)] {
        stage.enqueue_many(queue, count).await?;
    }
    stage.enqueue(new_job("a").priority(i32::MIN)).await?;
    // More that cannot be leased than a call asks for, in front of what can.
    for number in 0..30 {
        stage.enqueue(new_job("a").priority(i32::MAX - number).delay(HOUR)).await?;
    }
    let running = stage.enqueue(new_job("b").priority(5)).await?;
    ensure_eq!(D13, "leased", ids(&stage.claim("b", 1).await?), [running]);
    let mut leased = 0;
    for round in 0..60 {
        let jobs = stage.claim(if round % 2 == 0 { "*" } else { "a" }, 7).await?;
        leased += jobs.len();
        if jobs.is_empty() && round % 2 == 1 {
            continue;
        }
        if jobs.is_empty() {
            ensure!(D13, leased == 39, "an empty answer in round {round} after {leased} of 39 jobs");
            return Ok(());
        }
    }
    ensure!(D13, false, "no empty answer after 60 rounds and {leased} jobs");
    Ok(())
}

async fn an_empty_queue_gives_nothing(stage: Stage) -> Outcome {
    for queues in ["none", "none*", "*"] {
        let jobs = stage.claim(queues, 10).await?;
        ensure!(D13, jobs.is_empty(), "{queues:?} of an empty store gave {jobs:?}");
    }
    Ok(())
}

async fn a_worker_is_named_to_the_last_byte(stage: Stage) -> Outcome {
    for worker in ["w", "W", "w ", " w", "w'\\\"%_"] {
        let id = stage.enqueue(new_job("q")).await?;
        let jobs = stage.store.dequeue(&Dequeue::new("q", worker)?.lease_for(HOUR)?).await?;
        ensure_eq!(D7, "leased", ids(&jobs), [id]);
        let name = |job: &Job| job.lease.as_ref().map(|lease| lease.worker.to_string());
        ensure_eq!(D7, "worker in the answer", name(&jobs[0]).as_deref(), Some(worker));
        ensure_eq!(D7, "worker as stored", name(&stage.live(id).await?).as_deref(), Some(worker));
        stage.settle(jobs[0].receipt(), Verdict::done()).await?;
        let by = stage.finished(id).await?.processed_by.map(|worker| worker.to_string());
        ensure_eq!(S12, "processed_by", by.as_deref(), Some(worker));
    }
    Ok(())
}
