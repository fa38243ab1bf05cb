//! Leasing jobs.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::{
    Dequeue, EffectivePolicy, Epoch, EventKind, Job, JobId, JobState, Lease, LeaseFor, QueueName, QueueOrder,
    Queues, RateLimit, Receipt, Result, WorkerId, time,
};

use super::{Naive, Own, State, breathe, lock};
use crate::fault::Fault;

pub(super) async fn dequeue(store: &Naive, request: &Dequeue) -> Result<Vec<Job>> {
    let is_list = matches!(&request.queues, Queues::Named(names) if names.len() > 1);
    if store.has(Fault::DequeueSelectThenUpdate) || is_list && store.has(Fault::ListClaimsDoNotLookAgain) {
        return select_then_update(store, request).await;
    }
    if store.has(Fault::ConcurrencyCountedThenLeased) {
        store.atomically_own(|state, own, _| own.granted = state.leased().collect()).await;
    }
    if store.has(Fault::PoliciesCachedByHandles) {
        return Ok(store
            .atomically_own(|state, own, now| by_cached_policies(state, own, request, now))
            .await);
    }
    if store.has(Fault::PrefixGoesByOldPolicies) {
        let step = |state: &mut State, own: &mut Own, now| {
            let jobs = match &request.queues {
                Queues::Matching(_) => by_cached_policies(state, own, request, now),
                Queues::Named(_) => state.dequeue(request, own, now),
            };
            own.policies = Some(state.policies.clone());
            jobs
        };
        return Ok(store.atomically_own(step).await);
    }
    if store.has(Fault::DequeueDeletesThenInserts) {
        return delete_then_insert(store, request).await;
    }
    if store.has(Fault::RacingCallsComeShort) {
        return choose_then_lease(store, request).await;
    }
    Ok(store.atomically_own(|state, own, now| state.dequeue(request, own, now)).await)
}

impl State {
    fn dequeue(&mut self, request: &Dequeue, own: &mut Own, now: DateTime<Utc>) -> Vec<Job> {
        let chosen = self.choose(request, own, now);
        let before: Vec<Job> = chosen.iter().filter_map(|id| self.jobs.get(id).cloned()).collect();
        let mut leased = self.lease_all(chosen, request, now);
        self.note_polls(request, own, &leased, now);
        own.granted.extend(leased.iter().map(Job::receipt));
        self.take_tokens(&leased, own, now);
        if self.has(Fault::AnswerShowsTheOldRow) {
            leased = before.into_iter().map(|job| Job { epoch: job.epoch.next(), ..job }).collect();
        }
        if self.has(Fault::AnswerSortedById) {
            leased.sort_by_key(|job| job.id);
        }
        leased
    }

    /// Remembers that a queue is empty, if the fault is to conclude that from many calls in vain.
    fn note_polls(&self, request: &Dequeue, own: &mut Own, leased: &[Job], now: DateTime<Utc>) {
        let Queues::Named(names) = &request.queues else { return };
        for name in names.iter() {
            let is_in_vain = match self.fault {
                Some(Fault::PolledWhilePausedIsEmpty) => self.effective(name).paused,
                Some(Fault::PolledInVainIsEmpty) => leased.is_empty() && !self.effective(name).paused,
                _ => return,
            };
            let polled = own.polled.entry(name.clone()).or_default();
            *polled = if is_in_vain { *polled + 1 } else { 0 };
            if *polled > 100 {
                own.empty_up_to.insert(name.clone(), now);
            }
        }
    }

    /// Which jobs to lease, in the order in which they are leased.
    fn choose(&self, request: &Dequeue, own: &mut Own, now: DateTime<Utc>) -> Vec<JobId> {
        let limit = request.limit.as_usize() + usize::from(self.has(Fault::LimitPlusOne));
        let limit = if self.has(Fault::CallsStopAtAThousand) { limit.min(1000) } else { limit };
        let queues = self.leasable(request, own, now);
        let mut chosen = match &request.queues {
            Queues::Matching(_) if !self.has(Fault::PrefixHasOneOrder) => self.in_turns(queues, own, limit),
            _ => self.in_one_order(queues),
        };
        chosen.truncate(limit);
        if self.has(Fault::SameJobTwice) && chosen.len() < limit {
            chosen.extend(chosen.last().copied());
        }
        chosen
    }

