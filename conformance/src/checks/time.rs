//! Whose clock it is, and how far it reaches.

use std::time::Duration;

use chrono::{DateTime, Timelike, Utc};
use leasehold_core::contract::C4;
use leasehold_core::{BatchSize, Job, JobId, JobState, Json, Receipt, Redrive, Schedule, Verdict, time};

use super::scene::{every_state, within};
use crate::check::checks;
use crate::dump::Dump;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job};

checks! { "time":
    the_clock_does_not_go_backwards [C4];
    a_job_is_written_down_by_the_stores_clock [C4];
    every_change_moves_updated_at [C4];
    an_ending_is_written_down_by_the_stores_clock [C4];
    times_are_whole_microseconds [C4];
    schedules_reach_to_the_year_9999 [C4];
    time_passes_for_everything [C4];
    every_length_of_time_is_kept_to_the_microsecond [C4];
    every_delay_reaches_a_hundred_years [C4];
    a_backoff_is_kept_to_the_microsecond_and_reaches_a_hundred_years [C4, S5] needs Policies;
}

async fn the_clock_does_not_go_backwards(stage: Stage) -> Outcome {
    let other = stage.connect().await?;
    let mut last = stage.now().await?;
    for turn in 0..50 {
        if turn % 10 == 9 {
            stage.age(Duration::from_secs(1)).await?;
        }
        for store in [&stage.store, &other] {
            let now = store.now().await?;
            ensure!(C4, now >= last, "after {last} the clock shows {now}");
            last = now;
        }
    }
    Ok(())
}

/// Does something and gives the times between which it was done.
async fn timed<T>(stage: &Stage, doing: impl Future<Output = Outcome<T>>) -> Outcome<(T, Bracket)> {
    let from = stage.now().await?;
    let done = doing.await?;
    Ok((done, (from, stage.now().await?)))
}

type Bracket = (DateTime<Utc>, DateTime<Utc>);

fn hence((from, to): Bracket, by: Duration) -> Bracket {
    (time::later(from, by), time::later(to, by))
}

async fn a_job_is_written_down_by_the_stores_clock(stage: Stage) -> Outcome {
    let (id, enqueued) = timed(&stage, stage.enqueue(new_job("q"))).await?;
    let job = stage.live(id).await?;
    within(C4, "created_at", job.created_at, enqueued)?;
    within(C4, "updated_at of a new job", job.updated_at, enqueued)?;
    within(C4, "available_at of a new job", job.available_at, enqueued)?;
    let (job, leased) = timed(&stage, stage.claim_one("q")).await?;
    within(C4, "updated_at of a leased job", job.updated_at, leased)?;
    within(C4, "first_leased_at", job.first_leased_at.unwrap_or_default(), leased)?;
    within(C4, "the end of the lease", end(&job), hence(leased, HOUR))?;
    ensure_eq!(C4, "created_at of the leased job", job.created_at, stage.live(id).await?.created_at);
    let beat = async { Ok(stage.store.heartbeat(&[job.receipt()], lease_for(2 * HOUR)?).await?) };
    let (_, beaten) = timed(&stage, beat).await?;
    within(
        C4,
        "the end of the lease after a heartbeat",
        end(&stage.live(id).await?),
        hence(beaten, 2 * HOUR),
    )?;
    let retry = stage.settle(job.receipt(), Verdict::retry_after("no", 3 * HOUR)?);
    let (_, retried) = timed(&stage, retry).await?;
    within(C4, "available_at of a retry", stage.live(id).await?.available_at, hence(retried, 3 * HOUR))
}

fn end(job: &Job) -> DateTime<Utc> {
    job.lease.as_ref().map(|lease| lease.until).unwrap_or_default()
}

async fn every_change_moves_updated_at(stage: Stage) -> Outcome {
    let store = &stage.store;
    let id = stage.enqueue(new_job("q")).await?;
    let receipt = expect_moved(&stage, id, "a lease", stage.claim_one("q")).await?;
    let beat = async { Ok(store.heartbeat(&[receipt], lease_for(HOUR)?).await?) };
    expect_moved(&stage, id, "a heartbeat", beat).await?;
    let retry = stage.settle(receipt, Verdict::retry_after("no", HOUR)?);
    expect_moved(&stage, id, "a retry", retry).await?;
    expect_moved(&stage, id, "promote", async { Ok(store.promote(id).await?) }).await?;
    let receipt = expect_moved(&stage, id, "a second lease", stage.claim_one("q")).await?;
    expect_moved(&stage, id, "a snooze", stage.settle(receipt, Verdict::snooze(HOUR)?)).await?;
    let later = async { Ok(store.retry_later(id, Schedule::Now).await?) };
    expect_moved(&stage, id, "retry_later", later).await?;
    expect_moved(&stage, id, "a third lease", stage.claim_one("q")).await?;
    stage.age(HOUR).await?;
    expect_moved(&stage, id, "a reclaim", stage.reclaim()).await?;
    let receipt = expect_moved(&stage, id, "a fourth lease", stage.claim_one("q")).await?;
    stage.settle(receipt, Verdict::dead("no")).await?;
    let redrive = async { Ok(store.redrive(&Redrive::all(BatchSize::MAX)).await?) };
    expect_moved(&stage, id, "redrive", redrive).await?;
    Ok(())
}

