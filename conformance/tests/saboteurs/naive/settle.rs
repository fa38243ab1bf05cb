//! Verdicts, and the end of jobs.

use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::backend::{self, Applied};
use leasehold_core::{
    Backoff, EffectivePolicy, Epoch, EventKind, Fate, FinalStatus, FinishedJob, Headers, Job, JobId, Json,
    Outcome, Receipt, Result, RetryAfter, SettleOutcome, StoreError, Verdict, time,
};

use super::{Naive, Own, State, Store, breathe, locks};
use crate::fault::Fault;

pub(super) async fn settle(store: &Naive, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
    if !store.has(Fault::VerdictLimitIgnored) {
        backend::check_settle(items, &store.capabilities())?;
    }
    if store.has(Fault::SettleWaitsForTransactions) {
        locks::wait_for_all(store, items).await;
    }
    if store.has(Fault::SettleChecksThenActs) {
        let good = store.atomically(|state, now| state.which_are_good(items, now)).await;
        breathe().await;
        return Ok(store.atomically(|state, now| state.settle_known(items, &good, now)).await);
    }
    if store.has(Fault::HistoryInASecondStep) || store.has(Fault::HistoryBeforeTheDelete) {
        return in_two_steps(store, items).await;
    }
    if store.has(Fault::SettleOnlyByTheLessee) {
        let step = |state: &mut State, own: &mut Own, now| match items {
            items if items.iter().all(|(receipt, _)| own.granted.contains(receipt)) => {
                state.settle(items, now)
            }
            items => Ok(items.iter().map(|_| SettleOutcome::LeaseLost).collect()),
        };
        return store.atomically_own(step).await;
    }
    store.atomically(|state, now| state.settle(items, now)).await
}

impl State {
    fn settle(&mut self, items: &[(Receipt, Verdict)], now: DateTime<Utc>) -> Result<Vec<SettleOutcome>> {
        if let Some(answer) = self.spoil_locked_batch(items) {
            return answer;
        }
        self.all_done =
            items.len() > 1 && items.iter().all(|(_, verdict)| matches!(verdict, Verdict::Done(_)));
        let good = self.which_are_good(items, now);
        let stale = good.iter().any(|good| !good);
        if self.has(Fault::StaleItemIsAnError) && stale {
            return Err(StoreError::conflict("a receipt is stale"));
        }
        if self.has(Fault::StaleItemSpoilsTheBatch) && stale {
            return Ok(items.iter().map(|_| SettleOutcome::LeaseLost).collect());
        }
        if self.has(Fault::ReceiptTwiceCountsTwice) {
            return Ok(self.settle_known(items, &good, now));
        }
        let stop = good.iter().position(|good| !good).filter(|_| self.has(Fault::StaleItemStopsTheBatch));
        let (items, rest) = items.split_at(stop.unwrap_or(items.len()));
        let mut outcomes: Vec<_> = items
            .iter()
            .map(|(receipt, verdict)| match self.is_dropped(*receipt) {
                true => self.lost(*receipt, verdict, now),
                false => self.settle_one(*receipt, verdict, now),
            })
            .collect();
        outcomes.extend(rest.iter().map(|_| SettleOutcome::LeaseLost));
        if self.has(Fault::OutcomesByJob) {
            let by_job: std::collections::BTreeMap<JobId, SettleOutcome> =
                items.iter().map(|(receipt, _)| receipt.job).zip(outcomes.clone()).collect();
            outcomes = items.iter().filter_map(|(receipt, _)| by_job.get(&receipt.job).cloned()).collect();
        }
        if self.has(Fault::NoWakeOnABatchOfEnds) && items.len() > 1 {
            self.woken.clear();
        }
        if self.has(Fault::OutcomesOutOfOrder) {
            outcomes.sort_by_key(SettleOutcome::is_lost);
        }
        Ok(outcomes)
    }

    pub(super) fn settle_one(
        &mut self,
        receipt: Receipt,
        verdict: &Verdict,
        now: DateTime<Utc>,
    ) -> SettleOutcome {
        match self.jobs.get(&receipt.job).filter(|job| self.is_good(receipt, job, now)).cloned() {
            Some(job) if self.rows.contains_key(&job.id) => self.locked(receipt, now),
            Some(job) => self.apply(receipt, job, verdict, now),
            None => self.lost(receipt, verdict, now),
        }
    }