    /// The jobs that each queue would give out, in its order.
    fn leasable(&self, request: &Dequeue, own: &Own, now: DateTime<Utc>) -> BTreeMap<QueueName, Vec<&Job>> {
        let mut queues: BTreeMap<QueueName, Vec<&Job>> = BTreeMap::new();
        let mut asked: Vec<&Job> =
            self.jobs.values().filter(|job| self.asks_for(&request.queues, &job.queue)).collect();
        if self.has(Fault::WaitingJobsTakePlaces) {
            asked.sort_by_key(|job| self.rank(job));
            asked.retain(|job| job.lease.is_none());
            asked.truncate(request.limit.as_usize());
        }
        let stuck = |queue: &QueueName| self.effective(queue).order == QueueOrder::Fifo;
        if self.has(Fault::FifoHeadBlocksOtherQueues)
            && asked.iter().any(|job| stuck(&job.queue) && job.state(now) != JobState::Ready)
        {
            return queues;
        }
        for job in asked {
            queues.entry(job.queue.clone()).or_default().push(job);
        }
        for (queue, jobs) in &mut queues {
            *jobs = self.leasable_of(queue, jobs, own, now);
        }
        if self.has(Fault::LimitSharedByPrefix) && queues.len() > 1 {
            queues.values_mut().skip(1).for_each(Vec::clear);
        }
        queues
    }

    fn asks_for(&self, queues: &Queues, queue: &QueueName) -> bool {
        match (self.fault, queues) {
            (Some(Fault::NameServesLongerNames), Queues::Named(names)) => {
                names.iter().any(|name| queue.as_str().starts_with(name.as_str()))
            }
            (Some(Fault::QueueNamesIgnoreCase), Queues::Named(names)) => {
                names.iter().any(|name| queue.as_str().eq_ignore_ascii_case(name.as_str()))
            }
            (Some(Fault::PrefixIsALikePattern), Queues::Matching(prefix)) => {
                like(queue.as_str().as_bytes(), format!("{prefix}%").as_bytes())
            }
            _ => queues.contains(queue),
        }
    }

