//! Queues in numbers.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::{
    BatchSize, FinalStatus, HistoryFilter, JobFilter, JobState, Json, Prune, QueueName, QueueStats, Queues,
    Redrive, Schedule, Verdict,
};

use super::scene::{dead_letter, every_state, queues};
use crate::check::checks;
use crate::dump::{all_history, all_jobs};
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, new_job};

checks! { "stats":
    jobs_are_counted_by_their_state [Q1, Q2];
    counts_follow_the_clock [Q1];
    numbers_follow_every_operation [Q1, Q2];
    the_oldest_ready_job_is_told [Q2];
    dead_letters_and_attempts_are_counted [Q2];
    what_left_the_history_is_not_counted [Q2, Q3];
    queues_are_answered_as_asked_for [Q3];
}

async fn jobs_are_counted_by_their_state(stage: Stage) -> Outcome {
    every_state(&stage, ["a", "b", "ab"]).await?;
    stage.enqueue_many("a", 2).await?;
    stage.enqueue(new_job("a").delay(HOUR)).await?;
    stage.enqueue(new_job("b").delay(HOUR)).await?;
    stage.enqueue(new_job("b").delay(HOUR)).await?;
    for error in ["one", "two"] {
        dead_letter(&stage, new_job("dead"), error).await?;
    }
    let selections = [
        Queues::all(),
        queues("a*")?,
        queues("b")?,
        Queues::named(["ab", "dead", "none"])?,
        queues("none*")?,
    ];
    for selection in selections {
        let seen = tidy(stage.store.stats(&selection).await?);
        let recount = recount(&stage, &selection).await?;
        ensure_eq!(Q1, format!("stats of {selection:?}"), seen, recount);
    }
    let a = one(&stage, "a").await?;
    let counted = JobState::ALL.map(|state| a.count(state));
    ensure_eq!(Q1, format!("jobs of queue a by {:?}", JobState::ALL), counted, [1, 1, 1, 2, 1, 3]);
    ensure_eq!(Q1, "live jobs of queue a", a.live(), 9);
    Ok(())
}

/// The same rows by counting every job.
async fn recount(stage: &Stage, selection: &Queues) -> Outcome<Vec<QueueStats>> {
    let now = stage.now().await?;
    let mut rows = BTreeMap::new();
    if let Queues::Named(names) = selection {
        names.iter().for_each(|name| _ = row(&mut rows, name));
    }
    let filter = JobFilter { queues: selection.clone(), ..JobFilter::default() };
    for job in all_jobs(&*stage.store, filter).await? {
        let row = row(&mut rows, &job.queue);
        *row.states.entry(job.state(now)).or_default() += 1;
        *row.attempts.entry(job.attempts).or_default() += 1;
        if job.state(now) == JobState::Ready {
            row.oldest_ready_at = row.oldest_ready_at.into_iter().chain([job.available_at]).min();
        }
    }
    let statuses = Some(vec![FinalStatus::DeadLetter]);
    let filter = HistoryFilter { queues: selection.clone(), statuses, ..HistoryFilter::default() };
    for job in all_history(&*stage.store, filter).await? {
        row(&mut rows, &job.queue).dead_letters += 1;
    }
    Ok(rows.into_values().collect())
}

fn row<'a>(rows: &'a mut BTreeMap<QueueName, QueueStats>, queue: &QueueName) -> &'a mut QueueStats {
    rows.entry(queue.clone()).or_insert_with(|| QueueStats::empty(queue.clone(), DateTime::UNIX_EPOCH))
}

/// Without the zeros, which may stand there or not, and without the time of asking.
pub(super) fn tidy(mut rows: Vec<QueueStats>) -> Vec<QueueStats> {
    for row in &mut rows {
        row.as_of = DateTime::UNIX_EPOCH;
        row.states.retain(|_, count| *count > 0);
        row.attempts.retain(|_, count| *count > 0);
    }
    rows
}

async fn one(stage: &Stage, queue: &str) -> Outcome<QueueStats> {
    let from = stage.now().await?;
    let rows = stage.store.stats(&queues(queue)?).await?;
    let to = stage.now().await?;
    ensure_eq!(Q3, format!("rows for the queue {queue}"), rows.len(), 1);
    let as_of = rows[0].as_of;
    ensure!(
        C4,
        (from..=to).contains(&as_of),
        "stats are said to be of {as_of}, they were asked at {from} to {to}"
    );
    Ok(tidy(rows).remove(0))
}