    pub(super) fn is_good(&self, receipt: Receipt, job: &Job, now: DateTime<Utc>) -> bool {
        let holder = |receipt: Receipt| self.holders.get(&receipt);
        let epoch = job.epoch == receipt.epoch
            || self.has(Fault::AckByIdOnly)
            || self.all_done && self.has(Fault::StaleDoneCountsInABatch)
            || self.has(Fault::ReclaimedReceiptIsGood) && job.epoch == receipt.epoch.next()
            || self.has(Fault::AckByWorkerName)
                && holder(receipt)
                    .is_some_and(|holder| job.lease.as_ref().is_some_and(|lease| lease.worker == *holder));
        let leased = job.lease.is_some()
            || self.has(Fault::ReceiptGoodWithoutLease)
            || self.has(Fault::ReclaimedReceiptIsGood) && job.epoch == receipt.epoch.next();
        let live = job.lease.as_ref().is_none_or(|lease| lease.until > now);
        epoch && leased && (live || !self.has(Fault::LateVerdictRefused)) && !self.locked.contains(&job.id)
    }

    fn lost(&mut self, receipt: Receipt, verdict: &Verdict, now: DateTime<Utc>) -> SettleOutcome {
        let (touch, blame) =
            (self.has(Fault::StaleAckTouchesUpdatedAt), self.has(Fault::StaleRetryWritesError));
        if let Some(job) = self.jobs.get_mut(&receipt.job) {
            if touch {
                job.updated_at = now;
            }
            if let (true, Verdict::Retry { error, .. }) = (blame, verdict) {
                job.last_error = Some(error.clone());
            }
        }
        self.tell_lost(receipt, now);
        SettleOutcome::LeaseLost
    }

    /// Somebody showed a stale receipt, if there ever was such a job.
    pub(super) fn tell_lost(&mut self, receipt: Receipt, now: DateTime<Utc>) {
        let live = self.jobs.get(&receipt.job).map(|job| job.queue.clone());
        let finished = || self.history.iter().find(|job| job.id == receipt.job).map(|job| job.queue.clone());
        if let Some(queue) = live.or_else(finished) {
            self.tell(EventKind::LeaseLost, &queue, receipt.job, now);
        }
    }

    fn apply(&mut self, receipt: Receipt, job: Job, verdict: &Verdict, now: DateTime<Utc>) -> SettleOutcome {
        let policy = self.effective(&job.queue);
        if self.has(Fault::DeadLetterTooLate)
            && matches!(verdict, Verdict::Retry { .. })
            && job.attempts >= job.max_attempts.get()
        {
            let next = Job { lease: None, available_at: now, updated_at: now, ..job };
            self.put_back(next, EventKind::Retried, Fault::NoWakeOnRetry, now);
            return backend::settled_outcome(receipt, Fate::Retrying { available_at: now });
        }
        let verdict = self.spoil_verdict(&job, verdict.clone(), &policy);
        let random = State::random(job.id, now);
        match backend::apply_verdict(job.clone(), verdict, &policy, now, random) {
            Applied::Live(next, fate) => {
                let next = self.spoil_live(next, &job, fate, now);
                self.put_back(next, EventKind::Retried, Fault::NoWakeOnRetry, now);
                backend::settled_outcome(receipt, fate)
            }
            Applied::Finished(row, fate) => {
                self.finish(row, now);
                backend::settled_outcome(receipt, fate)
            }
        }
    }

    /// The job is in the queue again, and nobody has it.
    pub(super) fn put_back(&mut self, job: Job, kind: EventKind, forgetting: Fault, now: DateTime<Utc>) {
        self.tell(kind, &job.queue, job.id, now);
        self.wake(&job.queue, forgetting);
        self.jobs.insert(job.id, job);
    }

