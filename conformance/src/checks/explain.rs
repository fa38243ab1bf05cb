//! Why a job is not running.

use std::time::Duration;

use leasehold_core::contract::{Clause, Y1, Y2, Y3, Y4, Y5};
use leasehold_core::{
    ConcurrencyLimit, Explanation, FinalStatus, JobId, JobState, Json, QueuePolicy, Verdict, WorkerId, time,
};

use super::scene::{TOKEN, at_most, dead_letter, every_state, fifo, paused, slow_rate, within};
use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, new_job, queue};

checks! { "explain":
    unknown_and_finished_jobs_are_called_so [Y1];
    the_state_of_a_job_is_the_reason [Y2, Y3, Y5];
    a_ready_job_waits_behind_the_first [Y5];
    a_paused_queue_is_the_reason_of_what_waits [Y4, Y2, Y3] needs Policies;
    a_full_queue_is_the_reason [Y4] needs ConcurrencyLimit;
    a_spent_rate_is_the_reason [Y4] needs RateLimit;
    the_concurrency_limit_comes_before_the_rate [Y4] needs ConcurrencyLimit, RateLimit;
    a_fifo_queue_waits_behind_its_first_job [Y5, Y3] needs Fifo;
    jobs_of_another_queue_explain_nothing [Y5, N1] needs Fifo;
    a_fifo_queue_waits_behind_whatever_is_leased [Y5] needs Fifo;
}

async fn expect(clause: Clause, stage: &Stage, id: JobId, expected: Explanation) -> Outcome {
    let seen = stage.store.explain(id).await?;
    if seen == expected {
        return Ok(());
    }
    Err(Problem::Broken(clause, format!("job {id} is explained as {seen:?}, expected {expected:?}")))
}

async fn unknown_and_finished_jobs_are_called_so(stage: Stage) -> Outcome {
    for unknown in [0, -1, 1, i64::MAX].map(JobId::new) {
        expect(Y1, &stage, unknown, Explanation::Unknown).await?;
    }
    for (verdict, status) in
        [(Verdict::done(), FinalStatus::Completed), (Verdict::discard("no"), FinalStatus::Discarded)]
    {
        let job = stage.leased(new_job("q")).await?;
        stage.settle(job.receipt(), verdict).await?;
        let at = stage.finished(job.id).await?.finished_at;
        expect(Y1, &stage, job.id, Explanation::Finished { status, at }).await?;
    }
    let dead = dead_letter(&stage, new_job("q"), "broken").await?;
    let at = stage.finished(dead).await?.finished_at;
    expect(Y1, &stage, dead, Explanation::DeadLetter { at, error: Json::error("broken") }).await
}

/// What a job's own state says of it, if no policy says more.
async fn of_its_state(stage: &Stage, state: JobState, id: JobId) -> Outcome<Explanation> {
    let job = stage.live(id).await?;
    let by = WorkerId::new("suite")?;
    let end = job.lease.map(|lease| lease.until).unwrap_or_default();
    Ok(match state {
        JobState::Running => Explanation::Leased { by, until: end },
        JobState::Expired => Explanation::LeaseExpired { by, since: end },
        JobState::Exhausted => Explanation::Exhausted,
        JobState::Scheduled => Explanation::Scheduled { until: job.available_at },
        JobState::Retrying => {
            Explanation::Retrying { until: job.available_at, error: Some(Json::error("earlier")) }
        }
        JobState::Ready => Explanation::Next,
    })
}

async fn the_state_of_a_job_is_the_reason(stage: Stage) -> Outcome {
    let scenes = every_state(&stage, ["a", "b"]).await?;
    for (state, id) in scenes.iter().flatten() {
        let clause = match state {
            JobState::Running | JobState::Expired => Y2,
            JobState::Ready => Y5,
            _ => Y3,
        };
        expect(clause, &stage, *id, of_its_state(&stage, *state, *id).await?).await?;
    }
    Ok(())
}