async fn agree(stage: &Stage, after: &str) -> Outcome {
    let selection = queues("q")?;
    let seen = tidy(stage.store.stats(&selection).await?);
    ensure_eq!(Q1, format!("stats after {after}"), seen, recount(stage, &selection).await?);
    Ok(())
}

async fn numbers_follow_every_operation(stage: Stage) -> Outcome {
    stage.enqueue_many("q", 2).await?;
    agree(&stage, "enqueue").await?;
    let later = stage.enqueue(new_job("q").delay(HOUR)).await?;
    agree(&stage, "enqueue with a delay").await?;
    stage.store.promote(later).await?;
    agree(&stage, "promote").await?;
    for verdict in [
        Verdict::retry_after("no", 3 * HOUR)?,
        Verdict::retry_after("no", Duration::ZERO)?,
        Verdict::snooze(3 * HOUR)?,
        Verdict::snooze(Duration::ZERO)?,
        Verdict::dead("no"),
        Verdict::discard("no"),
        Verdict::done(),
    ] {
        let job = stage.leased(new_job("q")).await?;
        agree(&stage, "dequeue").await?;
        stage.settle(job.receipt(), verdict.clone()).await?;
        agree(&stage, &format!("{verdict:?}")).await?;
    }
    let waiting =
        all_jobs(&*stage.store, JobFilter { states: Some(vec![JobState::Retrying]), ..JobFilter::default() })
            .await?;
    for job in waiting {
        stage.store.promote(job.id).await?;
        agree(&stage, "promote of a job that was retried").await?;
    }
    let held = stage.claim("q", 2).await?;
    stage.store.retry_later(held[0].id, Schedule::After(leasehold_core::Delay::new(HOUR)?)).await?;
    agree(&stage, "retry_later of a leased job").await?;
    stage.store.discard(held[1].id, Json::null()).await?;
    agree(&stage, "discard of a leased job").await?;
    stage.store.redrive(&Redrive::all(BatchSize::MAX)).await?;
    agree(&stage, "redrive").await?;
    let held = stage.claim("q", 1).await?;
    stage.store.release(&held.iter().map(leasehold_core::Job::receipt).collect::<Vec<_>>()).await?;
    agree(&stage, "release").await?;
    stage.claim("q", 2).await?;
    stage.age(2 * HOUR).await?;
    agree(&stage, "two hours").await?;
    stage.reclaim().await?;
    agree(&stage, "reclaim").await
}

async fn counts_follow_the_clock(stage: Stage) -> Outcome {
    every_state(&stage, ["q"]).await?;
    // The lease ends after 1 hour, the retry after 5, the schedule after 6.
    for (hours, expected) in [(2, [0, 2, 1, 1, 1, 1]), (3, [0, 2, 1, 1, 0, 2]), (1, [0, 2, 1, 0, 0, 3])] {
        stage.age(hours * HOUR).await?;
        let row = one(&stage, "q").await?;
        let counted = JobState::ALL.map(|state| row.count(state));
        ensure_eq!(Q1, format!("after {hours} more hours, jobs by {:?}", JobState::ALL), counted, expected);
    }
    Ok(())
}

async fn the_oldest_ready_job_is_told(stage: Stage) -> Outcome {
    ensure_eq!(Q2, "oldest Ready of nothing", oldest(&stage).await?, None);
    let scheduled = stage.enqueue(new_job("q").delay(HOUR)).await?;
    let running = stage.leased(new_job("q")).await?;
    ensure_eq!(Q2, "oldest Ready where none is", oldest(&stage).await?, None);
    let young = stage.enqueue(new_job("q").priority(9)).await?;
    let expected = Some(stage.live(young).await?.available_at);
    ensure_eq!(Q2, "oldest Ready of one", oldest(&stage).await?, expected);
    stage.age(3 * HOUR).await?;
    let [young, timed] = [stage.live(young).await?, stage.live(scheduled).await?].map(|job| job.available_at);
    ensure_eq!(Q2, "oldest Ready of two", oldest(&stage).await?, Some(young.min(timed)));
    stage.store.retry_later(running.id, Schedule::Now).await?;
    ensure_eq!(Q2, "oldest Ready of three", oldest(&stage).await?, Some(young.min(timed)));
    let first = stage.claim_one("q").await?;
    ensure_eq!(Q2, "leased first", first.priority, 9);
    ensure_eq!(Q2, "oldest Ready of those left", oldest(&stage).await?, Some(timed));
    Ok(())
}

