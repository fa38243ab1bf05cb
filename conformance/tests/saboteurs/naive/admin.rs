//! An administrator's verbs: intervene, redrive, prune.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::{
    Capabilities, Delay, Epoch, EventKind, FinalStatus, FinishedJob, Intervention, Job, JobId, JobState,
    Outcome, Prune, PruneAge, Redrive, Redriven, Result, StoreError, backend, time,
};

use super::{Naive, State, breathe};
use crate::fault::Fault;

/// By so much a store is early that forgets keys too early.
const HOUR: Duration = Duration::from_secs(3600);

pub(super) async fn intervene(store: &Naive, id: JobId, intervention: &Intervention) -> Result<()> {
    if let Intervention::Discard { reason } = intervention {
        backend::check_document("reason", reason, &Capabilities::full())?;
    }
    loop {
        let act = |state: &mut State, now| match state.rows.contains_key(&id) {
            true => None, // It waits for the transaction that has the job locked.
            false => Some(state.intervene(id, intervention, now)),
        };
        match store.atomically(act).await {
            Some(answer) => return answer,
            None => breathe().await,
        }
    }
}

pub(super) async fn redrive(store: &Naive, request: &Redrive) -> Result<Redriven> {
    backend::check_ids(request.ids.as_deref())?;
    Ok(store.atomically(|state, now| state.redrive(request, now)).await)
}

pub(super) async fn prune(store: &Naive, request: &Prune) -> Result<u64> {
    backend::check_ids(request.ids.as_deref())?;
    Ok(store.atomically(|state, now| state.prune(request, now)).await)
}

impl State {
    fn intervene(&mut self, id: JobId, intervention: &Intervention, now: DateTime<Utc>) -> Result<()> {
        let Some(job) = self.jobs.get(&id).cloned() else { return self.not_live(id) };
        match intervention {
            Intervention::RetryLater(schedule) => {
                let next = Job { available_at: schedule.available_at(now), updated_at: now, ..job.clone() };
                let next = self.spoil_sent_back(self.taken_away(next), &job);
                self.put_back(next, EventKind::Retried, Fault::NoWakeOnRetryLater, now);
            }
            Intervention::Discard { reason } => {
                let outcome = Outcome::Discarded { reason: reason.clone() };
                let epoch = self.taken_away(job.clone()).epoch;
                let kept = job.clone();
                self.finish(backend::finished(Job { epoch, ..job }, outcome, now), now);
                if self.has(Fault::AdminDiscardLeavesTheRow) {
                    self.jobs.insert(id, kept);
                }
                if self.has(Fault::AdminDiscardLeavesNoHistory) {
                    self.history.retain(|row| row.id != id);
                }
            }
            Intervention::Promote => self.promote(job, now),
        }
        Ok(())
    }

    fn promote(&mut self, job: Job, now: DateTime<Utc>) {
        let waits = matches!(job.state(now), JobState::Scheduled | JobState::Retrying);
        let wrongly = match self.fault {
            Some(Fault::PromoteTakesLeased) => job.lease.is_some(),
            Some(Fault::PromoteMovesReadyJobs) => job.lease.is_none(),
            _ => false,
        };
        if waits || wrongly {
            let next = Job { available_at: now, lease: None, updated_at: now, ..job };
            self.put_back(next, EventKind::Retried, Fault::NoWakeOnPromote, now);
        }
    }

    /// The job without its lease, in a new epoch if it had one.
    fn taken_away(&self, job: Job) -> Job {
        match job.lease {
            Some(_) if !self.has(Fault::InterventionKeepsTheEpoch) => {
                Job { lease: None, epoch: job.epoch.next(), ..job }
            }
            _ => Job { lease: None, ..job },
        }
    }

    fn spoil_sent_back(&self, mut next: Job, before: &Job) -> Job {
        match self.fault {
            Some(Fault::RetryLaterLeavesTheHolder) => {
                next = Job { lease: before.lease.clone(), epoch: before.epoch, ..next };
            }
            Some(Fault::RetryLaterGivesTheAttemptBack) => next.attempts = next.attempts.saturating_sub(1),
            Some(Fault::RetryLaterForgetsTheError) => next.last_error = None,
            Some(Fault::RetryLaterIgnoresTheTime) => next.available_at = before.available_at,
            _ => {}
        }
        next
    }