/// Lets time pass, does something, and gives the job's receipt after that.
async fn expect_moved<T>(
    stage: &Stage,
    id: JobId,
    change: &str,
    doing: impl Future<Output = Outcome<T>>,
) -> Outcome<Receipt> {
    stage.age(HOUR / 4).await?;
    let (_, bracket) = timed(stage, doing).await?;
    let job = stage.live(id).await?;
    within(C4, &format!("updated_at after {change}"), job.updated_at, bracket)?;
    Ok(job.receipt())
}

async fn an_ending_is_written_down_by_the_stores_clock(stage: Stage) -> Outcome {
    for verdict in [Verdict::done(), Verdict::dead("no"), Verdict::discard("no"), Verdict::retry("no")] {
        let (job, leased) = timed(&stage, stage.leased(new_job("q").max_attempts(1))).await?;
        let (_, ended) = timed(&stage, stage.settle(job.receipt(), verdict.clone())).await?;
        let row = stage.finished(job.id).await?;
        within(C4, &format!("finished_at after {verdict:?}"), row.finished_at, ended)?;
        within(C4, "started_at", row.started_at.unwrap_or_default(), leased)?;
        within(C4, "created_at in the history", row.created_at, leased)?;
        stage.age(HOUR / 2).await?;
    }
    let discarded = stage.enqueue(new_job("q")).await?;
    let discard = async { Ok(stage.store.discard(discarded, Json::null()).await?) };
    let (_, ended) = timed(&stage, discard).await?;
    within(C4, "finished_at after discard", stage.finished(discarded).await?.finished_at, ended)?;
    let expired = stage.leased(new_job("q").max_attempts(1)).await?;
    stage.age(2 * HOUR).await?;
    let (_, ended) = timed(&stage, stage.reclaim()).await?;
    within(C4, "finished_at after a reclaim", stage.finished(expired.id).await?.finished_at, ended)
}

async fn times_are_whole_microseconds(stage: Stage) -> Outcome {
    every_state(&stage, ["q"]).await?;
    stage.age(Duration::from_nanos(1_234_567_000)).await?;
    let at = time::later(stage.now().await?, Duration::from_nanos(3_600_000_123_457_000));
    let odd = stage.enqueue(new_job("q").at(at)).await?;
    ensure_eq!(C4, "available_at to the microsecond", stage.live(odd).await?.available_at, at);
    stage.enqueue(new_job("q").delay(Duration::from_nanos(7_200_000_001_999))).await?;
    let done = stage.claim_one("q").await?;
    stage.settle(done.receipt(), Verdict::done()).await?;
    let times = all_times(&stage.dump().await?).into_iter().chain([stage.now().await?]);
    for time in times {
        ensure_eq!(C4, format!("nanoseconds of {time:?}"), time.nanosecond() % 1000, 0);
    }
    Ok(())
}

fn all_times(dump: &Dump) -> Vec<DateTime<Utc>> {
    let live = dump.jobs.iter().flat_map(|job| {
        let some = [job.available_at, job.created_at, job.updated_at];
        some.into_iter().chain(job.first_leased_at).chain(job.lease.as_ref().map(|lease| lease.until))
    });
    let finished = dump
        .history
        .iter()
        .flat_map(|job| [job.created_at, job.finished_at].into_iter().chain(job.started_at));
    live.chain(finished).collect()
}

async fn schedules_reach_to_the_year_9999(stage: Stage) -> Outcome {
    let now = stage.now().await?;
    let times = [
        "2038-01-19T03:14:08.000001Z",
        "2039-06-01T12:00:00.999999Z",
        "2106-02-07T06:28:16Z",
        "2262-04-11T23:47:16.854776Z",
        "9999-12-31T23:59:59.999999Z",
    ];
    let times = times.map(|text| text.parse::<DateTime<Utc>>().unwrap_or(now));
    let again = stage.leased(new_job("again")).await?.id;
    for at in times.into_iter().filter(|at| *at > now) {
        let id = stage.enqueue(new_job("q").at(at)).await?;
        let job = stage.live(id).await?;
        ensure_eq!(C4, "available_at", job.available_at, at);
        ensure_eq!(
            C4,
            format!("state of a job for {at}"),
            job.state(stage.now().await?),
            JobState::Scheduled
        );
        stage.store.retry_later(again, Schedule::at(at)?).await?;
        ensure_eq!(C4, "available_at after retry_later", stage.live(again).await?.available_at, at);
    }
    ensure_eq!(C4, "leased long before their time", stage.claim("*", 10).await?, []);
    let century = Duration::from_secs(36_525 * 24 * 3600);
    let (id, bracket) = timed(&stage, stage.enqueue(new_job("q").delay(century))).await?;
    within(C4, "available_at in a hundred years", stage.live(id).await?.available_at, hence(bracket, century))
}

