//! How long a job waits that failed or was abandoned.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::contract::{P12, S5};
use leasehold_core::{Backoff, FinalStatus, Json, OnExpiry, QueuePolicy, ReclaimFate, Verdict, time};

use super::scene::within;
use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, new_job};

checks! { "backoff":
    a_retry_waits_as_the_backoff_says [S5] needs Policies;
    the_backoff_is_spread_by_its_jitter [S5] needs Policies;
    a_backoff_grows_up_to_its_maximum [S5] needs Policies;
    an_expired_job_waits_as_the_backoff_says [P12] needs Policies;
    an_expired_job_that_waits_has_its_error [R8, P12] needs Policies;
}

fn backoff(jitter: f64, on_expiry: Option<OnExpiry>) -> Outcome<QueuePolicy> {
    let backoff = Some(Backoff::new(HOUR, jitter, Duration::ZERO, 3 * HOUR)?);
    Ok(QueuePolicy { backoff, on_expiry, ..QueuePolicy::default() })
}

fn hours_from((from, to): (DateTime<Utc>, DateTime<Utc>), hours: u32) -> (DateTime<Utc>, DateTime<Utc>) {
    (time::later(from, hours * HOUR), time::later(to, hours * HOUR))
}

async fn a_retry_waits_as_the_backoff_says(stage: Stage) -> Outcome {
    stage.set_policy("q*", backoff(0.0, None)?).await?;
    let id = stage.enqueue(new_job("q1")).await?;
    for hours in [1, 2, 3, 3] {
        let job = stage.claim_one("q1").await?;
        let from = stage.now().await?;
        stage.settle(job.receipt(), Verdict::retry("no")).await?;
        let to = stage.now().await?;
        let seen = stage.live(id).await?.available_at;
        within(
            S5,
            &format!("available_at after attempt {}", job.attempts),
            seen,
            hours_from((from, to), hours),
        )?;
        stage.age(hours * HOUR).await?;
    }
    let other = stage.leased(new_job("other")).await?;
    let from = stage.now().await?;
    stage.settle(other.receipt(), Verdict::retry("no")).await?;
    let (min, max) = Backoff::default().bounds(1);
    let bracket = (time::later(from, min.get()), time::later(stage.now().await?, max.get()));
    within(S5, "available_at without a policy", stage.live(other.id).await?.available_at, bracket)
}

async fn the_backoff_is_spread_by_its_jitter(stage: Stage) -> Outcome {
    stage.set_policy("q", backoff(0.5, None)?).await?;
    stage.enqueue_many("q", 30).await?;
    let jobs = stage.claim("q", 30).await?;
    let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::retry("no"))).collect();
    let from = stage.now().await?;
    stage.store.settle(&items).await?;
    let to = stage.now().await?;
    let mut times = BTreeSet::new();
    for job in &jobs {
        let at = stage.live(job.id).await?.available_at;
        within(S5, "available_at", at, (time::later(from, HOUR / 2), time::later(to, 3 * HOUR / 2)))?;
        times.insert(at);
    }
    ensure!(S5, times.len() > 20, "30 retries are spread over {} times only: {times:?}", times.len());
    Ok(())
}

/// From a millisecond to a hundred years are more than forty doublings.
async fn a_backoff_grows_up_to_its_maximum(stage: Stage) -> Outcome {
    let most = 36_500 * 24 * HOUR;
    let backoff = Backoff::new(Duration::from_millis(1), 0.0, Duration::ZERO, most)?;
    stage.set_policy("q", QueuePolicy { backoff: Some(backoff), ..QueuePolicy::default() }).await?;
    let id = stage.enqueue(new_job("q").max_attempts(100)).await?;
    for attempt in 1..=45 {
        let job = stage.claim_one("q").await?;
        let delay = Duration::from_millis(1 << (attempt - 1)).min(most);
        let from = stage.now().await?;
        stage.settle(job.receipt(), Verdict::retry("no")).await?;
        let bracket = (time::later(from, delay), time::later(stage.now().await?, delay));
        let seen = stage.live(id).await?.available_at;
        within(S5, &format!("available_at after attempt {attempt}"), seen, bracket)?;
        stage.store.promote(id).await?;
    }
    Ok(())
}

async fn an_expired_job_waits_as_the_backoff_says(stage: Stage) -> Outcome {
    stage.set_policy("q", backoff(0.0, Some(OnExpiry::Backoff))?).await?;
    stage.set_policy("now", backoff(0.0, Some(OnExpiry::RetryNow))?).await?;
    let id = stage.enqueue(new_job("q").max_attempts(3)).await?;
    for hours in [1, 2] {
        let job = stage.claim_one("q").await?;
        let other = stage.leased(new_job("now")).await?;
        stage.age(HOUR).await?;
        let from = stage.now().await?;
        let mut reclaimed = stage.reclaim().await?;
        let to = stage.now().await?;
        reclaimed.sort_by_key(|reclaimed| reclaimed.id);
        let [at, now] = [stage.live(id).await?.available_at, stage.live(other.id).await?.available_at];
        within(
            P12,
            &format!("available_at after attempt {}", job.attempts),
            at,
            hours_from((from, to), hours),
        )?;
        within(P12, "available_at in a queue that retries now", now, (from, to))?;
        let told = [(id, at), (other.id, now)]
            .map(|(id, available_at)| (id, ReclaimFate::Requeued { available_at }));
        let reclaimed: Vec<_> = reclaimed.iter().map(|reclaimed| (reclaimed.id, reclaimed.fate)).collect();
        ensure_eq!(P12, "reclaimed", reclaimed, told);
        ensure_eq!(P12, "leased at once", stage.claim("q", 1).await?, []);
        stage.store.discard(other.id, Json::null()).await?;
        stage.age(hours * HOUR).await?;
    }
    stage.claim_one("q").await?;
    stage.age(HOUR).await?;
    stage.reclaim().await?;
    ensure_eq!(R3, "ended", stage.finished(id).await?.outcome.status(), FinalStatus::DeadLetter);
    Ok(())
}

async fn an_expired_job_that_waits_has_its_error(stage: Stage) -> Outcome {
    stage.set_policy("q", backoff(0.0, Some(OnExpiry::Backoff))?).await?;
    let job = stage.leased(new_job("q")).await?;
    stage.age(HOUR).await?;
    stage.reclaim().await?;
    let seen = stage.live(job.id).await?;
    ensure_eq!(R8, "last_error", seen.last_error, Some(leasehold_core::backend::lease_expired()));
    ensure_eq!(R8, "attempts and epoch", (seen.attempts, seen.epoch), (job.attempts, job.epoch.next()));
    Ok(())
}