    fn not_live(&self, id: JobId) -> Result<()> {
        let finished = self.history.iter().any(|row| row.id == id);
        match (self.fault, finished) {
            (Some(Fault::UnknownJobIsOk), false) | (Some(Fault::FinishedJobIsOk), true) => Ok(()),
            (Some(Fault::FinishedJobIsNotFound), true) => Err(StoreError::NotFound(id)),
            (_, true) => Err(StoreError::conflict(format!("job {id} is finished"))),
            (_, false) => Err(StoreError::NotFound(id)),
        }
    }

    fn redrive(&mut self, request: &Redrive, now: DateTime<Utc>) -> Redriven {
        let mut dead: Vec<FinishedJob> =
            self.history.iter().filter(|row| self.is_redriven(request, row)).cloned().collect();
        dead.sort_by_key(|row| row.id);
        if self.has(Fault::RedriveNewestFirst) {
            dead.reverse();
        }
        let limit = if self.has(Fault::RedriveIgnoresLimit) { usize::MAX } else { request.limit.as_usize() };
        let mut answer = Redriven::default();
        for row in dead {
            let counted = if self.has(Fault::ConflictsCountForTheLimit) { answer.conflicts.len() } else { 0 };
            if answer.jobs.len() + counted >= limit {
                break;
            }
            if self.jobs.contains_key(&row.id) {
                continue; // A live job has its id.
            }
            let key = row.unique_key.as_ref().filter(|_| !self.has(Fault::RedriveIgnoresKeys));
            if key.is_some_and(|key| self.holder_of(&row.queue, key).is_some()) {
                answer.conflicts.push(row.id);
                if self.has(Fault::ConflictStopsTheRedrive) {
                    break;
                }
                continue;
            }
            answer.jobs.push(self.revive(row, now));
        }
        answer.conflicts.truncate(limit);
        answer
    }

    fn is_redriven(&self, request: &Redrive, row: &FinishedJob) -> bool {
        match self.fault {
            Some(Fault::RedriveTakesCompleted) => {
                request.queues.contains(&row.queue) && row.outcome.status() != FinalStatus::Discarded
            }
            Some(Fault::RedriveIgnoresQueues) => {
                Redrive { queues: leasehold_core::Queues::all(), ..request.clone() }.matches(row)
            }
            Some(Fault::RedriveIgnoresIds) => Redrive { ids: None, ..request.clone() }.matches(row),
            Some(Fault::RedriveIgnoresKind) => Redrive { kind: None, ..request.clone() }.matches(row),
            _ => request.matches(row),
        }
    }

    fn revive(&mut self, row: FinishedJob, now: DateTime<Utc>) -> JobId {
        if !self.has(Fault::RedriveLeavesTheHistoryRow) {
            self.history.retain(|other| other.id != row.id);
        }
        let spent = row.attempts;
        let mut job = backend::redriven(row, now);
        match self.fault {
            Some(Fault::RedriveResetsTheEpoch) => job.epoch = Epoch::ZERO,
            Some(Fault::RedriveKeepsAttempts) => job.attempts = spent,
            Some(Fault::RedriveForgetsTheError) => job.last_error = None,
            Some(Fault::RedriveForgetsTheFirstLease) => job.first_leased_at = None,
            Some(Fault::RedriveForgetsHeaders) => job.headers = leasehold_core::Headers::new(),
            Some(Fault::RedriveIsCreatedAnew) => job.created_at = now,
            Some(Fault::RedriveKeepsTheOldTime) => job.available_at = job.created_at,
            Some(Fault::RedriveGivesANewId) => {
                self.last_id += 1;
                job.id = JobId::new(self.last_id);
            }
            _ => {}
        }
        let id = job.id;
        self.put_back(job, EventKind::Redriven, Fault::NoWakeOnRedrive, now);
        id
    }

