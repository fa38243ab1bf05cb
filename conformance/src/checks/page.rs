//! Lists page by page, while the store changes between the pages.

use leasehold_core::contract::{Clause, G2, G3};
use leasehold_core::{
    BatchSize, Direction, HistoryFilter, JobFilter, JobId, Json, Prune, Queues, Redrive, Verdict,
};

use super::scene::dead_letter;
use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, new_job};

checks! { "page":
    pages_of_jobs_hold_each_job_once [G2];
    pages_of_the_history_hold_each_job_once [G3];
    a_full_page_is_followed_by_the_rest [G2, G3];
    pages_of_a_selection_hold_each_job_once [G2, G3];
    a_rare_job_is_found_among_many [G2, G3];
}

const BOTH: [Direction; 2] = [Direction::OldestFirst, Direction::NewestFirst];

/// How many jobs stay, and how many others go: one after each page, while another one comes.
const CHANGES: usize = 6;

async fn pages_of_jobs_hold_each_job_once(stage: Stage) -> Outcome {
    for (limit, direction) in [1, 2, 3].into_iter().flat_map(|limit| BOTH.map(|way| (limit, way))) {
        let stage = stage.fresh().await?;
        let (stays, goes) = mixed(&stage).await?;
        let limit = BatchSize::new(limit)?;
        let mut filter = JobFilter { direction, limit, ..JobFilter::default() };
        let mut seen = Vec::new();
        for turn in 0..100 {
            let page = stage.store.jobs(&filter).await?;
            let items: Vec<_> = page.items.iter().map(|job| job.id).collect();
            expect_page(G2, &items, page.next, limit)?;
            seen.extend(items);
            filter.after = page.next;
            if page.next.is_none() {
                break;
            }
            ensure!(G2, turn < 99, "no end after {turn} pages of {limit:?}: {seen:?}");
            if let Some(goes) = goes.get(turn) {
                stage.store.discard(*goes, Json::null()).await?;
                stage.enqueue(new_job("late")).await?;
            }
        }
        expect_each_once(G2, &seen, &stays, direction)?;
    }
    Ok(())
}

/// Jobs that will stay and jobs that will go, by turns.
async fn mixed(stage: &Stage) -> Outcome<(Vec<JobId>, Vec<JobId>)> {
    let (mut stays, mut goes) = (Vec::new(), Vec::new());
    for _ in 0..CHANGES {
        goes.push(stage.enqueue(new_job("q")).await?);
        stays.push(stage.enqueue(new_job("q")).await?);
    }
    Ok((stays, goes))
}

async fn pages_of_the_history_hold_each_job_once(stage: Stage) -> Outcome {
    for (limit, direction) in [1, 2, 3].into_iter().flat_map(|limit| BOTH.map(|way| (limit, way))) {
        let stage = stage.fresh().await?;
        let (mut stays, mut goes) = (Vec::new(), Vec::new());
        for _ in 0..CHANGES {
            goes.push(dead_letter(&stage, new_job("q"), "goes").await?);
            stays.push(dead_letter(&stage, new_job("q"), "stays").await?);
        }
        let limit = BatchSize::new(limit)?;
        let mut filter = HistoryFilter { direction, limit, ..HistoryFilter::default() };
        let mut seen = Vec::new();
        for turn in 0..100 {
            let page = stage.store.history(&filter).await?;
            let items: Vec<_> = page.items.iter().map(|job| job.id).collect();
            expect_page(G3, &items, page.next, limit)?;
            seen.extend(items);
            filter.after = page.next;
            if page.next.is_none() {
                break;
            }
            ensure!(G3, turn < 99, "no end after {turn} pages of {limit:?}: {seen:?}");
            if let Some(goes) = goes.get(turn) {
                forget(&stage, turn, *goes).await?;
                dead_letter(&stage, new_job("late"), "late").await?;
            }
        }
        expect_each_once(G3, &seen, &stays, direction)?;
    }
    Ok(())
}

/// Takes a dead letter out of the history, one way or the other.
async fn forget(stage: &Stage, turn: usize, id: JobId) -> Outcome {
    if turn.is_multiple_of(2) {
        let redriven =
            stage.store.redrive(&Redrive { ids: vec![id], ..Redrive::all(BatchSize::MAX) }).await?;
        ensure_eq!(X1, "redriven", redriven.jobs, [id]);
    } else {
        let all = Prune::older_than(std::time::Duration::ZERO, BatchSize::MAX)?;
        ensure_eq!(U1, "pruned", stage.store.prune(&Prune { ids: vec![id], ..all }).await?, 1);
    }
    Ok(())
}

fn expect_page(clause: Clause, items: &[JobId], next: Option<JobId>, limit: BatchSize) -> Outcome {
    let short = items.len() <= limit.as_usize();
    let linked = next.is_none() || next == items.last().copied();
    if short && linked {
        return Ok(());
    }
    Err(Problem::Broken(clause, format!("a page of at most {limit:?}: {items:?}, then {next:?}")))
}

fn expect_each_once(clause: Clause, seen: &[JobId], stays: &[JobId], direction: Direction) -> Outcome {
    let mut kept: Vec<_> = seen.iter().copied().filter(|id| stays.contains(id)).collect();
    let in_order = seen.windows(2).all(|pair| direction.is_after(pair[0], pair[1]));
    kept.sort_unstable();
    if in_order && kept == stays {
        return Ok(());
    }
    Err(Problem::Broken(clause, format!("the pages {direction:?} have {seen:?}, stayed are {stays:?}")))
}