async fn a_ready_job_waits_behind_the_first(stage: Stage) -> Outcome {
    stage.enqueue(new_job("other").priority(99)).await?;
    stage.enqueue(new_job("q").priority(99).delay(HOUR)).await?;
    let low = stage.enqueue(new_job("q").priority(-1)).await?;
    let older = stage.enqueue(new_job("q").priority(5)).await?;
    stage.age(HOUR / 2).await?;
    let younger = stage.enqueue(new_job("q").priority(5)).await?;
    for waiting in [low, younger] {
        expect(Y5, &stage, waiting, Explanation::WaitsBehind { job: older }).await?;
    }
    expect(Y5, &stage, older, Explanation::Next).await?;
    ensure_eq!(Y5, "the job leased next", stage.claim_one("q").await?.id, older);
    expect(Y5, &stage, low, Explanation::WaitsBehind { job: younger }).await?;
    expect(Y5, &stage, younger, Explanation::Next).await?;
    stage.claim_one("q").await?;
    expect(Y5, &stage, low, Explanation::Next).await
}

async fn a_paused_queue_is_the_reason_of_what_waits(stage: Stage) -> Outcome {
    let [jobs, open] = every_state(&stage, ["shut:1", "open"]).await?;
    stage.set_policy("shut:*", paused()).await?;
    for (state, id) in &jobs {
        let held = matches!(state, JobState::Running | JobState::Expired | JobState::Exhausted);
        let expected = if held { of_its_state(&stage, *state, *id).await? } else { Explanation::Paused };
        expect(Y4, &stage, *id, expected).await?;
    }
    for (state, id) in &open {
        expect(Y4, &stage, *id, of_its_state(&stage, *state, *id).await?).await?;
    }
    Ok(())
}

async fn a_full_queue_is_the_reason(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(2)?).await?;
    let ids = stage.enqueue_many("q", 4).await?;
    let other = stage.enqueue(new_job("other")).await?;
    let scheduled = stage.enqueue(new_job("q").delay(HOUR * 9)).await?;
    stage.claim_one("q").await?;
    expect(Y4, &stage, ids[1], Explanation::Next).await?;
    let second = stage.claim_one("q").await?;
    let full = Explanation::ConcurrencyLimit { limit: ConcurrencyLimit::new(2)? };
    expect(Y4, &stage, ids[2], full.clone()).await?;
    expect(Y4, &stage, ids[3], full.clone()).await?;
    expect(Y5, &stage, other, Explanation::Next).await?;
    let until = stage.live(scheduled).await?.available_at;
    expect(Y3, &stage, scheduled, Explanation::Scheduled { until }).await?;
    ensure_eq!(Y4, "leases in use", stage.store.usage(&queue("q")?).await?.leased, 2);
    stage.age(2 * HOUR).await?;
    expect(Y4, &stage, ids[2], full).await?;
    stage.settle(second.receipt(), Verdict::done()).await?;
    expect(Y4, &stage, ids[2], Explanation::Next).await?;
    expect(Y5, &stage, ids[3], Explanation::WaitsBehind { job: ids[2] }).await
}

async fn a_spent_rate_is_the_reason(stage: Stage) -> Outcome {
    stage.set_policy("q", slow_rate(2)?).await?;
    let ids = stage.enqueue_many("q", 4).await?;
    let other = stage.enqueue(new_job("other")).await?;
    stage.claim_one("q").await?;
    expect(Y4, &stage, ids[1], Explanation::Next).await?;
    let from = stage.now().await?;
    let job = stage.claim_one("q").await?;
    let to = stage.now().await?;
    stage.settle(job.receipt(), Verdict::done()).await?;
    // The first token comes back a thousand seconds after it was taken, at most a check's length before the second.
    let bracket = (time::earlier(from, Duration::from_secs(120)), time::later(to, Duration::from_millis(1)));
    for id in [ids[2], ids[3]] {
        let seen = stage.store.explain(id).await?;
        let Explanation::RateLimit { until } = seen else {
            return Err(Problem::Broken(Y4, format!("the rate is spent, job {id} is explained as {seen:?}")));
        };
        within(Y4, "the next token", time::earlier(until, TOKEN), bracket)?;
        let usage = stage.store.usage(&queue("q")?).await?;
        ensure_eq!(Y4, "the next token in usage", usage.next_token_at, Some(until));
    }
    expect(Y5, &stage, other, Explanation::Next).await?;
    stage.age(TOKEN).await?;
    expect(Y4, &stage, ids[2], Explanation::Next).await
}