    fn prune(&mut self, request: &Prune, now: DateTime<Utc>) -> u64 {
        let limit = if self.has(Fault::PruneIgnoresLimit) { usize::MAX } else { request.limit.as_usize() };
        let first =
            if self.has(Fault::KeysPrunedBeforeJobs) { self.forget_keys(request, limit, now) } else { 0 };
        let limit = limit - first;
        let matching = self.history.iter().filter(|row| self.is_pruned(request, row, now));
        let gone: Vec<JobId> = matching.map(|row| row.id).take(limit).collect();
        self.history.retain(|row| !gone.contains(&row.id));
        if self.has(Fault::PruneTakesLiveJobs) {
            self.jobs.retain(|_, job| job.lease.is_some() || job.attempts == 0);
        }
        let left = match self.fault {
            Some(Fault::KeysPrunedBeforeJobs) => 0,
            Some(Fault::PruneLimitIgnoresKeys) => usize::MAX,
            Some(Fault::KeysHaveALimitOfTheirOwn) => request.limit.as_usize(),
            _ => limit - gone.len(),
        };
        let keys = self.forget_keys(request, left, now);
        let keys = if self.has(Fault::PrunedKeysNotCounted) { 0 } else { first + keys };
        if self.has(Fault::PruneCountsWrong) {
            request.limit.get().into()
        } else {
            (gone.len() + keys) as u64
        }
    }

    /// Forgets up to `limit` keys whose retention has passed; says how many.
    fn forget_keys(&mut self, request: &Prune, limit: usize, now: DateTime<Utc>) -> usize {
        let is_asked = match self.fault {
            Some(Fault::KeysNeverPruned) => false,
            Some(Fault::RestrictedPruneTakesKeys) => true,
            Some(Fault::NamedStatusesTakeKeys) => Prune { statuses: None, ..request.clone() }.forgets_keys(),
            Some(Fault::RetentionTakesNoKeys) => request.forgets_keys() && request.age != PruneAge::Retention,
            _ => request.forgets_keys(),
        };
        let is_passed = |until: DateTime<Utc>| match (self.fault, request.age) {
            (Some(Fault::KeysPrunedTooEarly), _) => until <= time::later(now, HOUR),
            (Some(Fault::KeysPrunedByTheAgeOfJobs), PruneAge::OlderThan(age)) => {
                time::later(until, age.get()) <= now
            }
            _ => until <= now,
        };
        let passed = self.once.iter().filter(|(_, until)| is_asked && is_passed(**until));
        let passed: Vec<_> = passed.map(|(key, _)| key.clone()).take(limit).collect();
        self.once.retain(|key, _| !passed.contains(key));
        passed.len()
    }

    fn is_pruned(&self, request: &Prune, row: &FinishedJob, now: DateTime<Utc>) -> bool {
        let retention = self.effective(&row.queue).retention;
        let shortest = || self.policies.iter().filter_map(|(_, policy)| policy.retention).min();
        let mut request = request.clone();
        match self.fault {
            Some(Fault::PruneIgnoresAge) if matches!(request.age, PruneAge::OlderThan(_)) => {
                request.age = PruneAge::OlderThan(Delay::ZERO);
            }
            Some(Fault::PruneIgnoresStatuses) => request.statuses = None,
            Some(Fault::PruneIgnoresQueues) => request.queues = leasehold_core::Queues::all(),
            Some(Fault::PruneIgnoresIds) => request.ids = None,
            Some(Fault::RetentionOfAnotherQueue) => return request.matches(row, shortest(), now),
            Some(Fault::RetentionDefaultsToNothing) => {
                return request.matches(row, retention.or(Some(Delay::ZERO)), now);
            }
            Some(Fault::PruneByTheHostsClock) => {
                return request.matches(row, retention, time::whole_micros(Utc::now()));
            }
            Some(Fault::PruneCountsAgeFromCreation) => {
                let row = FinishedJob { finished_at: row.created_at, ..row.clone() };
                return request.matches(&row, retention, now);
            }
            _ => {}
        }
        request.matches(row, retention, now)
    }
}