    /// The job is in the history, or gone if its queue's policy does not keep it.
    pub(super) fn finish(&mut self, row: FinishedJob, now: DateTime<Utc>) {
        let started = self.jobs.remove(&row.id).map(|job| job.updated_at);
        let status = row.outcome.status();
        let kind = match status {
            FinalStatus::DeadLetter => EventKind::DeadLettered,
            FinalStatus::Completed | FinalStatus::Discarded => EventKind::Settled,
        };
        self.tell(kind, &row.queue, row.id, now);
        self.wake(&row.queue, Fault::NoWakeOnTheEndOfALease);
        let keeps = match self.fault {
            Some(Fault::ArchiveIgnored) => true,
            Some(Fault::ArchiveOfTheEnqueue) => {
                let archive = self.archives.get(&row.id).copied().unwrap_or(leasehold_core::Archive::All);
                archive.keeps(status)
            }
            Some(Fault::ArchiveDropsDeadLetters) => {
                self.effective(&row.queue).archive == leasehold_core::Archive::All
            }
            Some(Fault::ArchiveKeepsDiscarded) if status == FinalStatus::Discarded => true,
            Some(Fault::DeadLetterLostAtLastAttempt) => {
                status != FinalStatus::DeadLetter || row.attempts < row.max_attempts.get()
            }
            _ => self.effective(&row.queue).archive.keeps(status),
        };
        if keeps {
            let row = self.spoil_history(row, started);
            if self.has(Fault::HistoryWrittenTwice) {
                self.history.push(row.clone());
            }
            self.history.push(row);
        }
    }

    fn spoil_verdict(&self, job: &Job, verdict: Verdict, policy: &EffectivePolicy) -> Verdict {
        let left = job.max_attempts.get() - job.attempts.min(job.max_attempts.get());
        match (self.fault, verdict) {
            (Some(Fault::ResultLost), Verdict::Done(_)) => Verdict::Done(Json::null()),
            (Some(Fault::RetryDelayIgnored), Verdict::Retry { error, .. }) => {
                Verdict::Retry { error, after: RetryAfter::Backoff }
            }
            (Some(Fault::DeadLetterTooEarly), Verdict::Retry { error, .. }) if left <= 1 => {
                Verdict::Dead { error }
            }
            (Some(Fault::DeadLetterWithoutError), Verdict::Retry { .. }) if left == 0 => {
                Verdict::Dead { error: backend::attempts_exhausted() }
            }
            (Some(Fault::SnoozeDelayIgnored), Verdict::Snooze { .. }) => Verdict::release(),
            (Some(Fault::DeadRetriesWhileAttemptsLeft), Verdict::Dead { error }) => {
                Verdict::Retry { error, after: RetryAfter::Backoff }
            }
            (Some(Fault::DiscardRecordedAsCompleted), Verdict::Discard { reason }) => Verdict::Done(reason),
            (Some(fault), Verdict::Retry { error, after: RetryAfter::Backoff }) => {
                spoil_backoff(fault, job, error, policy)
            }
            (_, verdict) => verdict,
        }
    }

    fn spoil_live(&self, mut next: Job, before: &Job, fate: Fate, now: DateTime<Utc>) -> Job {
        let retried = matches!(fate, Fate::Retrying { .. });
        match self.fault {
            Some(Fault::EpochResetOnRelease) if !retried => next.epoch = Epoch::ZERO,
            Some(Fault::RetryKeepsTheLease) if retried => next.lease = before.lease.clone(),
            Some(Fault::RetryForgetsTheError) if retried => next.last_error = before.last_error.clone(),
            Some(Fault::RetrySpendsTwice) if retried => next.attempts += 1,
            Some(Fault::RetryGivesTheAttemptBack) if retried => next.attempts -= 1,
            Some(Fault::RetryRaisesTheEpoch) if retried => next.epoch = next.epoch.next(),
            Some(Fault::RetryByTheHostsClock) if retried => {
                next.available_at =
                    time::later(time::whole_micros(Utc::now()), time::between(now, next.available_at));
            }
            Some(Fault::RetryLeavesUpdatedAt) => next.updated_at = before.updated_at,
            Some(Fault::SnoozeBurnsAnAttempt) if !retried => next.attempts = before.attempts,
            Some(Fault::SnoozeForgetsTheError) if !retried => next.last_error = None,
            Some(Fault::SnoozeForgetsTheFirstLease) if !retried => next.first_leased_at = None,
            _ => {}
        }
        next
    }