async fn the_concurrency_limit_comes_before_the_rate(stage: Stage) -> Outcome {
    let concurrency_limit = Some(ConcurrencyLimit::new(1)?);
    stage.set_policy("q", QueuePolicy { concurrency_limit, ..slow_rate(1)? }).await?;
    let ids = stage.enqueue_many("q", 2).await?;
    let job = stage.claim_one("q").await?;
    let limit = ConcurrencyLimit::new(1)?;
    expect(Y4, &stage, ids[1], Explanation::ConcurrencyLimit { limit }).await?;
    stage.settle(job.receipt(), Verdict::done()).await?;
    let seen = stage.store.explain(ids[1]).await?;
    let right = matches!(seen, Explanation::RateLimit { .. });
    if right { Ok(()) } else { Err(Problem::Broken(Y4, format!("only the rate is left: {seen:?}"))) }
}

async fn a_fifo_queue_waits_behind_its_first_job(stage: Stage) -> Outcome {
    stage.set_policy("q", fifo()).await?;
    let first = stage.enqueue(new_job("q").delay(HOUR)).await?;
    let second = stage.enqueue(new_job("q").priority(9)).await?;
    let late = stage.enqueue(new_job("q").delay(9 * HOUR)).await?;
    let until = stage.live(first).await?.available_at;
    expect(Y3, &stage, first, Explanation::Scheduled { until }).await?;
    expect(Y5, &stage, second, Explanation::WaitsBehind { job: first }).await?;
    let until = stage.live(late).await?.available_at;
    expect(Y3, &stage, late, Explanation::Scheduled { until }).await?;
    stage.age(HOUR).await?;
    expect(Y5, &stage, first, Explanation::Next).await?;
    expect(Y5, &stage, second, Explanation::WaitsBehind { job: first }).await?;
    let job = stage.claim_one("q").await?;
    expect(Y5, &stage, second, Explanation::WaitsBehind { job: first }).await?;
    stage.settle(job.receipt(), Verdict::done()).await?;
    expect(Y5, &stage, second, Explanation::Next).await
}

async fn a_fifo_queue_waits_behind_whatever_is_leased(stage: Stage) -> Outcome {
    let first = stage.enqueue(new_job("q").delay(HOUR)).await?;
    let ids = stage.enqueue_many("q", 3).await?;
    let leased = stage.claim("q", 2).await?;
    ensure_eq!(Y5, "leased before the queue was Fifo", crate::stage::ids(&leased), ids[..2]);
    stage.store.promote(first).await?;
    stage.set_policy("q", fifo()).await?;
    for waiting in [first, ids[2]] {
        expect(Y5, &stage, waiting, Explanation::WaitsBehind { job: ids[0] }).await?;
    }
    stage.settle(leased[0].receipt(), Verdict::done()).await?;
    for waiting in [first, ids[2]] {
        expect(Y5, &stage, waiting, Explanation::WaitsBehind { job: ids[1] }).await?;
    }
    stage.settle(leased[1].receipt(), Verdict::done()).await?;
    expect(Y5, &stage, first, Explanation::Next).await?;
    expect(Y5, &stage, ids[2], Explanation::WaitsBehind { job: first }).await
}

/// The other queue has jobs of every state, with smaller ids and larger ones.
async fn jobs_of_another_queue_explain_nothing(stage: Stage) -> Outcome {
    every_state(&stage, ["a"]).await?;
    stage.set_policy("fifo", fifo()).await?;
    let first = stage.enqueue(new_job("fifo").delay(HOUR)).await?;
    let second = stage.enqueue(new_job("fifo").priority(-5)).await?;
    let plain = stage.enqueue(new_job("plain").priority(-5)).await?;
    every_state(&stage, ["z"]).await?;
    expect(Y5, &stage, plain, Explanation::Next).await?;
    expect(Y5, &stage, first, Explanation::Next).await?;
    expect(Y5, &stage, second, Explanation::WaitsBehind { job: first }).await?;
    let until = stage.live(first).await?.available_at;
    let next = stage.store.next_available_at(&"fifo".parse()?).await?;
    ensure!(
        N1,
        next.is_some_and(|next| next.at <= until),
        "the first job of the queue is Ready since {until}, next is {next:?}"
    );
    Ok(())
}
