//! Looking at jobs.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::{
    BatchSize, Direction, FinishedJob, HistoryFilter, Job, JobFilter, JobId, Page, QueueName, QueueUsage,
    Queues, Record, time,
};

use super::State;
use crate::fault::Fault;

impl State {
    pub(super) fn record(&self, id: JobId) -> Option<Record> {
        let finished = self.history.iter().find(|row| row.id == id && !self.has(Fault::GetMissesHistory));
        let live = self.jobs.get(&id).cloned().map(Record::Live);
        live.or_else(|| finished.cloned().map(Record::Finished))
    }

    pub(super) fn list_jobs(&self, filter: &JobFilter, now: DateTime<Utc>) -> Page<Job> {
        let mut filter = filter.clone();
        match self.fault {
            Some(Fault::JobsIgnoreKind) => filter.kind = None,
            Some(Fault::JobsIgnoreKey) => filter.unique_key = None,
            Some(Fault::JobsIgnoreWorker) => filter.worker = None,
            Some(Fault::NoStatesAreAllStates) => {
                filter.states = filter.states.filter(|states| !states.is_empty());
            }
            Some(Fault::JobsIgnoreDirection) => filter.direction = Direction::OldestFirst,
            Some(Fault::JobsPagesOverlap) => {
                filter.after = filter.after.map(|after| JobId::new(after.get() - 1));
            }
            _ => {}
        }
        let now = self.or_hosts(now, Fault::StatesByTheHostsClock);
        let beyond = |queue: &QueueName| match &filter.queues {
            Queues::Matching(prefix) if self.has(Fault::PrefixEndsAtTheTilde) => {
                queue.as_str()[prefix.as_str().len()..].starts_with('~')
            }
            _ => false,
        };
        let matches = |job: &&Job| filter.matches(job, now) && !beyond(&job.queue);
        let matching = self.jobs.values().filter(matches).cloned().collect();
        self.page(matching, |job| job.id, filter.direction, filter.limit, Fault::JobsPagesSkip)
    }

    pub(super) fn list_history(&self, filter: &HistoryFilter) -> Page<FinishedJob> {
        let mut filter = filter.clone();
        match self.fault {
            Some(Fault::HistoryIgnoresStatuses) => filter.statuses = None,
            Some(Fault::HistoryIgnoresQueues) => filter.queues = leasehold_core::Queues::all(),
            Some(Fault::HistoryIgnoresTimes) => filter.finished_from = None,
            Some(Fault::HistoryTimesIncludeTheEnd) => {
                let microsecond = std::time::Duration::from_micros(1);
                filter.finished_before = filter.finished_before.map(|end| time::later(end, microsecond));
            }
            _ => {}
        }
        let mut matching: Vec<_> = self.history.iter().filter(|row| filter.matches(row)).cloned().collect();
        if !self.has(Fault::HistoryListedByEnd) {
            matching.sort_by_key(|row| row.id);
        }
        self.page(matching, |row| row.id, filter.direction, filter.limit, Fault::HistoryPagesSkip)
    }

    fn page<T>(
        &self,
        mut items: Vec<T>,
        id: impl Fn(&T) -> JobId,
        direction: Direction,
        limit: BatchSize,
        skipping: Fault,
    ) -> Page<T> {
        if direction == Direction::NewestFirst {
            items.reverse();
        }
        let more = items.len() > limit.as_usize();
        let skipped = items.get(limit.as_usize()).map(&id).filter(|_| self.has(skipping));
        items.truncate(limit.as_usize());
        let last = items.last().map(&id);
        Page { items, next: skipped.or(last).filter(|_| more) }
    }

    pub(super) fn usage(&self, queue: &QueueName, now: DateTime<Utc>) -> QueueUsage {
        let leased = self.jobs.values().filter(|job| job.queue == *queue && job.lease.is_some()).count();
        let full_at = self.buckets.get(queue).copied();
        let rate = self.rate(&self.effective(queue)).filter(|_| !self.has(Fault::UsageForgetsTokens));
        let next = rate.map(|rate| rate.next_token_at(full_at, now)).filter(|next| *next > now);
        let next = match (self.fault, rate, full_at) {
            (Some(Fault::UsageGoesByAnOldClock), Some(rate), Some(full_at)) if next.is_some() => {
                let others = f64::from(rate.burst() - 1) / rate.per_sec();
                Some(time::earlier(full_at, Duration::from_secs_f64(others)))
            }
            _ => next,
        };
        QueueUsage { leased: leased as u64, next_token_at: next }
    }
}
