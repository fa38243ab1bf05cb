//! Lists of a selection, page by page.

use leasehold_core::{BatchSize, Direction, HistoryFilter, JobFilter, Json, Queues, Verdict};

use super::page::{BOTH, walk_history, walk_jobs};
use crate::check::checks;
use crate::failure::{Outcome, ensure_eq};
use crate::stage::{HOUR, Stage, new_job};

checks! { "selection":
    pages_of_a_selection_hold_each_job_once [G2, G3];
    a_rare_job_is_found_among_many [G2, G3];
}

fn selections() -> Outcome<Vec<(Queues, Vec<usize>)>> {
    Ok(vec![
        ("a".parse()?, vec![0, 3, 6, 9]),
        ("a*".parse()?, vec![0, 1, 3, 4, 6, 7, 9, 10]),
        (Queues::named(["a", "b"])?, vec![0, 2, 3, 5, 6, 8, 9, 11]),
    ])
}

async fn pages_of_a_selection_hold_each_job_once(stage: Stage) -> Outcome {
    let mut all = Vec::new();
    for _ in 0..4 {
        for queue in ["a", "ab", "b"] {
            all.push(stage.enqueue(new_job(queue)).await?);
        }
    }
    for finished in [false, true] {
        for ((queues, wanted), direction) in
            selections()?.into_iter().flat_map(|one| BOTH.map(|way| (one.clone(), way)))
        {
            let mut wanted: Vec<_> = wanted.into_iter().map(|index: usize| all[index]).collect();
            if direction == Direction::NewestFirst {
                wanted.reverse();
            }
            for limit in [1, 2, 3, 4] {
                let seen = match finished {
                    false => {
                        let filter = JobFilter { queues: queues.clone(), direction, ..JobFilter::default() };
                        walk_jobs(&stage, JobFilter { limit: BatchSize::new(limit)?, ..filter }).await?
                    }
                    true => {
                        let filter =
                            HistoryFilter { queues: queues.clone(), direction, ..HistoryFilter::default() };
                        walk_history(&stage, HistoryFilter { limit: BatchSize::new(limit)?, ..filter })
                            .await?
                    }
                };
                let what = format!("pages of {limit} of {queues:?}, {direction:?}, finished: {finished}");
                match finished {
                    false => ensure_eq!(G2, what, seen, wanted),
                    true => ensure_eq!(G3, what, seen, wanted),
                }
            }
        }
        for id in all.iter().filter(|_| !finished) {
            stage.store.discard(*id, Json::null()).await?;
        }
    }
    Ok(())
}

async fn a_rare_job_is_found_among_many(stage: Stage) -> Outcome {
    let rare = || leasehold_core::NewJob::builder("rare", "rare").unique_key("rare");
    let first = stage.enqueue(rare()).await?;
    let many = stage.enqueue_many("q", 3000).await?;
    let last = stage.enqueue(leasehold_core::NewJob::builder("q", "rare").delay(HOUR)).await?;
    let kind = Some(leasehold_core::Kind::new("rare")?);
    let any = JobFilter::default;
    let states = Some(vec![leasehold_core::JobState::Scheduled]);
    let filters = [
        (JobFilter { kind: kind.clone(), ..any() }, vec![first, last]),
        (JobFilter { states, ..any() }, vec![last]),
        (JobFilter { unique_key: Some("rare".parse()?), ..any() }, vec![first]),
        (JobFilter { queues: Queues::named(["rare", "none"])?, ..any() }, vec![first]),
    ];
    for (filter, wanted) in filters {
        for direction in BOTH {
            let filter = JobFilter { direction, ..filter.clone() };
            let mut seen = walk_jobs(&stage, JobFilter { limit: BatchSize::ONE, ..filter.clone() }).await?;
            seen.sort_unstable();
            ensure_eq!(G2, format!("found among 3000 by {filter:?}"), seen, wanted);
        }
    }
    stage.settle(stage.claim_one("rare").await?.receipt(), Verdict::dead("no")).await?;
    for _ in 0..100 {
        let jobs = stage.claim("q", 3000).await?;
        if jobs.is_empty() {
            break;
        }
        let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect();
        stage.store.settle(&items).await?;
    }
    stage.store.discard(last, Json::null()).await?;
    let any = HistoryFilter::default;
    let status = |status| Some(vec![status]);
    let filters = [
        (HistoryFilter { kind, ..any() }, vec![first, last]),
        (HistoryFilter { statuses: status(leasehold_core::FinalStatus::Discarded), ..any() }, vec![last]),
        (HistoryFilter { statuses: status(leasehold_core::FinalStatus::DeadLetter), ..any() }, vec![first]),
        (HistoryFilter { queues: "rare".parse()?, ..any() }, vec![first]),
    ];
    for (filter, wanted) in filters {
        for direction in BOTH {
            let filter = HistoryFilter { direction, ..filter.clone() };
            let mut seen =
                walk_history(&stage, HistoryFilter { limit: BatchSize::ONE, ..filter.clone() }).await?;
            seen.sort_unstable();
            ensure_eq!(G3, format!("found among {} finished jobs by {filter:?}", many.len()), seen, wanted);
        }
    }
    Ok(())
}
