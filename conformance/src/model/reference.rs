//! The contract as a function: what a store must hold after a step, given what it held before.
//!
//! It works on dumps. What the contract leaves open (which of several expired leases a reclaim takes first, how a prefix
//! takes turns, the jitter of a backoff) is taken from the store's own answer, after checking that it is allowed.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::{
    Backoff, Enqueued, FinalStatus, FinishedJob, HeartbeatOutcome, Job, JobId, JobState, Lease, LeaseFor,
    NewJob, OnExpiry, Outcome as End, QueueName, QueueOrder, Queues, Receipt, ReclaimFate, Reclaimed,
    Redrive, Redriven, SettleOutcome, Verdict, WorkerId, backend, time,
};

use leasehold_core::backend::Applied;

use crate::dump::Dump;
use crate::failure::{Outcome, ensure, ensure_eq};

/// What the store should hold, and when the step began and ended by its clock.
pub(crate) struct Reference {
    pub(crate) dump: Dump,
    pub(crate) began: DateTime<Utc>,
    pub(crate) ended: DateTime<Utc>,
}

impl Reference {
    fn position(&self, id: JobId) -> Option<usize> {
        self.dump.jobs.iter().position(|job| job.id == id)
    }

    fn live(&self, id: JobId) -> Option<&Job> {
        self.dump.jobs.iter().find(|job| job.id == id)
    }

    fn finish(&mut self, row: FinishedJob) {
        self.dump.jobs.retain(|job| job.id != row.id);
        if self.dump.policies.effective(&row.queue).archive.keeps(row.outcome.status()) {
            self.dump.history.push(row);
            self.dump.history.sort_by_key(|job| job.id);
        }
    }

    fn replace(&mut self, job: Job) {
        if let Some(position) = self.position(job.id) {
            self.dump.jobs[position] = job;
        }
    }

    pub(crate) fn enqueue(&mut self, jobs: &[NewJob], answers: &[Enqueued]) -> Outcome {
        ensure_eq!(E2, "number of answers", answers.len(), jobs.len());
        for (new, answer) in jobs.iter().zip(answers) {
            let known = self.dump.jobs.iter().find(|job| job.queue == *new.queue() && same_key(job, new));
            if let Some(known) = known {
                let expected = Enqueued { id: known.id, deduplicated: true };
                ensure_eq!(E3, "answer to a duplicate", *answer, expected);
                continue;
            }
            ensure!(E3, !answer.deduplicated, "no live job has the key of {new:?}, the answer is {answer:?}");
            let last = self
                .dump
                .jobs
                .iter()
                .map(|job| job.id)
                .chain(self.dump.history.iter().map(|job| job.id))
                .max();
            ensure!(
                E10,
                last.is_none_or(|last| last < answer.id),
                "the id {} is not above {last:?}",
                answer.id
            );
            let policy = self.dump.policies.effective(new.queue());
            self.dump.jobs.push(backend::accepted(answer.id, new, &policy, self.ended));
        }
        Ok(())
    }