    fn spoil_history(&self, mut row: FinishedJob, leased_at: Option<DateTime<Utc>>) -> FinishedJob {
        match self.fault {
            Some(Fault::HistoryWithoutHeaders) => row.headers = Headers::new(),
            Some(Fault::HistoryWithoutPayload) => row.payload = Json::null(),
            Some(Fault::HistoryWithoutAttempts) => row.attempts = 0,
            Some(Fault::HistoryWithoutEpoch) => row.epoch = Epoch::ZERO,
            Some(Fault::HistoryWithoutKey) => row.unique_key = None,
            Some(Fault::HistoryWithoutPriority) => row.priority = 0,
            Some(Fault::HistoryWithoutHolder) => row.processed_by = None,
            Some(Fault::HistoryWithoutLastError) => row.last_error = None,
            Some(Fault::HistoryStartsAtTheLastLease) => row.started_at = leased_at,
            Some(Fault::HistoryCreatedAtTheEnd) => row.created_at = row.finished_at,
            Some(Fault::HistoryEndsByTheHostsClock) => row.finished_at = time::whole_micros(Utc::now()),
            Some(Fault::HistoryEndsAtTheLastLease) => row.finished_at = leased_at.unwrap_or(row.finished_at),
            _ => {}
        }
        row
    }

    fn which_are_good(&self, items: &[(Receipt, Verdict)], now: DateTime<Utc>) -> Vec<bool> {
        let good = |receipt: &Receipt| {
            self.jobs.get(&receipt.job).is_some_and(|job| self.is_good(*receipt, job, now))
        };
        items.iter().map(|(receipt, _)| good(receipt)).collect()
    }

    /// Applies what was found good before, whatever has become of it since.
    fn settle_known(
        &mut self,
        items: &[(Receipt, Verdict)],
        good: &[bool],
        now: DateTime<Utc>,
    ) -> Vec<SettleOutcome> {
        let mut outcomes = Vec::new();
        for ((receipt, verdict), good) in items.iter().zip(good) {
            let finished = self.history.iter().find(|row| row.id == receipt.job).cloned();
            let job = self.jobs.get(&receipt.job).cloned();
            let job = job.or_else(|| finished.map(|row| backend::redriven(row, now)));
            outcomes.push(match job.filter(|_| *good) {
                Some(job) => {
                    self.history.retain(|row| row.id != job.id);
                    self.apply(*receipt, job, verdict, now)
                }
                None => SettleOutcome::LeaseLost,
            });
        }
        outcomes
    }
}

fn spoil_backoff(fault: Fault, job: &Job, error: Json, policy: &EffectivePolicy) -> Verdict {
    let delay = match fault {
        Fault::BackoffUnbounded => policy.backoff.base().get() * 2_u32.pow(job.attempts.min(30)),
        Fault::BackoffIgnoresThePolicy => Backoff::default().delay(job.attempts, 0.5).get(),
        Fault::BackoffNeverGrows => policy.backoff.delay(1, 0.5).get(),
        Fault::BackoffCountsFromZero => policy.backoff.delay(job.attempts + 1, 0.5).get(),
        Fault::BackoffWithoutJitter => policy.backoff.delay(job.attempts, 0.5).get(),
        Fault::BackoffStopsGrowing => policy.backoff.delay(job.attempts.min(21), 0.5).get(),
        Fault::BackoffLost => Duration::ZERO,
        _ => return Verdict::Retry { error, after: RetryAfter::Backoff },
    };
    match Verdict::retry_after("", delay) {
        Ok(Verdict::Retry { after, .. }) => Verdict::Retry { error, after },
        _ => Verdict::Retry { error, after: RetryAfter::Backoff },
    }
}

/// The delete and the insert, with time for others in between.
async fn in_two_steps(store: &Naive, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
    let first = |state: &mut State, now| -> Result<_> {
        let (jobs, known) = (state.jobs.clone(), state.history.len());
        let outcomes = state.settle(items, now)?;
        let late = if state.has(Fault::HistoryInASecondStep) {
            state.history.split_off(known)
        } else {
            let gone: Vec<JobId> = state.history[known..].iter().map(|row| row.id).collect();
            state.jobs.extend(jobs.into_iter().filter(|(id, _)| gone.contains(id)));
            state.history[known..].to_vec()
        };
        Ok((outcomes, late))
    };
    let (outcomes, late) = store.atomically(first).await?;
    // Others have time to look in between, also on a machine on which all of this runs on one thread.
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    let second = |state: &mut State, _| {
        for row in late {
            state.jobs.remove(&row.id);
            state.history.retain(|other| other.id != row.id);
            state.history.push(row);
        }
    };
    store.atomically(second).await;
    Ok(outcomes)
}

/// The outcome that the reclaim of a job without attempts gives it.
pub(super) fn dead(error: Json) -> Outcome {
    Outcome::DeadLetter { error }
}
