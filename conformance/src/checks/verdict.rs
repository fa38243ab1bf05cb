//! What each verdict makes of a job.

use super::settle::{rich, spend};
use std::time::Duration;

use leasehold_core::{Backoff, BatchSize, Job, JobState, Json, Outcome as End, Verdict, time};

use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, new_job};

checks! { "settle":
    done_keeps_the_result [S3];
    retry_waits_its_delay [S4];
    a_retried_job_runs_again [S4];
    retry_without_a_delay_backs_off [S5];
    backoff_grows_and_is_bounded [S5];
    the_last_retry_is_a_dead_letter [S6];
    the_last_but_one_retry_is_not [S6];
    snooze_gives_the_attempt_back [S7];
    snooze_never_spends_the_budget [S7];
    dead_is_at_once [S8];
    discard_keeps_the_reason [S9];
    an_error_may_be_null [S4, S8];
    awkward_errors_and_reasons_come_back_equal [S4, S8, S9, E9];
}

async fn done_keeps_the_result(stage: Stage) -> Outcome {
    let result = Json::parse(r#"{"sent":3,"list":[1.5,"é"]}"#)?;
    let job = rich(&stage, "q").await?;
    stage.settle(job.receipt(), Verdict::Done(result.clone())).await?;
    let done = stage.finished(job.id).await?;
    ensure_eq!(S3, "outcome", done.outcome, End::Completed { result });
    ensure_eq!(S3, "last_error", done.last_error, Some(Json::error("first error")));
    let left = stage.dump().await?.jobs;
    ensure!(S3, left.is_empty(), "the job is done, but the queue has {left:?}");
    Ok(())
}

async fn retry_waits_its_delay(stage: Stage) -> Outcome {
    for delay in [Duration::ZERO, Duration::from_micros(90_000_001), 5 * HOUR] {
        let job = stage.leased(new_job("q").payload("p")).await?;
        let before = stage.now().await?;
        stage.settle(job.receipt(), Verdict::retry_after("why", delay)?).await?;
        let after = stage.now().await?;
        let new = stage.live(job.id).await?;
        let allowed = time::later(before, delay)..=time::later(after, delay);
        let at = new.available_at;
        ensure!(
            S4,
            allowed.contains(&at),
            "retry after {delay:?} is available at {at}, expected {allowed:?}"
        );
        let expected = Job {
            lease: None,
            available_at: at,
            last_error: Some(Json::error("why")),
            updated_at: new.updated_at,
            ..job.clone()
        };
        ensure!(S4, new == expected, "retrying {job:?} made {new:?}");
        ensure!(S4, new.updated_at >= before, "updated_at is {}, the retry was at {before}", new.updated_at);
        stage.store.discard(job.id, Json::null()).await?;
    }
    Ok(())
}

async fn a_retried_job_runs_again(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q").max_attempts(2)).await?;
    stage.settle(job.receipt(), Verdict::retry_after("why", HOUR)?).await?;
    ensure_eq!(S4, "leased before the delay is over", stage.claim("q", 1).await?.len(), 0);
    ensure_eq!(S4, "state", stage.live(job.id).await?.state(stage.now().await?), JobState::Retrying);
    stage.age(HOUR).await?;
    let again = stage.claim_one("q").await?;
    ensure_eq!(S4, "attempts", (again.id, again.attempts), (job.id, 2));
    Ok(())
}

async fn retry_without_a_delay_backs_off(stage: Stage) -> Outcome {
    let backoff = Backoff::default();
    for attempt in 1..=3 {
        let mut delays = Vec::new();
        for number in 0..12 {
            let job = stage.leased(new_job(&format!("q{attempt}-{number}")).max_attempts(9)).await?;
            let job = spend(&stage, job, attempt).await?;
            let before = stage.now().await?;
            stage.settle(job.receipt(), Verdict::retry("why")).await?;
            let after = stage.now().await?;
            let at = stage.live(job.id).await?.available_at;
            let (shortest, longest) = backoff.bounds(attempt);
            let allowed = time::later(before, shortest.get())..=time::later(after, longest.get());
            ensure!(
                S5,
                allowed.contains(&at),
                "attempt {attempt} is available at {at}, expected {allowed:?}"
            );
            delays.push(at - before);
        }
        delays.sort_unstable();
        let spread = delays[11] - delays[0];
        // The chance that 12 draws lie in a fiftieth of the jitter is below 10^-17.
        let jitter = backoff.bounds(attempt).1.get() - backoff.bounds(attempt).0.get();
        let wide = spread.to_std().unwrap_or_default() > jitter / 50;
        ensure!(S5, wide, "twelve delays after attempt {attempt} lie within {spread}: no jitter");
    }
    Ok(())
}

async fn backoff_grows_and_is_bounded(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q").max_attempts(1000)).await?;
    let mut job = spend(&stage, job, 30).await?;
    for _ in 0..3 {
        let before = stage.now().await?;
        stage.settle(job.receipt(), Verdict::retry("why")).await?;
        let after = stage.now().await?;
        let at = stage.live(job.id).await?.available_at;
        let allowed = time::later(before, HOUR)..=time::later(after, HOUR);
        ensure!(
            S5,
            allowed.contains(&at),
            "attempt {} is available at {at}, expected {allowed:?}",
            job.attempts
        );
        stage.age(HOUR).await?;
        job = stage.claim_one("q").await?;
    }
    Ok(())
}

async fn the_last_retry_is_a_dead_letter(stage: Stage) -> Outcome {
    for verdict in [Verdict::retry("last"), Verdict::retry_after("last", HOUR)?] {
        let job = stage.leased(new_job("q").max_attempts(2)).await?;
        stage.settle(job.receipt(), Verdict::retry_after("first", Duration::ZERO)?).await?;
        let job = stage.claim_one("q").await?;
        stage.settle(job.receipt(), verdict.clone()).await?;
        let dead = stage.finished(job.id).await?;
        let error = Json::error("last");
        ensure_eq!(
            S6,
            format!("outcome of {verdict:?}"),
            dead.outcome,
            End::DeadLetter { error: error.clone() }
        );
        ensure_eq!(S6, "last_error", dead.last_error, Some(error));
        ensure_eq!(S6, "attempts", dead.attempts, 2);
    }
    let left = stage.dump().await?.jobs;
    ensure!(S6, left.is_empty(), "both jobs are dead letters, but the queue has {left:?}");
    Ok(())
}

async fn the_last_but_one_retry_is_not(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q").max_attempts(2)).await?;
    stage.settle(job.receipt(), Verdict::retry("first")).await?;
    let state = stage.live(job.id).await?.state(stage.now().await?);
    ensure_eq!(S6, "state after the first of two attempts", state, JobState::Retrying);
    Ok(())
}

async fn snooze_gives_the_attempt_back(stage: Stage) -> Outcome {
    for delay in [Duration::ZERO, 2 * HOUR] {
        let job = rich(&stage, "q").await?;
        let before = stage.now().await?;
        stage.settle(job.receipt(), Verdict::snooze(delay)?).await?;
        let after = stage.now().await?;
        let new = stage.live(job.id).await?;
        let expected = Job {
            lease: None,
            attempts: job.attempts - 1,
            available_at: new.available_at,
            updated_at: new.updated_at,
            ..job.clone()
        };
        ensure!(S7, new == expected, "snoozing {job:?} made {new:?}");
        let allowed = time::later(before, delay)..=time::later(after, delay);
        let at = new.available_at;
        ensure!(S7, allowed.contains(&at), "snoozed for {delay:?}, available at {at}, expected {allowed:?}");
        stage.store.discard(job.id, Json::null()).await?;
    }
    Ok(())
}

async fn snooze_never_spends_the_budget(stage: Stage) -> Outcome {
    let id = stage.enqueue(new_job("q").max_attempts(1)).await?;
    for round in 0..5 {
        let job = stage.claim_one("q").await?;
        ensure_eq!(S7, format!("attempts in round {round}"), (job.id, job.attempts), (id, 1));
        stage.settle(job.receipt(), Verdict::snooze(Duration::ZERO)?).await?;
        ensure_eq!(S7, "attempts after snoozing", stage.live(id).await?.attempts, 0);
    }
    Ok(())
}

async fn dead_is_at_once(stage: Stage) -> Outcome {
    let job = rich(&stage, "q").await?;
    stage.settle(job.receipt(), Verdict::dead("hopeless")).await?;
    let dead = stage.finished(job.id).await?;
    let error = Json::error("hopeless");
    ensure_eq!(S8, "outcome", dead.outcome, End::DeadLetter { error: error.clone() });
    ensure_eq!(S8, "last_error", dead.last_error, Some(error));
    ensure_eq!(S8, "attempts", (dead.attempts, dead.max_attempts.get()), (2, 4));
    Ok(())
}

async fn discard_keeps_the_reason(stage: Stage) -> Outcome {
    let job = rich(&stage, "q").await?;
    let reason = Json::parse(r#"{"by":"customer"}"#)?;
    stage.settle(job.receipt(), Verdict::Discard { reason: reason.clone() }).await?;
    let gone = stage.finished(job.id).await?;
    ensure_eq!(S9, "outcome", gone.outcome, End::Discarded { reason });
    ensure_eq!(S9, "last_error", gone.last_error, Some(Json::error("first error")));
    Ok(())
}

async fn an_error_may_be_null(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let after = leasehold_core::RetryAfter::Delay(leasehold_core::Delay::ZERO);
    stage.settle(job.receipt(), Verdict::Retry { error: Json::null(), after }).await?;
    ensure_eq!(S4, "last_error", stage.live(job.id).await?.last_error, Some(Json::null()));
    let job = stage.claim_one("q").await?;
    ensure_eq!(S4, "last_error of the leased job", job.last_error, Some(Json::null()));
    stage.settle(job.receipt(), Verdict::Dead { error: Json::null() }).await?;
    let dead = stage.finished(job.id).await?;
    ensure_eq!(S8, "outcome", dead.outcome, End::DeadLetter { error: Json::null() });
    ensure_eq!(S8, "last_error of the dead letter", dead.last_error, Some(Json::null()));
    Ok(())
}

async fn awkward_errors_and_reasons_come_back_equal(stage: Stage) -> Outcome {
    let documents = [
        "null",
        "\"\"",
        "1.0",
        "1e300",
        "18446744073709551615",
        "9007199254740993",
        r#"{"b":1,"a":2,"":3,"B":4}"#,
        r#"["\u0001","\u2028","\ud83d\ude80"]"#,
        r#""' OR 1=1; -- {{}} %s ? $1 :x""#,
    ];
    let mut documents = documents.map(Json::parse).into_iter().collect::<Result<Vec<_>, _>>()?;
    documents.push(Json::new(&"🚀".repeat(20_000))?);
    documents.push(Json::new(&"x".repeat(stage.store.capabilities().payload_limit - 2))?);
    for document in documents {
        let shown: String = document.as_str().chars().take(80).collect();
        let job = stage.leased(new_job("q")).await?;
        let after = leasehold_core::RetryAfter::Delay(leasehold_core::Delay::ZERO);
        stage.settle(job.receipt(), Verdict::Retry { error: document.clone(), after }).await?;
        let kept = stage.live(job.id).await?.last_error.as_ref() == Some(&document);
        ensure!(S4, kept, "the error {shown} of a retry came back changed");
        let job = stage.claim_one("q").await?;
        stage.settle(job.receipt(), Verdict::Dead { error: document.clone() }).await?;
        let dead = stage.finished(job.id).await?;
        let kept = *dead.outcome.document() == document && dead.last_error.as_ref() == Some(&document);
        ensure!(S8, kept, "the error {shown} of a dead letter came back changed");
        stage.store.redrive(&leasehold_core::Redrive::all(BatchSize::MAX)).await?;
        let job = stage.claim_one("q").await?;
        ensure!(S8, job.last_error.as_ref() == Some(&document), "the error {shown} was redriven changed");
        stage.settle(job.receipt(), Verdict::Discard { reason: document.clone() }).await?;
        let kept = *stage.finished(job.id).await?.outcome.document() == document;
        ensure!(S9, kept, "the reason {shown} came back changed");
        let id = stage.enqueue(new_job("q")).await?;
        stage.store.discard(id, document.clone()).await?;
        let kept = *stage.finished(id).await?.outcome.document() == document;
        ensure!(A2, kept, "the administrator's reason {shown} came back changed");
    }
    Ok(())
}