    pub(crate) fn dequeue(
        &mut self,
        queues: &Queues,
        limit: usize,
        hours: LeaseFor,
        answer: &[Job],
    ) -> Outcome {
        ensure!(D5, answer.len() <= limit, "asked for {limit}, got {} jobs", answer.len());
        let leasable = self.leasable(queues);
        let total: usize = leasable.values().map(|jobs| jobs.len()).sum();
        let is_all = !answer.is_empty() || total == 0 || self.became_ready(queues);
        ensure!(D13, is_all, "nothing was leased of {leasable:?}");
        let claimed: Vec<_> = answer.iter().map(|job| job.id).collect();
        match queues {
            // Which order the call has seen cannot be told.
            _ if self.became_ready(queues) => {
                let is_ready = |job: &Job| job.state(self.ended) == JobState::Ready;
                let right = claimed.iter().all(|id| self.live(*id).is_some_and(is_ready));
                ensure!(D1, right, "leased {claimed:?}, of which some are not Ready");
            }
            Queues::Named(_) => {
                let mut order: Vec<_> = leasable.into_values().flatten().collect();
                order.sort();
                let order: Vec<_> = order.into_iter().map(|key| key.2).collect();
                ensure!(D6, order.starts_with(&claimed), "leased {claimed:?}, the order is {order:?}");
            }
            Queues::Matching(_) => self.fair_turns(&leasable, answer)?,
        }
        for (id, epoch) in answer.iter().map(|job| (job.id, job.epoch)) {
            let Some(job) = self.live(id).cloned() else { continue };
            ensure!(D4, epoch > job.epoch, "job {id} was leased in epoch {epoch}, after {}", job.epoch);
            let length = self.dump.policies.effective(&job.queue).lease_for(hours);
            let lease = Lease { until: time::later(self.ended, length.get()), worker: worker()? };
            self.replace(Job {
                attempts: job.attempts + 1,
                epoch,
                lease: Some(lease),
                first_leased_at: Some(job.first_leased_at.unwrap_or(self.ended)),
                updated_at: self.ended,
                ..job
            });
        }
        for job in answer {
            ensure_eq!(
                D12,
                format!("job {} in the answer", job.id),
                self.live(job.id).map(|j| j.attempts),
                Some(job.attempts)
            );
        }
        Ok(())
    }

    /// Whether a job of these queues became Ready while the step was under way, as a retry does in real time on a slow machine.
    fn became_ready(&self, queues: &Queues) -> bool {
        let meanwhile = |job: &Job| self.began < job.available_at && job.available_at <= self.ended;
        self.dump.jobs.iter().any(|job| queues.contains(&job.queue) && job.lease.is_none() && meanwhile(job))
    }

    /// The jobs that may be leased of each queue, in its order.
    fn leasable(&self, queues: &Queues) -> BTreeMap<QueueName, Vec<OrderKey>> {
        let mut leasable: BTreeMap<QueueName, Vec<OrderKey>> = BTreeMap::new();
        for job in self.dump.jobs.iter().filter(|job| queues.contains(&job.queue)) {
            let policy = self.dump.policies.effective(&job.queue);
            let others = || self.dump.jobs.iter().filter(|other| other.queue == job.queue);
            let leased = others().filter(|other| other.lease.is_some()).count();
            let full = policy.concurrency_limit.is_some_and(|limit| leased >= limit.get() as usize);
            let first = others().map(|other| other.id).min() == Some(job.id);
            let waits = policy.order == QueueOrder::Fifo && (leased > 0 || !first);
            if job.state(self.ended) == JobState::Ready && !policy.paused && !full && !waits {
                leasable.entry(job.queue.clone()).or_default().push(order_key(job));
            }
        }
        for (queue, jobs) in &mut leasable {
            jobs.sort();
            let leased =
                self.dump.jobs.iter().filter(|job| job.queue == *queue && job.lease.is_some()).count();
            if let Some(limit) = self.dump.policies.effective(queue).concurrency_limit {
                jobs.truncate((limit.get() as usize).saturating_sub(leased));
            }
        }
        leasable
    }

    fn fair_turns(&self, leasable: &BTreeMap<QueueName, Vec<OrderKey>>, answer: &[Job]) -> Outcome {
        let mut counts: BTreeMap<&QueueName, usize> = leasable.keys().map(|queue| (queue, 0)).collect();
        for job in answer {
            let taken = counts.entry(&job.queue).or_default();
            let expected = leasable.get(&job.queue).and_then(|jobs| jobs.get(*taken)).map(|key| key.2);
            ensure!(
                D11,
                expected == Some(job.id),
                "{} gave job {}, its order is {leasable:?}",
                job.queue,
                job.id
            );
            *taken += 1;
        }
        let most = counts.values().copied().max().unwrap_or_default();
        for (queue, count) in &counts {
            let left = leasable.get(*queue).map_or(0, Vec::len) - count;
            ensure!(
                D11,
                left == 0 || count + 1 >= most,
                "{queue} got {count} and has {left} left, another got {most}: {counts:?}"
            );
        }
        Ok(())
    }