async fn oldest(stage: &Stage) -> Outcome<Option<DateTime<Utc>>> {
    Ok(one(stage, "q").await?.oldest_ready_at)
}

async fn dead_letters_and_attempts_are_counted(stage: Stage) -> Outcome {
    for verdict in [Verdict::done(), Verdict::discard("no"), Verdict::dead("no"), Verdict::retry("no")] {
        let job = stage.leased(new_job("q").max_attempts(1)).await?;
        stage.settle(job.receipt(), verdict).await?;
    }
    for spent in [0, 1, 1, 3] {
        let id = stage.enqueue(new_job("q")).await?;
        for _ in 0..spent {
            let job = stage.claim_one("q").await?;
            ensure_eq!(Q2, "leased", job.id, id);
            stage.store.retry_later(id, Schedule::Now).await?;
        }
        stage.store.retry_later(id, Schedule::after(HOUR)?).await?;
    }
    stage.leased(new_job("q")).await?;
    let row = one(&stage, "q").await?;
    ensure_eq!(Q2, "dead letters", row.dead_letters, 2);
    ensure_eq!(Q2, "jobs by attempts", row.attempts, BTreeMap::from([(0, 1), (1, 3), (3, 1)]));
    Ok(())
}

async fn what_left_the_history_is_not_counted(stage: Stage) -> Outcome {
    let mut dead = Vec::new();
    for error in ["one", "two", "three"] {
        dead.push(dead_letter(&stage, new_job("q"), error).await?);
    }
    stage.store.redrive(&Redrive::all(BatchSize::ONE)).await?;
    ensure_eq!(Q2, "dead letters after one of three was redriven", one(&stage, "q").await?.dead_letters, 2);
    stage.store.discard(dead[0], Json::null()).await?;
    ensure_eq!(Q2, "dead letters after it was discarded", one(&stage, "q").await?.dead_letters, 2);
    let all = Prune::older_than(Duration::ZERO, BatchSize::MAX)?;
    stage.store.prune(&Prune { ids: Some(vec![dead[1]]), ..all.clone() }).await?;
    ensure_eq!(Q2, "dead letters after one of two was pruned", one(&stage, "q").await?.dead_letters, 1);
    stage.store.prune(&all).await?;
    ensure_eq!(Q3, "queues when all were pruned", stage.store.stats(&Queues::all()).await?, []);
    Ok(())
}

async fn queues_are_answered_as_asked_for(stage: Stage) -> Outcome {
    stage.enqueue(new_job("game:2")).await?;
    stage.enqueue(new_job("game:10").delay(HOUR)).await?;
    stage.enqueue(new_job("Game:1")).await?;
    dead_letter(&stage, new_job("game:dead"), "no").await?;
    let done = stage.leased(new_job("game:done")).await?;
    stage.settle(done.receipt(), Verdict::done()).await?;
    let expected = [
        (queues("game:*")?, vec!["game:10", "game:2", "game:dead"]),
        (Queues::all(), vec!["Game:1", "game:10", "game:2", "game:dead"]),
        (queues("none*")?, vec![]),
        (queues("game:done")?, vec!["game:done"]),
        (Queues::named(["z", "game:2", "game", "Z"])?, vec!["Z", "game", "game:2", "z"]),
    ];
    for (selection, wanted) in expected {
        let rows = stage.store.stats(&selection).await?;
        let names: Vec<_> = rows.iter().map(|row| row.queue.as_str()).collect();
        ensure_eq!(Q3, format!("queues answered for {selection:?}"), names, wanted);
    }
    let none = one(&stage, "none").await?;
    let empty = QueueStats::empty(QueueName::new("none")?, none.as_of);
    ensure_eq!(Q3, "a queue that has nothing", none, empty);
    Ok(())
}