async fn time_passes_for_everything(stage: Stage) -> Outcome {
    let [jobs] = every_state(&stage, ["q"]).await?;
    let expected = [
        (1, [(JobState::Running, JobState::Expired)].as_slice()),
        (4, &[(JobState::Retrying, JobState::Ready)]),
        (1, &[(JobState::Scheduled, JobState::Ready)]),
    ];
    let mut states = jobs.clone().into_iter().map(|(state, id)| (id, state)).collect::<Vec<_>>();
    for (hours, changes) in expected {
        stage.age(hours * HOUR).await?;
        for (was, is) in changes {
            let changed = states.iter_mut().find(|(id, _)| *id == jobs[was]);
            changed.into_iter().for_each(|(_, state)| *state = *is);
        }
        let now = stage.now().await?;
        for (id, state) in &states {
            let seen = stage.live(*id).await?.state(now);
            ensure_eq!(C4, format!("state of job {id} after {hours} more hours"), seen, *state);
        }
    }
    Ok(())
}

async fn every_length_of_time_is_kept_to_the_microsecond(stage: Stage) -> Outcome {
    for odd in [HOUR + Duration::from_micros(1), 2 * HOUR + Duration::from_micros(999_999)] {
        let (id, bracket) = timed(&stage, stage.enqueue(new_job("q").delay(odd))).await?;
        within(C4, "available_at of a delay", stage.live(id).await?.available_at, hence(bracket, odd))?;
        every_delay(&stage, id, odd).await?;
        let job = stage.leased(new_job("beat")).await?;
        let length = 3 * odd;
        let beat = async { Ok(stage.store.heartbeat(&[job.receipt()], lease_for(length)?).await?) };
        let (_, bracket) = timed(&stage, beat).await?;
        within(C4, "the end of a heartbeat", end(&stage.live(job.id).await?), hence(bracket, length))?;
        let id = stage.enqueue(new_job("lease")).await?;
        let request = leasehold_core::Dequeue::new("lease", "suite")?.lease_for(odd)?;
        let (_, bracket) = timed(&stage, async { Ok(stage.store.dequeue(&request).await?) }).await?;
        within(C4, "the end of a lease", end(&stage.live(id).await?), hence(bracket, odd))?;
    }
    Ok(())
}

/// Gives the waiting job this delay in every way there is.
async fn every_delay(stage: &Stage, id: JobId, delay: Duration) -> Outcome {
    let later = async { Ok(stage.store.retry_later(id, Schedule::after(delay)?).await?) };
    let (_, bracket) = timed(stage, later).await?;
    within(C4, "available_at of retry_later", stage.live(id).await?.available_at, hence(bracket, delay))?;
    for verdict in [Verdict::retry_after("no", delay)?, Verdict::snooze(delay)?] {
        stage.store.promote(id).await?;
        let queue = stage.live(id).await?.queue;
        let job = stage.claim_one(queue.as_str()).await?;
        let (_, bracket) = timed(stage, stage.settle(job.receipt(), verdict.clone())).await?;
        let at = stage.live(job.id).await?.available_at;
        within(C4, &format!("available_at of {verdict:?}"), at, hence(bracket, delay))?;
    }
    Ok(())
}

async fn every_delay_reaches_a_hundred_years(stage: Stage) -> Outcome {
    let days = |days: u32| days * 24 * HOUR;
    // Around the ends of milliseconds and seconds in 31 and 32 bits, and the longest.
    for delay in [days(24), days(26), days(49), days(51), days(20_000), days(36_525)] {
        let id = stage.enqueue(new_job(&format!("q{}", delay.as_secs())).delay(delay)).await?;
        every_delay(&stage, id, delay).await?;
    }
    Ok(())
}

async fn a_backoff_is_kept_to_the_microsecond_and_reaches_a_hundred_years(stage: Stage) -> Outcome {
    let century = 36_525 * 24 * HOUR;
    let odd = HOUR + Duration::from_micros(1);
    let bases = [(odd, century), (26 * 24 * HOUR, century), (century, century), (9 * HOUR, odd)];
    for (number, (base, max)) in bases.into_iter().enumerate() {
        let backoff = leasehold_core::Backoff::new(base, 0.0, Duration::ZERO, max)?;
        let on_expiry = Some(leasehold_core::OnExpiry::Backoff);
        let policy = leasehold_core::QueuePolicy { backoff: Some(backoff), on_expiry, ..Default::default() };
        let name = format!("q{number}");
        stage.set_policy(&name, policy).await?;
        let delay = backoff.delay(1, 0.5).get();
        let job = stage.leased(new_job(&name)).await?;
        let (_, bracket) = timed(&stage, stage.settle(job.receipt(), Verdict::retry("no"))).await?;
        let at = stage.live(job.id).await?.available_at;
        within(C4, &format!("available_at after {backoff:?}"), at, hence(bracket, delay))?;
        let job = stage.leased(new_job(&name)).await?;
        stage.age(2 * HOUR).await?;
        let (_, bracket) = timed(&stage, stage.reclaim()).await?;
        let at = stage.live(job.id).await?.available_at;
        within(C4, &format!("available_at after a reclaim with {backoff:?}"), at, hence(bracket, delay))?;
    }
    Ok(())
}