    pub(crate) fn settle(
        &mut self,
        items: &[(Receipt, Verdict)],
        answer: &[SettleOutcome],
        after: &Dump,
    ) -> Outcome {
        ensure_eq!(S1, "number of outcomes", answer.len(), items.len());
        for ((receipt, verdict), outcome) in items.iter().zip(answer) {
            let Some(job) = self.good(*receipt) else {
                ensure!(
                    S2,
                    outcome.is_lost(),
                    "{verdict:?} with the stale receipt {receipt} was answered {outcome:?}"
                );
                continue;
            };
            ensure!(
                S1,
                matches!(outcome, SettleOutcome::Settled(_)),
                "{verdict:?} with the good receipt {receipt} was answered {outcome:?}"
            );
            let policy = self.dump.policies.effective(&job.queue);
            let by_backoff =
                matches!(verdict, Verdict::Retry { after: leasehold_core::RetryAfter::Backoff, .. });
            let attempts = job.attempts;
            match backend::apply_verdict(job, verdict.clone(), &policy, self.ended, 0.5) {
                Applied::Finished(row, _) => self.finish(row),
                Applied::Live(mut job, _) => {
                    if by_backoff {
                        job.available_at = self.jittered(job.id, &policy.backoff, attempts, after)?;
                    }
                    self.replace(job);
                }
            }
        }
        Ok(())
    }

    /// The job of a good receipt.
    pub(crate) fn good(&self, receipt: Receipt) -> Option<Job> {
        self.live(receipt.job).filter(|job| job.epoch == receipt.epoch && job.lease.is_some()).cloned()
    }

    /// When the store made the job available, if its backoff allows that.
    fn jittered(&self, id: JobId, backoff: &Backoff, attempts: u32, after: &Dump) -> Outcome<DateTime<Utc>> {
        let seen = after.jobs.iter().find(|job| job.id == id).map(|job| job.available_at);
        let (shortest, longest) = backoff.bounds(attempts);
        let allowed = time::later(self.began, shortest.get())..=time::later(self.ended, longest.get());
        match seen {
            Some(seen) if allowed.contains(&seen) => Ok(seen),
            _ => {
                ensure!(
                    S5,
                    false,
                    "job {id} is available at {seen:?} after {attempts} attempts, expected {allowed:?}"
                );
                Ok(self.ended)
            }
        }
    }

    pub(crate) fn heartbeat(
        &mut self,
        receipts: &[Receipt],
        hours: LeaseFor,
        answer: &[HeartbeatOutcome],
        after: &Dump,
    ) -> Outcome {
        ensure_eq!(H5, "number of answers", answer.len(), receipts.len());
        for (receipt, outcome) in receipts.iter().zip(answer) {
            let held = self.good(*receipt).filter(|job| job.state(self.ended) == JobState::Running);
            let Some(job) = held else {
                ensure!(
                    H4,
                    *outcome == HeartbeatOutcome::Lost,
                    "the lease {receipt} has passed or is stale: {outcome:?}"
                );
                continue;
            };
            let HeartbeatOutcome::Extended { until, .. } = *outcome else {
                ensure!(H1, false, "the live lease {receipt} was answered {outcome:?}");
                return Ok(());
            };
            let length = self.dump.policies.effective(&job.queue).lease_for(hours);
            let Some(lease) = job.lease.clone() else { continue };
            let expected = lease.until.max(time::later(self.ended, length.get()));
            ensure!(H1, close(until, expected, self.slack()), "extended until {until}, expected {expected}");
            // Whether a heartbeat that changes nothing counts as a change is left open.
            let untouched = expected == lease.until && after.jobs.contains(&job);
            if !untouched {
                let lease = Lease { until: expected, ..lease };
                self.replace(Job { lease: Some(lease), updated_at: self.ended, ..job });
            }
        }
        Ok(())
    }

    pub(crate) fn reclaim(&mut self, limit: usize, answer: &[Reclaimed], after: &Dump) -> Outcome {
        let now = self.ended;
        let takable = |job: &&Job| matches!(job.state(now), JobState::Expired | JobState::Exhausted);
        let there = self.dump.jobs.iter().filter(takable).count();
        ensure!(
            R5,
            answer.len() == there.min(limit),
            "{there} jobs to reclaim, asked for {limit}, got {answer:?}"
        );
        for reclaimed in answer {
            let job = self.live(reclaimed.id).filter(takable).cloned();
            let Some(job) = job else {
                ensure!(R1, false, "reclaimed job {}, which is neither Expired nor Exhausted", reclaimed.id);
                return Ok(());
            };
            self.take_back(job, reclaimed, after)?;
        }
        Ok(())
    }

