//! Taking back what dead workers have left.

use chrono::{DateTime, TimeDelta, Utc};
use leasehold_core::{
    BatchSize, Epoch, EventKind, Job, JobId, JobState, OnExpiry, ReclaimFate, Reclaimed, Result, backend,
    time,
};

use super::{Naive, Own, State, breathe, settle};
use crate::fault::Fault;

pub(super) async fn reclaim(store: &Naive, limit: BatchSize) -> Result<Vec<Reclaimed>> {
    while store.has(Fault::ReclaimWaitsForTransactions)
        && store.atomically(|state, _| !state.rows.is_empty()).await
    {
        breathe().await;
    }
    if store.has(Fault::ReclaimSelectsThenUpdates) {
        let found = store.atomically_own(|state, own, now| state.reclaimable(limit, own, now)).await;
        breathe().await;
        return Ok(store.atomically(|state, now| state.reclaim_all(found, now)).await);
    }
    let step = |state: &mut State, own: &mut Own, now| {
        let found = state.reclaimable(limit, own, now);
        state.reclaim_all(found, now)
    };
    Ok(store.atomically_own(step).await)
}

impl State {
    fn reclaimable(&self, limit: BatchSize, own: &mut Own, now: DateTime<Utc>) -> Vec<JobId> {
        let limit = if self.has(Fault::ReclaimIgnoresLimit) { usize::MAX } else { limit.as_usize() };
        let page = if self.has(Fault::ReclaimStarvedByLiveLeases) { limit } else { usize::MAX };
        let seen = own.reclaimed_to.filter(|_| self.has(Fault::ReclaimSkipsAPage));
        let leased = self.jobs.values().filter(|job| Some(job.id) > seen);
        let leased = leased.filter(|job| job.lease.is_some() || job.state(now) == JobState::Exhausted);
        let locked = |id| self.rows.contains_key(id) && !self.has(Fault::ReclaimTakesLockedJobs);
        let takeable =
            leased.take(page).filter(|job| self.is_reclaimable(job, now)).filter(|job| !locked(&job.id));
        let found: Vec<JobId> = takeable.map(|job| job.id).take(limit).collect();
        if found.len() == limit {
            own.reclaimed_to = found.last().map(|last| JobId::new(last.get() + limit as i64));
        }
        found
    }

    fn is_reclaimable(&self, job: &Job, now: DateTime<Utc>) -> bool {
        match job.state(now) {
            JobState::Expired => true,
            JobState::Exhausted => !self.has(Fault::ReclaimIgnoresExhausted),
            JobState::Running => {
                let soon = job.lease.as_ref().is_some_and(|lease| lease.until < now + TimeDelta::minutes(10));
                self.has(Fault::ReclaimBeforeTheTime) && soon
            }
            JobState::Scheduled | JobState::Retrying | JobState::Ready => false,
        }
    }

    fn reclaim_all(&mut self, found: Vec<JobId>, now: DateTime<Utc>) -> Vec<Reclaimed> {
        let mut answer: Vec<_> = found.into_iter().filter_map(|id| self.reclaim_one(id, now)).collect();
        if self.has(Fault::ReclaimAnswersOnlyTheRequeued) {
            answer.retain(|reclaimed| reclaimed.fate != ReclaimFate::DeadLettered);
        }
        answer
    }

    fn reclaim_one(&mut self, id: JobId, now: DateTime<Utc>) -> Option<Reclaimed> {
        let mut job = self.jobs.get(&id)?.clone();
        let last = job.attempts >= job.max_attempts.get();
        if job.lease.is_some() && !self.has(Fault::ReclaimKeepsTheEpoch) {
            job.epoch = job.epoch.next();
        }
        if last && !(self.has(Fault::CrashedLastAttemptRequeued) && job.lease.is_some()) {
            let reclaimed = Reclaimed::new(&job, ReclaimFate::DeadLettered);
            self.bury(job, now);
            return Some(reclaimed);
        }
        let available_at = self.available_again(&job, now);
        let next = Job {
            lease: None,
            available_at,
            last_error: Some(backend::lease_expired()),
            updated_at: now,
            ..job.clone()
        };
        let reclaimed = Reclaimed::new(&job, ReclaimFate::Requeued { available_at });
        let next = self.spoil_reclaimed(next, job);
        self.put_back(next, EventKind::Reclaimed, Fault::NoWakeOnReclaim, now);
        Some(reclaimed)
    }

    /// The job has no attempts left.
    fn bury(&mut self, mut job: Job, now: DateTime<Utc>) {
        let error = match (&job.lease, &job.last_error) {
            (Some(_), _) if self.has(Fault::CrashedDeadLetterKeepsOldError) => job.last_error.clone(),
            (Some(_), _) => Some(backend::lease_expired()),
            (None, Some(_)) if self.has(Fault::ExhaustedForgetsItsError) => None,
            (None, error) => error.clone(),
        };
        if self.has(Fault::CrashedDeadLetterWithoutHolder) {
            job.lease = None;
        }
        if self.has(Fault::DeadLetterLostByCrash) {
            self.jobs.remove(&job.id);
            return;
        }
        let error = error.unwrap_or_else(backend::attempts_exhausted);
        self.finish(backend::finished(job, settle::dead(error), now), now);
    }

    fn available_again(&self, job: &Job, now: DateTime<Utc>) -> DateTime<Utc> {
        let policy = self.effective(&job.queue);
        let waits = match self.fault {
            Some(Fault::OnExpiryIgnored) => false,
            Some(Fault::ReclaimAlwaysBacksOff) => true,
            _ => policy.on_expiry == OnExpiry::Backoff,
        };
        let delay = policy.backoff.delay(job.attempts, State::random(job.id, now));
        if waits { time::later(now, delay.get()) } else { now }
    }

    fn spoil_reclaimed(&self, mut next: Job, before: Job) -> Job {
        match self.fault {
            Some(Fault::ReclaimResetsAttempts) => next.attempts = 0,
            Some(Fault::ReclaimSpendsAnAttempt) => next.attempts += 1,
            Some(Fault::ReclaimGivesTheAttemptBack) => next.attempts -= 1,
            Some(Fault::ReclaimKeepsTheOldError) => next.last_error = before.last_error,
            Some(Fault::ReclaimResetsTheEpoch) => next.epoch = Epoch::ZERO,
            Some(Fault::ReclaimKeepsItsPlace) => next.available_at = before.available_at,
            _ => {}
        }
        next
    }
}
