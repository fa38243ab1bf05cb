//! What a subscriber is told.

use std::time::Duration;

use futures_util::StreamExt;
use leasehold_core::contract::V1;
use leasehold_core::{
    BatchSize, Event, EventKind, Events, Job, JobId, Json, Lagged, Queues, Redrive, Schedule, Verdict,
};

use super::scene::{queues, within};
use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job};

checks! { "events":
    the_life_of_a_job_is_told_in_order [V1] needs Events;
    every_way_back_is_told [V1] needs Events;
    every_ending_is_told [V1] needs Events;
    an_administrators_word_is_told [V1] needs Events;
    a_stale_receipt_is_told [V1] needs Events;
    a_batch_is_told_job_by_job [V1] needs Events;
    only_the_queues_asked_for_are_told [V1] needs Events;
    a_transaction_is_told_after_its_commit [V1] needs Events, Transactions;
    every_verdict_in_a_transaction_is_told [V1] needs Events, Transactions;
    every_stale_receipt_is_told [V1] needs Events;
    an_exhausted_job_that_dies_is_told [V1] needs Events;
    every_event_has_its_time [V1, C4] needs Events;
    a_subscriber_that_falls_behind_is_told [V1, V2] needs Events;
}

/// How long an event may take: a bound, not a wait.
const SOON: Duration = Duration::from_secs(10);
/// How long it must be quiet.
const QUIET: Duration = Duration::from_millis(200);

async fn next(events: &mut Events) -> Outcome<Event> {
    match tokio::time::timeout(SOON, events.next()).await {
        Ok(Some(Ok(event))) => Ok(event),
        other => Err(Problem::Broken(V1, format!("an event should have come within {SOON:?}: {other:?}"))),
    }
}

async fn expect(events: &mut Events, job: JobId, expected: &[EventKind]) -> Outcome {
    let mut seen = Vec::new();
    for _ in expected {
        let event = next(events).await?;
        ensure_eq!(V1, format!("the job of {event:?} after {seen:?}"), event.job, job);
        seen.push(event.kind);
    }
    ensure_eq!(V1, format!("what was told of job {job}"), seen, expected);
    Ok(())
}

