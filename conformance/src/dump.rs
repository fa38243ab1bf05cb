//! Everything that a store holds, for comparing before and after.

use leasehold_core::{BatchSize, FinishedJob, HistoryFilter, Job, JobFilter, Policies, Store};

use crate::failure::{Outcome, ensure};

/// Every live job, every finished job and every policy.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Dump {
    pub(crate) jobs: Vec<Job>,
    pub(crate) history: Vec<FinishedJob>,
    pub(crate) policies: Policies,
}

impl Dump {
    pub(crate) async fn of(store: &dyn Store) -> Outcome<Self> {
        Ok(Self {
            history: all_history(store, HistoryFilter::default()).await?,
            jobs: all_jobs(store, JobFilter::default()).await?,
            policies: store.policies().await?,
        })
    }

    /// What differs from `before`, in words; `None` if nothing does.
    pub(crate) fn difference(&self, before: &Self) -> Option<String> {
        if self == before {
            return None;
        }
        let mut changes = Vec::new();
        changes.extend(differing(&before.jobs, &self.jobs, |job| job.id.get()));
        changes.extend(differing(&before.history, &self.history, |job| job.id.get()));
        if before.policies != self.policies {
            changes.push(format!("policies were {:?}, are {:?}", before.policies, self.policies));
        }
        Some(changes.join("; "))
    }
}

/// Every job that matches, over all pages. Bounded: a store that pages for ever fails.
pub(crate) async fn all_jobs(store: &dyn Store, mut filter: JobFilter) -> Outcome<Vec<Job>> {
    filter.limit = BatchSize::MAX;
    let mut jobs = Vec::new();
    for _ in 0..1000 {
        let page = store.jobs(&filter).await?;
        jobs.extend(page.items);
        match page.next {
            Some(next) => filter.after = Some(next),
            None => return Ok(jobs),
        }
    }
    ensure!(G2, false, "the list has no end after 1000 pages and {} jobs", jobs.len());
    Ok(jobs)
}

/// Every finished job that matches, over all pages.
pub(crate) async fn all_history(store: &dyn Store, mut filter: HistoryFilter) -> Outcome<Vec<FinishedJob>> {
    filter.limit = BatchSize::MAX;
    let mut jobs = Vec::new();
    for _ in 0..1000 {
        let page = store.history(&filter).await?;
        jobs.extend(page.items);
        match page.next {
            Some(next) => filter.after = Some(next),
            None => return Ok(jobs),
        }
    }
    ensure!(G3, false, "the list has no end after 1000 pages and {} jobs", jobs.len());
    Ok(jobs)
}

fn differing<T: PartialEq + std::fmt::Debug>(
    before: &[T],
    after: &[T],
    id: impl Fn(&T) -> i64,
) -> Vec<String> {
    let find = |rows: &[T], wanted: i64| rows.iter().position(|row| id(row) == wanted);
    let lost = before.iter().filter(|row| find(after, id(row)).is_none()).map(|row| format!("gone: {row:?}"));
    let added = after.iter().filter(|row| find(before, id(row)).is_none()).map(|row| format!("new: {row:?}"));
    let changed = before.iter().filter_map(|row| {
        let now = &after[find(after, id(row))?];
        (now != row).then(|| format!("was {row:?}, is {now:?}"))
    });
    lost.chain(added).chain(changed).collect()
}