    fn leasable_of<'a>(
        &self,
        queue: &QueueName,
        jobs: &[&'a Job],
        own: &Own,
        now: DateTime<Utc>,
    ) -> Vec<&'a Job> {
        let policy = self.effective(queue);
        let strict = policy.order == QueueOrder::Fifo && !self.has(Fault::FifoServesByPriority);
        let passing = |job: &&&Job| {
            let passed = match self.fault {
                Some(Fault::FifoSecondPassesWaitingHead) => job.lease.is_none() && job.available_at > now,
                Some(Fault::FifoSecondPassesPassedLease) => job.state(now) == JobState::Expired,
                _ => false,
            };
            !(strict && passed)
        };
        let heads = 1 + usize::from(self.has(Fault::FifoAllowsTwo));
        let first = jobs.iter().filter(passing).take(if strict { heads } else { usize::MAX });
        let mut ready: Vec<&Job> = first.filter(|job| self.is_ready(job, now)).copied().collect();
        ready.retain(|job| own.empty_up_to.get(queue).is_none_or(|time| *time < job.available_at));
        ready.sort_by_key(|job| self.rank(job));
        ready.truncate(self.room(queue, &policy, jobs, own, now));
        ready
    }

    fn is_ready(&self, job: &Job, now: DateTime<Utc>) -> bool {
        match job.state(now) {
            JobState::Ready => true,
            JobState::Scheduled => self.has(Fault::ScheduledServedEarly),
            JobState::Retrying => self.has(Fault::RetryingServedEarly),
            JobState::Expired => self.has(Fault::ExpiredServedWithoutReclaim),
            JobState::Exhausted => self.has(Fault::ExhaustedServed),
            JobState::Running => false,
        }
    }

    /// How many more leases the policy of a queue allows.
    fn room(
        &self,
        queue: &QueueName,
        policy: &EffectivePolicy,
        jobs: &[&Job],
        own: &Own,
        now: DateTime<Utc>,
    ) -> usize {
        if policy.paused && !self.has(Fault::PausedServed) {
            return 0;
        }
        let fifo = policy.order == QueueOrder::Fifo;
        let counts = |job: &&&Job| match self.fault {
            Some(Fault::ConcurrencyForgetsPassedLeases) => job.state(now) == JobState::Running,
            Some(Fault::FifoForgetsPassedLeases | Fault::FifoSecondPassesPassedLease) if fifo => {
                job.state(now) == JobState::Running
            }
            Some(Fault::ConcurrencyPerHandle | Fault::ConcurrencyCountedThenLeased) => {
                job.lease.is_some() && own.granted.contains(&job.receipt())
            }
            _ => job.lease.is_some(),
        };
        let leases = jobs.iter().filter(counts).count();
        let limit = policy.concurrency_limit.map_or(usize::MAX, |limit| {
            limit.get() as usize + usize::from(self.has(Fault::ConcurrencyOffByOne))
        });
        let places = if fifo && !self.has(Fault::FifoAllowsTwo) { 1 } else { limit };
        places.saturating_sub(leases).min(self.tokens(queue, policy, own, now))
    }

    fn leased(&self) -> impl Iterator<Item = Receipt> {
        self.jobs.values().filter(|job| job.lease.is_some()).map(Job::receipt)
    }

    fn tokens(&self, queue: &QueueName, policy: &EffectivePolicy, own: &Own, now: DateTime<Utc>) -> usize {
        let Some(rate) = self.rate(policy) else { return usize::MAX };
        let buckets = if self.has(Fault::RatePerHandle) { &own.buckets } else { &self.buckets };
        let full_at = buckets.get(queue).copied();
        let tokens = rate.tokens(full_at, now) as usize;
        match (self.fault, full_at) {
            (Some(Fault::RateWithoutBurstCap), Some(full_at)) => {
                tokens + (time::between(full_at, now).as_secs_f64() * rate.per_sec()) as usize
            }
            (Some(Fault::RateIgnored), _) => usize::MAX,
            _ => tokens,
        }
    }

    pub(super) fn rate(&self, policy: &EffectivePolicy) -> Option<RateLimit> {
        let faster = |rate: RateLimit| RateLimit::new(2.0 * rate.per_sec(), rate.burst()).ok();
        if self.has(Fault::RateRefillsTooFast) { policy.rate.and_then(faster) } else { policy.rate }
    }

    /// Buckets that lie too far ahead are from before the clock was set back.
    fn correct_buckets(&mut self, now: DateTime<Utc>) {
        if self.has(Fault::BucketGoesByAnOldClock) {
            return;
        }
        let corrected = self.buckets.iter().filter_map(|(queue, full_at)| {
            let rate = self.rate(&self.effective(queue))?;
            Some((queue.clone(), rate.corrected(Some(*full_at), now)?))
        });
        let corrected: Vec<_> = corrected.collect();
        self.buckets.extend(corrected);
    }

    fn take_tokens(&mut self, leased: &[Job], own: &mut Own, now: DateTime<Utc>) {
        self.correct_buckets(now);
        for job in leased {
            let Some(rate) = self.rate(&self.effective(&job.queue)) else { continue };
            for buckets in [&mut self.buckets, &mut own.buckets] {
                let full_at = rate.take(buckets.get(&job.queue).copied(), now, 1);
                buckets.insert(job.queue.clone(), full_at);
            }
        }
    }

    fn rank(&self, job: &Job) -> (Reverse<i64>, DateTime<Utc>, i64) {
        let (priority, id) = (Reverse(i64::from(job.priority)), job.id.get());
        match self.fault {
            Some(Fault::PriorityAscending) => (Reverse(-priority.0), job.available_at, id),
            Some(Fault::OrderIgnoresAvailability) => (priority, job.created_at.min(DateTime::UNIX_EPOCH), id),
            Some(Fault::TiesBackwards) => (priority, job.available_at, -id),
            Some(Fault::OrderLostOnTies) => (priority, job.available_at, id.wrapping_mul(0x9E37) % 257),
            Some(Fault::AvailabilityBeforePriority) => (Reverse(0), job.available_at, id),
            _ => (priority, job.available_at, id),
        }
    }

    fn in_one_order(&self, queues: BTreeMap<QueueName, Vec<&Job>>) -> Vec<JobId> {
        let mut jobs: Vec<&Job> = queues.into_values().flatten().collect();
        if !self.has(Fault::QueueByQueue) {
            jobs.sort_by_key(|job| self.rank(job));
        }
        jobs.iter().map(|job| job.id).collect()
    }

    /// Round by round, the queue that was served longest ago first.
    fn in_turns(&self, queues: BTreeMap<QueueName, Vec<&Job>>, own: &mut Own, limit: usize) -> Vec<JobId> {
        let mut turns: Vec<_> = queues.into_iter().map(|(queue, jobs)| (queue, jobs.into_iter())).collect();
        if self.has(Fault::PrefixDrainsOneQueue) {
            return turns.into_iter().flat_map(|(_, jobs)| jobs).map(|job| job.id).collect();
        }
        if !self.has(Fault::TurnsRestartWithEachCall) {
            turns.sort_by_key(|(queue, _)| own.served.get(queue).copied().unwrap_or_default());
        }
        let mut chosen = Vec::new();
        let mut before = usize::MAX;
        while chosen.len() < limit && chosen.len() != before {
            before = chosen.len();
            for (queue, jobs) in &mut turns {
                let Some(job) = jobs.next().filter(|_| chosen.len() < limit) else { continue };
                chosen.push(job.id);
                own.turn += 1;
                own.served.insert(queue.clone(), own.turn);
            }
        }
        chosen
    }

    fn lease_all(&mut self, chosen: Vec<JobId>, request: &Dequeue, now: DateTime<Utc>) -> Vec<Job> {
        if self.has(Fault::DequeueTouchesOthers) && !chosen.is_empty() {
            self.jobs.values_mut().for_each(|job| job.updated_at = now);
        }
        chosen.into_iter().filter_map(|id| self.lease(id, request, now)).collect()
    }

    fn lease(&mut self, id: JobId, request: &Dequeue, now: DateTime<Utc>) -> Option<Job> {
        let mut job = self.jobs.remove(&id)?;
        let length = self.lease_length(&job.queue, request.lease_for, Fault::DequeueIgnoresMaxLease);
        let until = time::later(self.or_hosts(now, Fault::LeaseByTheHostsClock), length);
        job.lease = Some(Lease { until, worker: request.worker.clone() });
        job.attempts += 1;
        job.epoch = job.epoch.next().max(Epoch::new(self.first_epoch));
        job.first_leased_at = job.first_leased_at.or(Some(now));
        job.updated_at = now;
        self.spoil_leased(&mut job, now);
        self.tell(EventKind::Leased, &job.queue, job.id, now);
        self.holders.insert(job.receipt(), request.worker.clone());
        self.jobs.insert(id, job.clone());
        Some(job)
    }

    /// As long as asked for, but no longer than the queue's policy allows.
    pub(super) fn lease_length(&self, queue: &QueueName, asked: LeaseFor, ignoring: Fault) -> Duration {
        let policy = self.effective(queue);
        match self.fault {
            Some(Fault::LeaseForIgnored) => Duration::from_secs(60),
            Some(Fault::LeaseInWholeSeconds) => Duration::from_secs(asked.get().as_secs()),
            Some(fault) if fault == ignoring => asked.get(),
            _ => policy.lease_for(asked).get(),
        }
    }

    fn spoil_leased(&self, job: &mut Job, now: DateTime<Utc>) {
        match self.fault {
            Some(Fault::AttemptNotSpent) => job.attempts -= 1,
            Some(Fault::EpochNotRaised) => job.epoch = Epoch::new(job.epoch.get() - 1),
            Some(Fault::EpochIsTheAttempt) => job.epoch = Epoch::new(job.attempts.into()),
            Some(Fault::WorkerNotWritten) => {
                if let (Some(lease), Ok(nobody)) = (&mut job.lease, WorkerId::new("nobody")) {
                    lease.worker = nobody;
                }
            }
            Some(Fault::FirstLeaseOverwritten) => job.first_leased_at = Some(now),
            Some(Fault::FirstLeaseNotWritten) => job.first_leased_at = None,
            Some(Fault::DequeueForgetsTheError) => job.last_error = None,
            Some(Fault::DequeueMovesAvailability) => job.available_at = now,
            Some(Fault::DequeueLeavesUpdatedAt) => job.updated_at = job.created_at,
            _ => {}
        }
    }
}