/// Where a batch over several queues is not one step, its parts happen side by side: there is an order inside each queue.
async fn expect_batch(
    stage: &Stage,
    events: &mut Events,
    jobs: &[(&str, JobId)],
    kind: EventKind,
) -> Outcome {
    let mut expected: Vec<_> = jobs.iter().map(|(queue, job)| ((*queue).to_owned(), *job)).collect();
    let mut told = Vec::new();
    for _ in jobs {
        let event = next(events).await?;
        ensure_eq!(V1, format!("the kind of {event:?}"), event.kind, kind);
        told.push((event.queue.to_string(), event.job));
    }
    if !stage.store.capabilities().atomic_batches {
        expected.sort_by(|(a, _), (b, _)| a.cmp(b));
        told.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
    ensure_eq!(V1, format!("the jobs of the batch that were {kind:?}, in order"), told, expected);
    Ok(())
}

async fn expect_quiet(events: &mut Events, why: &str) -> Outcome {
    let told = tokio::time::timeout(QUIET, events.next()).await;
    ensure!(V1, told.is_err(), "{why}, but told was {told:?}");
    Ok(())
}

async fn the_life_of_a_job_is_told_in_order(stage: Stage) -> Outcome {
    let mut events = stage.store.subscribe(&queues("q")?).await?;
    let from = stage.now().await?;
    let job = stage.leased(new_job("q")).await?;
    stage.settle(job.receipt(), Verdict::retry_after("no", Duration::ZERO)?).await?;
    let again = stage.claim_one("q").await?;
    stage.settle(again.receipt(), Verdict::done()).await?;
    let to = stage.now().await?;
    let life =
        [EventKind::Enqueued, EventKind::Leased, EventKind::Retried, EventKind::Leased, EventKind::Settled];
    let mut last = from;
    for kind in life {
        let event = next(&mut events).await?;
        let seen = (event.kind, event.job, event.queue.as_str());
        ensure_eq!(V1, "what was told", seen, (kind, job.id, "q"));
        within(V1, &format!("the time of {kind:?}"), event.at, (last, to))?;
        last = event.at;
    }
    expect_quiet(&mut events, "nothing more has happened").await
}

/// A leased job of which everything was told so far.
async fn leased(stage: &Stage, events: &mut Events) -> Outcome<Job> {
    let job = stage.leased(new_job("q").max_attempts(2)).await?;
    expect(events, job.id, &[EventKind::Enqueued, EventKind::Leased]).await?;
    Ok(job)
}

async fn every_way_back_is_told(stage: Stage) -> Outcome {
    let mut events = stage.store.subscribe(&queues("q")?).await?;
    let later = [Verdict::retry_after("no", HOUR)?, Verdict::retry("no"), Verdict::snooze(HOUR)?];
    for verdict in later {
        let job = leased(&stage, &mut events).await?;
        stage.settle(job.receipt(), verdict).await?;
        expect(&mut events, job.id, &[EventKind::Retried]).await?;
        stage.store.discard(job.id, Json::null()).await?;
        expect(&mut events, job.id, &[EventKind::Settled]).await?;
    }
    let job = leased(&stage, &mut events).await?;
    stage.store.retry_later(job.id, Schedule::Now).await?;
    let job = stage.claim_one("q").await?;
    stage.store.release(&[job.receipt()]).await?;
    let job = stage.claim_one("q").await?;
    let back = [EventKind::Retried, EventKind::Leased, EventKind::Retried, EventKind::Leased];
    expect(&mut events, job.id, &back).await?;
    stage.settle(job.receipt(), Verdict::dead("no")).await?;
    stage.store.redrive(&Redrive::all(BatchSize::MAX)).await?;
    stage.claim_one("q").await?;
    stage.age(2 * HOUR).await?;
    stage.reclaim().await?;
    let back = [EventKind::DeadLettered, EventKind::Redriven, EventKind::Leased, EventKind::Reclaimed];
    expect(&mut events, job.id, &back).await?;
    expect_quiet(&mut events, "nothing more has happened").await
}

async fn every_ending_is_told(stage: Stage) -> Outcome {
    let mut events = stage.store.subscribe(&queues("q")?).await?;
    let endings = [
        (Verdict::done(), EventKind::Settled),
        (Verdict::discard("no"), EventKind::Settled),
        (Verdict::dead("no"), EventKind::DeadLettered),
    ];
    for (verdict, told) in endings {
        let job = leased(&stage, &mut events).await?;
        stage.settle(job.receipt(), verdict).await?;
        expect(&mut events, job.id, &[told]).await?;
    }
    let last = stage.leased(new_job("q").max_attempts(1)).await?;
    stage.settle(last.receipt(), Verdict::retry("no")).await?;
    expect(&mut events, last.id, &[EventKind::Enqueued, EventKind::Leased, EventKind::DeadLettered]).await?;
    let expired = stage.leased(new_job("q").max_attempts(1)).await?;
    stage.age(2 * HOUR).await?;
    stage.reclaim().await?;
    expect(&mut events, expired.id, &[EventKind::Enqueued, EventKind::Leased, EventKind::DeadLettered])
        .await?;
    let discarded = stage.enqueue(new_job("q")).await?;
    stage.store.discard(discarded, Json::null()).await?;
    expect(&mut events, discarded, &[EventKind::Enqueued, EventKind::Settled]).await?;
    expect_quiet(&mut events, "nothing more has happened").await
}

async fn an_administrators_word_is_told(stage: Stage) -> Outcome {
    let mut events = stage.store.subscribe(&queues("q")?).await?;
    let id = stage.enqueue(new_job("q").delay(HOUR)).await?;
    stage.store.retry_later(id, Schedule::after(2 * HOUR)?).await?;
    stage.store.promote(id).await?;
    stage.store.promote(id).await?;
    stage.claim_one("q").await?;
    let told = [EventKind::Enqueued, EventKind::Retried, EventKind::Retried, EventKind::Leased];
    expect(&mut events, id, &told).await?;
    expect_quiet(&mut events, "nothing more has happened").await
}

async fn a_stale_receipt_is_told(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    stage.settle(job.receipt(), Verdict::release()).await?;
    let mut events = stage.store.subscribe(&queues("q")?).await?;
    let outcome = stage.try_settle(job.receipt(), Verdict::done()).await?;
    ensure!(V1, outcome.is_lost(), "a stale verdict was answered {outcome:?}");
    expect(&mut events, job.id, &[EventKind::LeaseLost]).await?;
    stage.store.heartbeat(&[job.receipt()], lease_for(HOUR)?).await?;
    expect(&mut events, job.id, &[EventKind::LeaseLost]).await?;
    let job = stage.claim_one("q").await?;
    expect(&mut events, job.id, &[EventKind::Leased]).await?;
    stage.age(2 * HOUR).await?;
    stage.store.heartbeat(&[job.receipt()], lease_for(HOUR)?).await?;
    expect_quiet(&mut events, "the receipt is good, though the lease has passed").await
}

async fn a_batch_is_told_job_by_job(stage: Stage) -> Outcome {
    let mut events = stage.store.subscribe(&Queues::all()).await?;
    let known = stage.enqueue(new_job("q").unique_key("k").priority(-1)).await?;
    let batch = [
        new_job("q").priority(1).build()?,
        new_job("q").unique_key("k").build()?,
        new_job("other").priority(2).build()?,
    ];
    let answers = stage.store.enqueue(&batch).await?;
    ensure_eq!(V1, "answers", answers.len(), 3);
    let accepted = [("q", known), ("q", answers[0].id), ("other", answers[2].id)];
    expect_batch(&stage, &mut events, &accepted, EventKind::Enqueued).await?;
    let jobs = stage.claim("*", 10).await?;
    ensure_eq!(V1, "leased", jobs.len(), 3);
    let taken: Vec<_> = jobs.iter().map(|job| (job.queue.as_str(), job.id)).collect();
    expect_batch(&stage, &mut events, &taken, EventKind::Leased).await?;
    let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect();
    stage.store.settle(&items).await?;
    expect_batch(&stage, &mut events, &taken, EventKind::Settled).await?;
    expect_quiet(&mut events, "nothing more has happened").await
}

async fn only_the_queues_asked_for_are_told(stage: Stage) -> Outcome {
    let mut exact = stage.store.subscribe(&queues("a")?).await?;
    let mut prefix = stage.store.subscribe(&queues("a:*")?).await?;
    for name in ["b", "ab", "A", "a ", "A:1"] {
        stage.leased(new_job(name)).await?;
    }
    let a = stage.enqueue(new_job("a")).await?;
    let of_prefix = stage.enqueue(new_job("a:1")).await?;
    expect(&mut exact, a, &[EventKind::Enqueued]).await?;
    expect(&mut prefix, of_prefix, &[EventKind::Enqueued]).await?;
    expect_quiet(&mut exact, "the subscriber of a knows all").await?;
    expect_quiet(&mut prefix, "the subscriber of a:* knows all").await
}

async fn a_transaction_is_told_after_its_commit(stage: Stage) -> Outcome {
    let held = stage.leased(new_job("q")).await?;
    let mut events = stage.store.subscribe(&queues("q")?).await?;
    let mut given_up = stage.begin().await?;
    given_up.enqueue_in(&[new_job("q").build()?]).await?;
    let _proof = given_up.settle_in(&held.receipt(), Verdict::dead("no")).await?;
    given_up.rollback().await?;
    let mut transaction = stage.begin().await?;
    let answers = transaction.enqueue_in(&[new_job("q").build()?]).await?;
    let _proof = transaction.settle_in(&held.receipt(), Verdict::done()).await?;
    expect_quiet(&mut events, "nothing is committed").await?;
    transaction.commit().await?;
    expect(&mut events, answers[0].id, &[EventKind::Enqueued]).await?;
    expect(&mut events, held.id, &[EventKind::Settled]).await?;
    expect_quiet(&mut events, "nothing more has happened").await
}

async fn every_verdict_in_a_transaction_is_told(stage: Stage) -> Outcome {
    let mut events = stage.store.subscribe(&queues("q")?).await?;
    let verdicts = [
        (Verdict::done(), EventKind::Settled),
        (Verdict::discard("no"), EventKind::Settled),
        (Verdict::dead("no"), EventKind::DeadLettered),
        (Verdict::retry_after("no", HOUR)?, EventKind::Retried),
        (Verdict::retry("no"), EventKind::Retried),
        (Verdict::snooze(HOUR)?, EventKind::Retried),
    ];
    for (verdict, told) in verdicts {
        let job = leased(&stage, &mut events).await?;
        let mut transaction = stage.begin().await?;
        let _settled = transaction.settle_in(&job.receipt(), verdict).await?;
        transaction.commit().await?;
        expect(&mut events, job.id, &[told]).await?;
    }
    expect_quiet(&mut events, "nothing more has happened").await
}

/// Of a live job. Whether the receipt of a finished one, or one that is shown in a transaction, is told is left open.
async fn every_stale_receipt_is_told(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    stage.store.retry_later(job.id, Schedule::after(HOUR)?).await?;
    let mut events = stage.store.subscribe(&queues("q")?).await?;
    let receipt = job.receipt();
    stage.try_settle(receipt, Verdict::done()).await?;
    stage.store.release(&[receipt]).await?;
    stage.store.heartbeat(&[receipt], lease_for(HOUR)?).await?;
    let lost = stage.store.ack(&receipt, Json::null()).await;
    ensure!(V1, lost.is_err(), "ack with a stale receipt was answered {lost:?}");
    let lost = stage.store.nack(&receipt, Json::null()).await;
    ensure!(V1, lost.is_err(), "nack with a stale receipt was answered {lost:?}");
    expect(&mut events, job.id, &[EventKind::LeaseLost; 5]).await?;
    expect_quiet(&mut events, "nothing more has happened").await
}

async fn an_exhausted_job_that_dies_is_told(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q").max_attempts(1)).await?;
    stage.store.retry_later(job.id, Schedule::Now).await?;
    let mut events = stage.store.subscribe(&queues("q")?).await?;
    stage.reclaim().await?;
    expect(&mut events, job.id, &[EventKind::DeadLettered]).await?;
    expect_quiet(&mut events, "nothing more has happened").await
}

async fn every_event_has_its_time(stage: Stage) -> Outcome {
    let mut events = stage.store.subscribe(&queues("q")?).await?;
    let mut from = stage.now().await?;
    let id = stage.enqueue(new_job("q").max_attempts(2)).await?;
    let kinds = [
        EventKind::Enqueued,
        EventKind::Leased,
        EventKind::Reclaimed,
        EventKind::LeaseLost,
        EventKind::Leased,
        EventKind::DeadLettered,
        EventKind::Redriven,
        EventKind::Retried,
        EventKind::Settled,
    ];
    let mut job = None;
    for kind in kinds {
        if kind != EventKind::Enqueued {
            stage.age(2 * HOUR).await?;
            from = stage.now().await?;
        }
        match (kind, &job) {
            (EventKind::Leased, _) => job = Some(stage.claim_one("q").await?),
            (EventKind::LeaseLost, Some(job)) => {
                stage.try_settle(Job::receipt(job), Verdict::done()).await?;
            }
            (EventKind::Reclaimed | EventKind::DeadLettered, _) => drop(stage.reclaim().await?),
            (EventKind::Redriven, _) => drop(stage.store.redrive(&Redrive::all(BatchSize::MAX)).await?),
            (EventKind::Retried, _) => stage.store.retry_later(id, Schedule::Now).await?,
            (EventKind::Settled, _) => stage.store.discard(id, Json::null()).await?,
            _ => {}
        }
        let to = stage.now().await?;
        let event = next(&mut events).await?;
        ensure_eq!(V1, "what was told", (event.kind, event.job), (kind, id));
        within(V1, &format!("the time of {kind:?}"), event.at, (from, to))?;
    }
    Ok(())
}

/// More than a subscriber can be behind.
async fn a_subscriber_that_falls_behind_is_told(stage: Stage) -> Outcome {
    let mut events = stage.store.subscribe(&queues("q")?).await?;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.extend(stage.enqueue_many("q", 10_000).await?);
    }
    let last = stage.enqueue(new_job("q")).await?;
    ids.push(last);
    let (mut awaited, mut gap) = (ids.iter(), false);
    loop {
        match tokio::time::timeout(SOON, events.next()).await {
            Ok(Some(Ok(event))) => {
                let place = if gap { usize::MAX } else { 1 };
                ensure!(
                    V2,
                    awaited.by_ref().take(place).any(|id| *id == event.job),
                    "{event:?} was told out of its order, {}",
                    if gap { "after a gap" } else { "and nothing of a gap" }
                );
                if event.job == last {
                    return Ok(());
                }
                gap = false;
            }
            // A gap may follow a gap: more events were missed while the first was read.
            Ok(Some(Err(Lagged(missed)))) => {
                ensure!(V2, missed > 0, "it was told of a gap of no events");
                gap = true;
            }
            other => {
                ensure!(V2, false, "the last event has not come, and was not said to be missed: {other:?}");
            }
        }
    }
}