    fn take_back(&mut self, job: Job, reclaimed: &Reclaimed, after: &Dump) -> Outcome {
        let policy = self.dump.policies.effective(&job.queue);
        let (id, attempts) = (job.id, job.attempts);
        let (applied, expected) = backend::apply_reclaim(job, &policy, self.ended, 0.5);
        let same = matches!(reclaimed.fate, ReclaimFate::Requeued { .. })
            == matches!(expected.fate, ReclaimFate::Requeued { .. });
        ensure!(R3, same, "job {id} was reclaimed as {:?}, expected {:?}", reclaimed.fate, expected.fate);
        match applied {
            Applied::Finished(row, _) => self.finish(row),
            Applied::Live(mut job, _) => {
                if policy.on_expiry == OnExpiry::Backoff {
                    job.available_at = self.jittered(id, &policy.backoff, attempts, after)?;
                }
                self.replace(job);
            }
        }
        Ok(())
    }

    /// Whether the job was there to be sent back.
    pub(crate) fn retry_later(&mut self, id: JobId, delay: Duration) -> bool {
        let Some(job) = self.live(id).cloned() else { return false };
        let epoch = if job.lease.is_some() { job.epoch.next() } else { job.epoch };
        let available_at = time::later(self.ended, delay);
        self.replace(Job { epoch, lease: None, available_at, updated_at: self.ended, ..job });
        true
    }

    pub(crate) fn discard(&mut self, id: JobId, reason: leasehold_core::Json) -> bool {
        let Some(mut job) = self.live(id).cloned() else { return false };
        if job.lease.is_some() {
            job.epoch = job.epoch.next();
        }
        let row = backend::finished(job, End::Discarded { reason }, self.ended);
        self.finish(row);
        true
    }

    pub(crate) fn promote(&mut self, id: JobId) -> bool {
        let Some(job) = self.live(id).cloned() else { return false };
        if matches!(job.state(self.ended), JobState::Scheduled | JobState::Retrying) {
            self.replace(Job { available_at: self.ended, updated_at: self.ended, ..job });
        }
        true
    }

    pub(crate) fn redrive(&mut self, request: &Redrive, answer: &Redriven) -> Outcome {
        let mut expected = Redriven::default();
        let dead: Vec<_> = self.dump.history.iter().filter(|job| request.matches(job)).cloned().collect();
        for row in dead {
            if expected.jobs.len() == request.limit.as_usize() {
                break;
            }
            let taken = |job: &Job| {
                job.queue == row.queue && job.unique_key.is_some() && job.unique_key == row.unique_key
            };
            if self.dump.jobs.iter().any(taken) {
                expected.conflicts.push(row.id);
                continue;
            }
            expected.jobs.push(row.id);
            self.dump.history.retain(|job| job.id != row.id);
            self.dump.jobs.push(backend::redriven(row, self.ended));
            self.dump.jobs.sort_by_key(|job| job.id);
        }
        ensure_eq!(X1, "redriven", answer.jobs, expected.jobs);
        let named = answer.conflicts.iter().all(|id| expected.conflicts.contains(id));
        ensure!(X4, named, "conflicts: {:?}, expected of {:?}", answer.conflicts, expected.conflicts);
        Ok(())
    }