async fn select_then_update(store: &Naive, request: &Dequeue) -> Result<Vec<Job>> {
    let chosen = store.atomically_own(|state, own, now| state.choose(request, own, now)).await;
    breathe().await;
    let update = |state: &mut State, own: &mut Own, now| {
        let leased = state.lease_all(chosen, request, now);
        state.take_tokens(&leased, own, now);
        leased
    };
    Ok(store.atomically_own(update).await)
}

async fn choose_then_lease(store: &Naive, request: &Dequeue) -> Result<Vec<Job>> {
    let chosen = store.atomically_own(|state, own, now| state.choose(request, own, now)).await;
    breathe().await;
    let update = |state: &mut State, own: &mut Own, now: DateTime<Utc>| {
        let still = state.leasable(request, own, now);
        let still: Vec<JobId> = still.into_values().flatten().map(|job| job.id).collect();
        let chosen = chosen.into_iter().filter(|id| still.contains(id)).collect();
        let leased = state.lease_all(chosen, request, now);
        own.granted.extend(leased.iter().map(Job::receipt));
        state.take_tokens(&leased, own, now);
        leased
    };
    Ok(store.atomically_own(update).await)
}

/// What the handle has kept of the policies is what it goes by.
fn by_cached_policies(state: &mut State, own: &mut Own, request: &Dequeue, now: DateTime<Utc>) -> Vec<Job> {
    let kept = own.policies.get_or_insert_with(|| state.policies.clone()).clone();
    let held = std::mem::replace(&mut state.policies, kept);
    let jobs = state.dequeue(request, own, now);
    state.policies = held;
    jobs
}

async fn delete_then_insert(store: &Naive, request: &Dequeue) -> Result<Vec<Job>> {
    let step = |state: &mut State, now| {
        let jobs = state.dequeue(request, &mut lock(&store.own), now);
        jobs.iter().for_each(|job| drop(state.jobs.remove(&job.id)));
        jobs
    };
    let jobs = store.atomically(step).await;
    let again = jobs.clone();
    store.atomically(|state, _| state.jobs.extend(again.into_iter().map(|job| (job.id, job)))).await;
    Ok(jobs)
}

/// SQL's `LIKE`.
fn like(text: &[u8], pattern: &[u8]) -> bool {
    match (text, pattern) {
        ([], []) => true,
        (_, [b'%', rest @ ..]) => (0..=text.len()).any(|skip| like(&text[skip..], rest)),
        ([_, text @ ..], [b'_', rest @ ..]) => like(text, rest),
        ([first, text @ ..], [wanted, rest @ ..]) => first == wanted && like(text, rest),
        _ => false,
    }
}