async fn a_full_page_is_followed_by_the_rest(stage: Stage) -> Outcome {
    let ids = stage.enqueue_many("q", 150).await?;
    let first = stage.store.jobs(&JobFilter::default()).await?;
    ensure_eq!(G2, "jobs on a page of a hundred", first.items.len(), 100);
    ensure_eq!(G2, "next", first.next, Some(ids[99]));
    let rest = stage.store.jobs(&JobFilter { after: first.next, ..JobFilter::default() }).await?;
    let listed: Vec<_> = rest.items.iter().map(|job| job.id).collect();
    ensure_eq!(G2, "the second page", listed, ids[100..]);
    ensure_eq!(G2, "next of the last page", rest.next, None);
    for id in &ids {
        stage.store.discard(*id, Json::null()).await?;
    }
    let newest = HistoryFilter { direction: Direction::NewestFirst, ..HistoryFilter::default() };
    let first = stage.store.history(&newest).await?;
    ensure_eq!(G3, "finished jobs on a page of a hundred", first.items.len(), 100);
    ensure_eq!(G3, "next", first.next, Some(ids[50]));
    let rest = stage.store.history(&HistoryFilter { after: first.next, ..newest }).await?;
    let mut listed: Vec<_> = rest.items.iter().map(|job| job.id).collect();
    listed.reverse();
    ensure_eq!(G3, "the second page", listed, ids[..50]);
    Ok(())
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
                        pages_of_jobs(&stage, filter, limit).await?
                    }
                    true => {
                        let filter =
                            HistoryFilter { queues: queues.clone(), direction, ..HistoryFilter::default() };
                        pages_of_history(&stage, filter, limit).await?
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

async fn pages_of_jobs(stage: &Stage, mut filter: JobFilter, limit: u32) -> Outcome<Vec<JobId>> {
    filter.limit = BatchSize::new(limit)?;
    let mut seen = Vec::new();
    for _ in 0..100 {
        let page = stage.store.jobs(&filter).await?;
        let items: Vec<_> = page.items.iter().map(|job| job.id).collect();
        expect_page(G2, &items, page.next, filter.limit)?;
        seen.extend(items);
        filter.after = page.next;
        if page.next.is_none() {
            return Ok(seen);
        }
    }
    Err(Problem::Broken(G2, format!("no end after a hundred pages of {filter:?}: {seen:?}")))
}

async fn pages_of_history(stage: &Stage, mut filter: HistoryFilter, limit: u32) -> Outcome<Vec<JobId>> {
    filter.limit = BatchSize::new(limit)?;
    let mut seen = Vec::new();
    for _ in 0..100 {
        let page = stage.store.history(&filter).await?;
        let items: Vec<_> = page.items.iter().map(|job| job.id).collect();
        expect_page(G3, &items, page.next, filter.limit)?;
        seen.extend(items);
        filter.after = page.next;
        if page.next.is_none() {
            return Ok(seen);
        }
    }
    Err(Problem::Broken(G3, format!("no end after a hundred pages of {filter:?}: {seen:?}")))
}

async fn a_rare_job_is_found_among_many(stage: Stage) -> Outcome {
    let rare = || leasehold_core::NewJob::builder("rare", "rare").unique_key("rare");
    let first = stage.enqueue(rare()).await?;
    let many = stage.enqueue_many("q", 3000).await?;
    let last = stage.enqueue(leasehold_core::NewJob::builder("q", "rare").delay(HOUR)).await?;
    let kind = Some(leasehold_core::Kind::new("rare")?);
    let any = JobFilter::default;
    let states = vec![leasehold_core::JobState::Scheduled];
    let filters = [
        (JobFilter { kind: kind.clone(), ..any() }, vec![first, last]),
        (JobFilter { states, ..any() }, vec![last]),
        (JobFilter { unique_key: Some("rare".parse()?), ..any() }, vec![first]),
        (JobFilter { queues: Queues::named(["rare", "none"])?, ..any() }, vec![first]),
    ];
    for (filter, wanted) in filters {
        for direction in BOTH {
            let filter = JobFilter { direction, ..filter.clone() };
            let mut seen = pages_of_jobs(&stage, filter.clone(), 1).await?;
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
    let status = |status| vec![status];
    let filters = [
        (HistoryFilter { kind, ..any() }, vec![first, last]),
        (HistoryFilter { statuses: status(leasehold_core::FinalStatus::Discarded), ..any() }, vec![last]),
        (HistoryFilter { statuses: status(leasehold_core::FinalStatus::DeadLetter), ..any() }, vec![first]),
        (HistoryFilter { queues: "rare".parse()?, ..any() }, vec![first]),
    ];
    for (filter, wanted) in filters {
        for direction in BOTH {
            let filter = HistoryFilter { direction, ..filter.clone() };
            let mut seen = pages_of_history(&stage, filter.clone(), 1).await?;
            seen.sort_unstable();
            ensure_eq!(G3, format!("found among {} finished jobs by {filter:?}", many.len()), seen, wanted);
        }
    }
    Ok(())
}