    pub(crate) fn prune(&mut self, request: &leasehold_core::Prune, answer: u64, after: &Dump) -> Outcome {
        let matches = |job: &FinishedJob| {
            let retention = self.dump.policies.effective(&job.queue).retention;
            request.matches(job, retention, self.ended)
        };
        let there = self.dump.history.iter().filter(|job| matches(job)).count();
        ensure_eq!(U2, "pruned", answer, there.min(request.limit.as_usize()) as u64);
        let gone = |job: &FinishedJob| !after.history.iter().any(|other| other.id == job.id);
        let wrong: Vec<_> =
            self.dump.history.iter().filter(|job| gone(job) && !matches(job)).map(|job| job.id).collect();
        ensure!(U1, wrong.is_empty(), "pruned what was not asked for: {wrong:?}");
        let removed = self.dump.history.iter().filter(|job| gone(job)).count() as u64;
        ensure_eq!(U2, "history rows gone", removed, answer);
        self.dump.history.retain(|job| after.history.iter().any(|other| other.id == job.id));
        Ok(())
    }

    /// Compares with what the store holds. Untouched rows must be equal to the letter; times of touched ones may lie
    /// anywhere between the beginning and the end of the step.
    pub(crate) fn compare(&self, before: &Dump, after: &Dump) -> Outcome {
        let (expected, seen) = (&self.dump, after);
        ensure!(
            C3,
            ids(&expected.jobs) == ids(&seen.jobs),
            "live jobs: {:?}, expected {:?}",
            ids(&seen.jobs),
            ids(&expected.jobs)
        );
        let (rows, wanted) = (history_ids(&seen.history), history_ids(&expected.history));
        ensure!(C3, rows == wanted, "finished jobs: {rows:?}, expected {wanted:?}");
        for (expected, seen) in expected.jobs.iter().zip(&seen.jobs) {
            let same =
                if before.jobs.contains(expected) { expected == seen } else { self.same_job(expected, seen) };
            ensure!(C3, same, "live job: {seen:?}, expected {expected:?}");
        }
        for (expected, seen) in expected.history.iter().zip(&seen.history) {
            let same = if before.history.contains(expected) {
                expected == seen
            } else {
                self.same_row(expected, seen)
            };
            ensure!(C3, same, "finished job: {seen:?}, expected {expected:?}");
        }
        ensure_eq!(C3, "policies", seen.policies, expected.policies);
        Ok(())
    }

    fn slack(&self) -> Duration {
        time::between(self.began, self.ended)
    }

    fn same_job(&self, expected: &Job, seen: &Job) -> bool {
        let near = |a, b| close(a, b, self.slack());
        let lease = match (&expected.lease, &seen.lease) {
            (Some(a), Some(b)) => near(a.until, b.until) && a.worker == b.worker,
            (None, None) => true,
            _ => false,
        };
        let first = match (expected.first_leased_at, seen.first_leased_at) {
            (Some(a), Some(b)) => near(a, b),
            (None, None) => true,
            _ => false,
        };
        let timeless = Job {
            available_at: seen.available_at,
            lease: seen.lease.clone(),
            first_leased_at: seen.first_leased_at,
            created_at: seen.created_at,
            updated_at: seen.updated_at,
            ..expected.clone()
        };
        lease
            && first
            && timeless == *seen
            && near(expected.available_at, seen.available_at)
            && near(expected.created_at, seen.created_at)
            && near(expected.updated_at, seen.updated_at)
    }

    fn same_row(&self, expected: &FinishedJob, seen: &FinishedJob) -> bool {
        let timeless = FinishedJob { finished_at: seen.finished_at, ..expected.clone() };
        timeless == *seen && close(expected.finished_at, seen.finished_at, self.slack())
    }
}

/// By priority, then by availability, then by id.
type OrderKey = (std::cmp::Reverse<i32>, DateTime<Utc>, JobId);

fn order_key(job: &Job) -> OrderKey {
    (std::cmp::Reverse(job.priority), job.available_at, job.id)
}

fn same_key(job: &Job, new: &NewJob) -> bool {
    job.unique_key.is_some() && job.unique_key.as_ref() == new.unique_key()
}

fn close(a: DateTime<Utc>, b: DateTime<Utc>, slack: Duration) -> bool {
    time::between(a, b) <= slack && time::between(b, a) <= slack
}

fn ids(jobs: &[Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

fn history_ids(jobs: &[FinishedJob]) -> Vec<(JobId, FinalStatus)> {
    jobs.iter().map(|job| (job.id, job.outcome.status())).collect()
}

fn worker() -> Outcome<WorkerId> {
    Ok(WorkerId::new("model")?)
}
