//! What a list, a redrive or a prune asks for: each field restricts by itself, and all of them together.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::{
    BatchSize, Delay, Direction, FinalStatus, FinishedJob, HistoryFilter, Job, JobFilter, JobId, JobState,
    Json, Kind, Lease, NewJob, Outcome, Prune, Queues, Redrive, UniqueKey, WorkerId, backend,
};

fn second(n: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + n, 0).unwrap()
}

/// Job 10, leased until second 100.
fn job() -> Job {
    let new = NewJob::builder("q", "k").unique_key("u").build().unwrap();
    let job = backend::accepted(10.into(), &new, &Default::default(), second(0));
    Job { lease: Some(Lease { until: second(100), worker: WorkerId::new("w").unwrap() }), ..job }
}

/// The same, finished at second 50.
fn finished(status: FinalStatus) -> FinishedJob {
    backend::finished(job(), Outcome::new(status, Json::null()), second(50))
}

fn kind(name: &str) -> Option<Kind> {
    Some(Kind::new(name).unwrap())
}

fn key(name: &str) -> Option<UniqueKey> {
    Some(UniqueKey::new(name).unwrap())
}

fn queues(name: &str) -> Queues {
    name.parse().unwrap()
}

fn ids(ids: &[i64]) -> Option<Vec<JobId>> {
    Some(ids.iter().copied().map(JobId::new).collect())
}

/// For each field a filter that has the job, and some that do not: alone, and with all the other fields set.
#[test]
fn a_live_job_is_listed_if_every_field_allows_it() {
    let any = JobFilter::default;
    let worker = |name: &str| Some(WorkerId::new(name).unwrap());
    let exact = JobFilter {
        queues: queues("q"),
        kind: kind("k"),
        states: Some(vec![JobState::Ready, JobState::Running]),
        unique_key: key("u"),
        worker: worker("w"),
        after: Some(9.into()),
        ..any()
    };
    let is_listed = |filter: &JobFilter| filter.matches(&job(), second(60));
    assert!(is_listed(&any()) && is_listed(&exact));
    for base in [any(), exact] {
        for other in [
            JobFilter { queues: queues("other"), ..base.clone() },
            JobFilter { kind: kind("other"), ..base.clone() },
            JobFilter { states: Some(vec![JobState::Ready]), ..base.clone() },
            JobFilter { states: Some(Vec::new()), ..base.clone() },
            JobFilter { unique_key: key("other"), ..base.clone() },
            JobFilter { worker: worker("other"), ..base.clone() },
            JobFilter { after: Some(10.into()), ..base.clone() },
            JobFilter { after: Some(11.into()), ..base.clone() },
        ] {
            assert!(!is_listed(&other), "{other:?}");
        }
    }
    let unleased = Job { lease: None, unique_key: None, ..job() };
    assert!(any().matches(&unleased, second(60)));
    assert!(!JobFilter { worker: worker("w"), ..any() }.matches(&unleased, second(60)));
    assert!(!JobFilter { unique_key: key("u"), ..any() }.matches(&unleased, second(60)));
}

#[test]
fn a_finished_job_is_listed_if_every_field_allows_it() {
    let any = HistoryFilter::default;
    let exact = HistoryFilter {
        queues: queues("q"),
        kind: kind("k"),
        statuses: Some(vec![FinalStatus::Completed]),
        unique_key: key("u"),
        finished_from: Some(second(50)),
        finished_before: Some(second(51)),
        after: Some(9.into()),
        ..any()
    };
    let is_listed = |filter: &HistoryFilter| filter.matches(&finished(FinalStatus::Completed));
    assert!(is_listed(&any()) && is_listed(&exact));
    assert!(is_listed(&HistoryFilter { finished_from: Some(second(49)), ..any() }));
    for base in [any(), exact] {
        for other in [
            HistoryFilter { queues: queues("other"), ..base.clone() },
            HistoryFilter { kind: kind("other"), ..base.clone() },
            HistoryFilter { statuses: Some(vec![FinalStatus::DeadLetter]), ..base.clone() },
            HistoryFilter { unique_key: key("other"), ..base.clone() },
            HistoryFilter { finished_from: Some(second(51)), ..base.clone() },
            HistoryFilter { finished_before: Some(second(50)), ..base.clone() },
            HistoryFilter { after: Some(10.into()), ..base.clone() },
        ] {
            assert!(!is_listed(&other), "{other:?}");
        }
    }
}

#[test]
fn a_list_goes_up_or_down() {
    let after = |direction: Direction| [9, 10, 11].map(|id| direction.is_after(10.into(), id.into()));
    assert_eq!(after(Direction::OldestFirst), [false, false, true]);
    assert_eq!(after(Direction::NewestFirst), [true, false, false]);
}

#[test]
fn a_dead_letter_is_redriven_if_every_field_allows_it() {
    let any = || Redrive::all(BatchSize::ONE);
    let exact = Redrive { queues: queues("q"), kind: kind("k"), ids: ids(&[3, 10]), ..any() };
    let is_redriven = |request: &Redrive| request.matches(&finished(FinalStatus::DeadLetter));
    assert!(is_redriven(&any()) && is_redriven(&exact));
    for base in [any(), exact] {
        for other in [
            Redrive { queues: queues("other"), ..base.clone() },
            Redrive { kind: kind("other"), ..base.clone() },
            Redrive { ids: ids(&[3]), ..base.clone() },
            Redrive { ids: ids(&[]), ..base.clone() },
        ] {
            assert!(!is_redriven(&other), "{other:?}");
        }
        assert!(!base.matches(&finished(FinalStatus::Completed)), "it is no dead letter: {base:?}");
    }
}

#[test]
fn a_finished_job_is_pruned_if_it_is_old_enough_and_every_field_allows_it() {
    let any = || Prune::older_than(Duration::from_secs(20), BatchSize::ONE).unwrap();
    let statuses = |status| Some(vec![status]);
    let exact = Prune {
        statuses: statuses(FinalStatus::Completed),
        queues: queues("q"),
        ids: ids(&[3, 10]),
        ..any()
    };
    let is_pruned = |request: &Prune, now| request.matches(&finished(FinalStatus::Completed), None, now);
    for base in [any(), exact] {
        assert!(is_pruned(&base, second(71)) && is_pruned(&base, second(70)), "{base:?}");
        assert!(!is_pruned(&base, second(69)), "it is younger: {base:?}");
        for other in [
            Prune { statuses: statuses(FinalStatus::DeadLetter), ..base.clone() },
            Prune { queues: queues("other"), ..base.clone() },
            Prune { ids: ids(&[3]), ..base.clone() },
        ] {
            assert!(!is_pruned(&other, second(70)), "{other:?}");
        }
    }
}

#[test]
fn a_prune_by_retention_goes_by_that_of_the_queue() {
    let by_retention = Prune::by_retention(BatchSize::ONE);
    let kept_for = |seconds| Some(Delay::new(Duration::from_secs(seconds)).unwrap());
    for (retention, pruned) in [(kept_for(20), true), (kept_for(21), false), (None, false)] {
        let job = finished(FinalStatus::Completed);
        assert_eq!(by_retention.matches(&job, retention, second(70)), pruned, "{retention:?}");
    }
    assert!(by_retention.forgets_keys());
    assert_eq!(by_retention.limit, BatchSize::ONE);
}
