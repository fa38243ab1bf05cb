//! Lists page by page, while the store changes between the pages.

use std::time::Duration;

use leasehold_core::contract::{Clause, G2, G3};
use leasehold_core::{
    BatchSize, Direction, HistoryFilter, JobFilter, JobId, JobState, Json, Kind, NewJob, Prune, Redrive,
    Verdict,
};

use super::scene::dead_letter;
use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, new_job};

checks! { "page":
    pages_of_jobs_hold_each_job_once [G2];
    pages_of_the_history_hold_each_job_once [G3];
    pages_have_only_what_matches [G2, G3];
    a_long_list_comes_page_by_page [G2, G3];
}

pub(super) const BOTH: [Direction; 2] = [Direction::OldestFirst, Direction::NewestFirst];

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
        let (stays, goes) = mixed(&stage).await?;
        let mut jobs = stage.claim("q", 99).await?;
        jobs.reverse();
        for job in jobs {
            stage.settle(job.receipt(), Verdict::dead("no")).await?;
            stage.age(Duration::from_secs(1)).await?;
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
            stage.store.redrive(&Redrive { ids: Some(vec![id]), ..Redrive::all(BatchSize::MAX) }).await?;
        ensure_eq!(X1, "redriven", redriven.jobs, [id]);
    } else {
        let all = Prune::older_than(Duration::ZERO, BatchSize::MAX)?;
        ensure_eq!(U1, "pruned", stage.store.prune(&Prune { ids: Some(vec![id]), ..all }).await?, 1);
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

/// Nothing came or went between the pages: they have these jobs and no other.
fn expect_all(clause: Clause, seen: &[JobId], all: &[JobId], direction: Direction) -> Outcome {
    if seen.len() == all.len() {
        return expect_each_once(clause, seen, all, direction);
    }
    Err(Problem::Broken(clause, format!("the pages {direction:?} have {seen:?}, expected {all:?}")))
}

/// Pages of what matches here and there, among much that does not.
async fn pages_have_only_what_matches(stage: Stage) -> Outcome {
    let (mut live, mut finished) = (Vec::new(), Vec::new());
    for turn in 0..24 {
        let kind = if turn % 2 == 0 { "x" } else { "y" };
        let delay = if turn % 3 == 0 { HOUR } else { Duration::ZERO };
        let id = stage.enqueue(NewJob::builder("q", kind).delay(delay)).await?;
        live.extend((turn % 6 == 0).then_some(id));
        let done = stage.enqueue(NewJob::builder("done", kind)).await?;
        stage.store.discard(done, Json::null()).await?;
        finished.extend((turn % 2 == 0).then_some(done));
    }
    let (kind, limit) = (Some(Kind::new("x")?), BatchSize::new(2)?);
    for direction in BOTH {
        let states = Some(vec![JobState::Scheduled]);
        let filter = JobFilter { kind: kind.clone(), states, direction, limit, ..JobFilter::default() };
        expect_all(G2, &walk_jobs(&stage, filter).await?, &live, direction)?;
        let filter = HistoryFilter { kind: kind.clone(), direction, limit, ..HistoryFilter::default() };
        expect_all(G3, &walk_history(&stage, filter).await?, &finished, direction)?;
    }
    Ok(())
}

async fn a_long_list_comes_page_by_page(stage: Stage) -> Outcome {
    let ids = stage.enqueue_many("q", 250).await?;
    for direction in BOTH {
        let filter = JobFilter { direction, ..JobFilter::default() };
        expect_all(G2, &walk_jobs(&stage, filter).await?, &ids, direction)?;
    }
    for id in &ids {
        stage.store.discard(*id, Json::null()).await?;
    }
    for direction in BOTH {
        let filter = HistoryFilter { direction, ..HistoryFilter::default() };
        expect_all(G3, &walk_history(&stage, filter).await?, &ids, direction)?;
    }
    Ok(())
}

pub(super) async fn walk_jobs(stage: &Stage, mut filter: JobFilter) -> Outcome<Vec<JobId>> {
    let mut seen = Vec::new();
    for _ in 0..300 {
        let page = stage.store.jobs(&filter).await?;
        let items: Vec<_> = page.items.iter().map(|job| job.id).collect();
        expect_page(G2, &items, page.next, filter.limit)?;
        seen.extend(items);
        filter.after = page.next;
        if page.next.is_none() {
            return Ok(seen);
        }
    }
    Err(Problem::Broken(G2, format!("the list has no end: {seen:?}")))
}

pub(super) async fn walk_history(stage: &Stage, mut filter: HistoryFilter) -> Outcome<Vec<JobId>> {
    let mut seen = Vec::new();
    for _ in 0..300 {
        let page = stage.store.history(&filter).await?;
        let items: Vec<_> = page.items.iter().map(|job| job.id).collect();
        expect_page(G3, &items, page.next, filter.limit)?;
        seen.extend(items);
        filter.after = page.next;
        if page.next.is_none() {
            return Ok(seen);
        }
    }
    Err(Problem::Broken(G3, format!("the list has no end: {seen:?}")))
}
