//! Looking at jobs, one or many, live or finished.

use std::time::Duration;

use leasehold_core::{
    Direction, FinalStatus, HistoryFilter, JobFilter, JobId, JobState, Kind, NewJob, Queues, Record,
    UniqueKey, Verdict,
};

use super::scene::{dead_letter, every_state, queues};
use crate::check::checks;
use crate::dump::{all_history, all_jobs};
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, ids, new_job};

checks! { "list":
    get_finds_a_job_wherever_it_is [G1];
    jobs_are_listed_by_every_filter [G2];
    jobs_are_listed_by_state [G2];
    finished_jobs_are_listed_by_every_filter [G3];
    finished_jobs_are_listed_by_time [G3];
}

const BOTH: [Direction; 2] = [Direction::OldestFirst, Direction::NewestFirst];

async fn get_finds_a_job_wherever_it_is(stage: Stage) -> Outcome {
    let live = stage.leased(new_job("q")).await?;
    let done = stage.leased(new_job("q")).await?;
    stage.settle(done.receipt(), Verdict::done_with("result")?).await?;
    let last = stage.enqueue(new_job("q").delay(HOUR)).await?;
    ensure_eq!(G1, "the live job", stage.store.get(live.id).await?, Some(Record::Live(live.clone())));
    let found = stage.store.get(done.id).await?;
    let right = matches!(&found, Some(Record::Finished(job)) if job.id == done.id
        && job.outcome.status() == FinalStatus::Completed);
    ensure!(G1, right, "the finished job {} was found as {found:?}", done.id);
    for unknown in [0, -1, last.get() + 1, i64::MAX, i64::MIN].map(JobId::new) {
        ensure_eq!(G1, format!("the unknown job {unknown}"), stage.store.get(unknown).await?, None);
    }
    Ok(())
}

/// Twelve live jobs that differ in queue, kind and key.
async fn various(stage: &Stage) -> Outcome<Vec<JobId>> {
    let mut all = Vec::new();
    for queue in ["a", "ab", "A", "a_b"] {
        for (kind, key) in [("x", "k"), ("y", "K"), ("x", "l")] {
            all.push(stage.enqueue(NewJob::builder(queue, kind).unique_key(key)).await?);
        }
    }
    Ok(all)
}

async fn jobs_are_listed_by_every_filter(stage: Stage) -> Outcome {
    let all = various(&stage).await?;
    let key = |key| UniqueKey::new(key).map(Some);
    let kind = |kind| Kind::new(kind).map(Some);
    let any = JobFilter::default;
    let filters = [
        (any(), (0..12).collect()),
        (JobFilter { queues: queues("a")?, ..any() }, vec![0, 1, 2]),
        (JobFilter { queues: queues("a*")?, ..any() }, vec![0, 1, 2, 3, 4, 5, 9, 10, 11]),
        (JobFilter { queues: queues("a_*")?, ..any() }, vec![9, 10, 11]),
        (JobFilter { queues: Queues::named(["A", "ab", "none"])?, ..any() }, vec![3, 4, 5, 6, 7, 8]),
        (JobFilter { queues: queues("none")?, ..any() }, vec![]),
        (JobFilter { kind: kind("y")?, ..any() }, vec![1, 4, 7, 10]),
        (JobFilter { kind: kind("X")?, ..any() }, vec![]),
        (JobFilter { unique_key: key("k")?, ..any() }, vec![0, 3, 6, 9]),
        (
            JobFilter { unique_key: key("l")?, queues: queues("a*")?, kind: kind("x")?, ..any() },
            vec![2, 5, 11],
        ),
        (JobFilter { unique_key: key("l")?, kind: kind("y")?, ..any() }, vec![]),
    ];
    for (filter, wanted) in filters {
        let wanted: Vec<_> = wanted.into_iter().map(|index: usize| all[index]).collect();
        for direction in BOTH {
            let filter = JobFilter { direction, ..filter.clone() };
            let listed = listed_live(&stage, &filter).await?;
            ensure_eq!(G2, format!("listed by {filter:?}"), listed, ordered(&wanted, direction));
        }
    }
    Ok(())
}

async fn listed_live(stage: &Stage, filter: &JobFilter) -> Outcome<Vec<JobId>> {
    Ok(ids(&all_jobs(&*stage.store, filter.clone()).await?))
}

async fn listed_finished(stage: &Stage, filter: &HistoryFilter) -> Outcome<Vec<JobId>> {
    let jobs = all_history(&*stage.store, filter.clone()).await?;
    Ok(jobs.iter().map(|job| job.id).collect())
}

fn ordered(ids: &[JobId], direction: Direction) -> Vec<JobId> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    if direction == Direction::NewestFirst {
        ids.reverse();
    }
    ids
}

