//! Answers about jobs and queues. Nothing here changes anything.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use leasehold_core::{
    BatchSize, Direction, FinishedJob, HistoryFilter, Job, JobFilter, JobId, NextAvailable, Page, QueueName,
    QueueStats, QueueUsage, Queues, Receipt, ReceiptStatus, Record, time,
};

use crate::directory::Slot;
use crate::state::State;

/// The job with this id, wherever it is (G1).
pub(crate) fn get(state: &State, id: JobId) -> Option<Record> {
    let live = state.jobs.get(&id).map(|row| Record::Live(row.job.clone()));
    live.or_else(|| state.history.get(id).cloned().map(Record::Finished))
}

/// One page of live jobs (G2). The jobs of a single queue are found without looking at others.
pub(crate) fn jobs(state: &State, filter: &JobFilter) -> Page<Job> {
    let range = remaining(filter.direction, filter.after);
    let jobs: Box<dyn DoubleEndedIterator<Item = &Job>> = match &filter.queues {
        Queues::Named(names) if names.len() == 1 => {
            let live = state.queues.find(&names[0]).map(|slot| state.queues[slot].live.range(range));
            Box::new(live.into_iter().flatten().filter_map(|id| Some(&state.jobs.get(id)?.job)))
        }
        _ => Box::new(state.jobs.range(range).map(|(_, row)| &row.job)),
    };
    let matching = directed(jobs, filter.direction).filter(|job| filter.matches(job, state.now));
    page(matching, |job| job.id, filter.limit)
}

/// One page of finished jobs (G3).
pub(crate) fn history(state: &State, filter: &HistoryFilter) -> Page<FinishedJob> {
    let range = remaining(filter.direction, filter.after);
    let rows = state.history.rows().range(range).map(|(_, job)| job.as_ref());
    let matching = directed(Box::new(rows), filter.direction).filter(|job| filter.matches(job));
    page(matching, |job| job.id, filter.limit)
}

/// What each receipt is worth (G5).
pub(crate) fn receipts(state: &State, receipts: &[Receipt]) -> Vec<ReceiptStatus> {
    let status = |receipt: &Receipt| ReceiptStatus::of(*receipt, get(state, receipt.job).as_ref());
    receipts.iter().map(status).collect()
}

/// Jobs whose leases passed at least so long ago, by id (G4). Looks at no others.
pub(crate) fn stuck(state: &State, older_than: Duration, limit: BatchSize) -> Vec<Job> {
    let deadline = time::earlier(state.now, older_than);
    let passed = state.reclaimable.range(..=(deadline, JobId::new(i64::MAX)));
    let jobs = passed.filter_map(|(_, id)| Some(&state.jobs.get(id)?.job));
    let mut stuck: Vec<&Job> = jobs.filter(|job| job.lease.is_some()).collect();
    stuck.sort_unstable_by_key(|job| job.id);
    stuck.into_iter().take(limit.as_usize()).cloned().collect()
}

/// What the limits of one queue see.
pub(crate) fn usage(state: &State, queue: &QueueName) -> QueueUsage {
    let usage = state.queues.find(queue).map(|slot| {
        let queue = &state.queues[slot];
        QueueUsage { leased: queue.leases() as u64, next_token_at: queue.next_token_at(state.now) }
    });
    usage.unwrap_or_default()
}

/// Queues in numbers, all of which are kept as jobs change.
pub(crate) fn stats(state: &State, queues: &Queues) -> Vec<QueueStats> {
    let mut rows: BTreeMap<QueueName, QueueStats> = BTreeMap::new();
    if let Queues::Named(names) = queues {
        rows.extend(names.iter().map(|name| (name.clone(), QueueStats::empty(name.clone(), state.now)))); // Q3
    }
    let found = state.queues.among(queues).into_iter().map(|slot| &state.queues[slot]);
    rows.extend(
        found.filter(|queue| !queue.is_empty()).map(|queue| (queue.name.clone(), queue.stats(state.now))),
    );
    rows.into_values().collect()
}

/// The soonest time at which it is worth to look again (N1, N2).
pub(crate) fn next_available_at(state: &State, queues: &Queues) -> Option<NextAvailable> {
    let next = |slot: Slot| {
        let queue = &state.queues[slot];
        let first = queue.live.first().and_then(|id| state.jobs.get(id)).map(|row| &row.job);
        queue.next_available_at(first, state.now)
    };
    let soonest = state.queues.among(queues).into_iter().filter_map(next).min();
    soonest.map(|at| NextAvailable::new(at, state.now))
}

/// The ids that are still to be listed.
fn remaining(direction: Direction, after: Option<JobId>) -> (Bound<JobId>, Bound<JobId>) {
    let mark = after.map_or(Bound::Unbounded, Bound::Excluded);
    match direction {
        Direction::OldestFirst => (mark, Bound::Unbounded),
        Direction::NewestFirst => (Bound::Unbounded, mark),
    }
}

fn directed<'a, T>(
    items: Box<dyn DoubleEndedIterator<Item = &'a T> + 'a>,
    direction: Direction,
) -> Box<dyn Iterator<Item = &'a T> + 'a> {
    match direction {
        Direction::OldestFirst => items,
        Direction::NewestFirst => Box::new(items.rev()),
    }
}

/// The first `limit` items. One more is looked for, to know whether there is a next page.
fn page<'a, T: Clone + 'a>(
    matching: impl Iterator<Item = &'a T>,
    id: impl Fn(&T) -> JobId,
    limit: BatchSize,
) -> Page<T> {
    let mut found: Vec<&T> = matching.take(limit.as_usize() + 1).collect();
    let more = found.len() > limit.as_usize();
    found.truncate(limit.as_usize());
    let next = found.last().filter(|_| more).map(|last| id(last));
    Page { items: found.into_iter().cloned().collect(), next }
}