async fn jobs_are_listed_by_state(stage: Stage) -> Outcome {
    let [a, b] = every_state(&stage, ["a", "b"]).await?;
    for state in JobState::ALL {
        let filter = JobFilter { states: vec![state], ..JobFilter::default() };
        let listed = listed_live(&stage, &filter).await?;
        ensure_eq!(G2, format!("{state} jobs"), listed, ordered(&[a[&state], b[&state]], filter.direction));
        for other in JobState::ALL.into_iter().filter(|other| *other != state) {
            let states = vec![other, state];
            let filter = JobFilter { states, queues: queues("a")?, ..JobFilter::default() };
            let listed = listed_live(&stage, &filter).await?;
            let wanted = ordered(&[a[&state], a[&other]], filter.direction);
            ensure_eq!(G2, format!("{state} and {other} jobs of queue a"), listed, wanted);
        }
    }
    stage.age(7 * HOUR).await?;
    let filter = JobFilter { states: vec![JobState::Ready], queues: queues("a")?, ..JobFilter::default() };
    let ready = [JobState::Ready, JobState::Scheduled, JobState::Retrying].map(|state| a[&state]);
    let listed = listed_live(&stage, &filter).await?;
    ensure_eq!(G2, "Ready after seven hours", listed, ordered(&ready, filter.direction));
    Ok(())
}

async fn finished_jobs_are_listed_by_every_filter(stage: Stage) -> Outcome {
    let mut all = Vec::new();
    for queue in ["a", "ab", "A"] {
        for (kind, verdict) in
            [("x", Verdict::done()), ("y", Verdict::dead("no")), ("x", Verdict::discard("no"))]
        {
            let job = stage.leased(NewJob::builder(queue, kind).unique_key(kind)).await?;
            stage.settle(job.receipt(), verdict).await?;
            all.push(job.id);
        }
    }
    stage.enqueue(new_job("a")).await?;
    let (dead, gone) = (FinalStatus::DeadLetter, FinalStatus::Discarded);
    let kind = |kind| Kind::new(kind).map(Some);
    let key = |key| UniqueKey::new(key).map(Some);
    let any = HistoryFilter::default;
    let filters = [
        (any(), (0..9).collect()),
        (HistoryFilter { queues: queues("a")?, ..any() }, vec![0, 1, 2]),
        (HistoryFilter { queues: queues("a*")?, ..any() }, vec![0, 1, 2, 3, 4, 5]),
        (HistoryFilter { kind: kind("y")?, ..any() }, vec![1, 4, 7]),
        (HistoryFilter { statuses: vec![FinalStatus::Completed], ..any() }, vec![0, 3, 6]),
        (HistoryFilter { statuses: vec![dead], ..any() }, vec![1, 4, 7]),
        (HistoryFilter { statuses: vec![gone, dead], ..any() }, vec![1, 2, 4, 5, 7, 8]),
        (HistoryFilter { unique_key: key("x")?, ..any() }, vec![0, 2, 3, 5, 6, 8]),
        (
            HistoryFilter {
                queues: queues("a*")?,
                kind: kind("x")?,
                unique_key: key("x")?,
                statuses: vec![gone],
                ..any()
            },
            vec![2, 5],
        ),
    ];
    for (filter, wanted) in filters {
        let wanted: Vec<_> = wanted.into_iter().map(|index: usize| all[index]).collect();
        for direction in BOTH {
            let filter = HistoryFilter { direction, ..filter.clone() };
            let listed = listed_finished(&stage, &filter).await?;
            ensure_eq!(G3, format!("listed by {filter:?}"), listed, ordered(&wanted, direction));
        }
    }
    Ok(())
}

async fn finished_jobs_are_listed_by_time(stage: Stage) -> Outcome {
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(dead_letter(&stage, new_job("q"), "no").await?);
        stage.age(HOUR).await?;
    }
    let middle = stage.finished(all[1]).await?.finished_at;
    let next = middle + Duration::from_micros(1);
    let ranges = [
        (Some(middle), None, &all[1..]),
        (Some(next), None, &all[2..]),
        (None, Some(middle), &all[..1]),
        (None, Some(next), &all[..2]),
        (Some(middle), Some(next), &all[1..2]),
        (Some(middle), Some(middle), &[]),
    ];
    for (finished_from, finished_before, wanted) in ranges {
        let filter = HistoryFilter { finished_from, finished_before, ..HistoryFilter::default() };
        let listed = listed_finished(&stage, &filter).await?;
        ensure_eq!(G3, format!("listed by {filter:?}, one of them at {middle}"), listed, wanted);
    }
    Ok(())
}
