//! The operations of a store that follow from the required ones.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::backend;
use crate::bounded::BatchSize;
use crate::error::{Result, StoreError};
use crate::inspect::{Explanation, NextAvailable, QueueStats, QueueUsage};
use crate::job::{FinalStatus, Job, JobId, Outcome, Receipt, Record};
use crate::name::QueueName;
use crate::policy::{EffectivePolicy, Policies, QueueOrder};
use crate::queues::{QueuePattern, Queues};
use crate::request::{HistoryFilter, JobFilter};
use crate::state::JobState;
use crate::store::Store;
use crate::time;
use crate::verdict::{ReceiptStatus, SettleOutcome, Settled, Verdict};

pub(crate) async fn settle_one<S: Store + ?Sized>(
    store: &S,
    operation: &'static str,
    receipt: &Receipt,
    verdict: Verdict,
) -> Result<Settled> {
    let outcomes = store.settle(&[(*receipt, verdict)]).await?;
    match outcomes.into_iter().next() {
        Some(SettleOutcome::Settled(settled)) => Ok(settled),
        Some(SettleOutcome::LeaseLost) => Err(StoreError::lease_lost(operation, *receipt)),
        Some(SettleOutcome::Pending) => Err(StoreError::row_locked(operation)),
        None => Err(StoreError::corrupt("settle gave no outcome for its item")),
    }
}

pub(crate) async fn release<S: Store + ?Sized>(
    store: &S,
    receipts: &[Receipt],
) -> Result<Vec<SettleOutcome>> {
    backend::check_batch("receipts", receipts.len())?;
    let items: Vec<_> = receipts.iter().map(|receipt| (*receipt, Verdict::release())).collect();
    store.settle(&items).await
}

pub(crate) async fn receipts<S: Store + ?Sized>(
    store: &S,
    receipts: &[Receipt],
) -> Result<Vec<ReceiptStatus>> {
    backend::check_batch("receipts", receipts.len())?;
    let mut statuses = Vec::with_capacity(receipts.len());
    for receipt in receipts {
        let record = store.get(receipt.job).await?;
        statuses.push(ReceiptStatus::of(*receipt, record.as_ref()));
    }
    Ok(statuses)
}

pub(crate) async fn stuck<S: Store + ?Sized>(
    store: &S,
    older_than: Duration,
    limit: BatchSize,
) -> Result<Vec<Job>> {
    let deadline = time::earlier(store.now().await?, older_than);
    let expired = JobFilter { states: Some(vec![JobState::Expired]), ..JobFilter::default() };
    let mut jobs = all_jobs(store, expired).await?;
    jobs.retain(|job| job.lease.as_ref().is_some_and(|lease| lease.until <= deadline));
    jobs.truncate(limit.as_usize());
    Ok(jobs)
}

pub(crate) async fn usage<S: Store + ?Sized>(store: &S, queue: &QueueName) -> Result<QueueUsage> {
    if store.capabilities().rate_limit {
        // Only the backend knows its tokens.
        return Err(StoreError::unsupported("usage without a word on its tokens"));
    }
    let leased = JobFilter {
        queues: queue.into(),
        states: Some(vec![JobState::Running, JobState::Expired]),
        ..JobFilter::default()
    };
    Ok(QueueUsage { leased: all_jobs(store, leased).await?.len() as u64, next_token_at: None })
}

pub(crate) async fn explain<S: Store + ?Sized>(store: &S, id: JobId) -> Result<Explanation> {
    let job = match store.get(id).await? {
        None => return Ok(Explanation::Unknown),
        Some(Record::Finished(job)) => {
            return Ok(match job.outcome {
                Outcome::DeadLetter { error } => Explanation::DeadLetter { at: job.finished_at, error },
                outcome => Explanation::Finished { status: outcome.status(), at: job.finished_at },
            });
        }
        Some(Record::Live(job)) => job,
    };
    let (policy, now) = (store.policy(&job.queue).await?, store.now().await?);
    match explain_alone(&job, &policy, now) {
        Some(explanation) => Ok(explanation),
        None => explain_among_others(store, &job, &policy, now).await,
    }
}

/// The reasons that the job itself and its queue's policy give.
pub(crate) fn explain_alone(job: &Job, policy: &EffectivePolicy, now: DateTime<Utc>) -> Option<Explanation> {
    let until = job.available_at;
    let state = job.state(now);
    Some(match (state, &job.lease) {
        (JobState::Expired, Some(lease)) => {
            Explanation::LeaseExpired { by: lease.worker.clone(), since: lease.until }
        }
        (_, Some(lease)) => Explanation::Leased { by: lease.worker.clone(), until: lease.until },
        (JobState::Exhausted, None) => Explanation::Exhausted,
        _ if policy.paused => Explanation::Paused,
        (JobState::Scheduled, None) => Explanation::Scheduled { until },
        (JobState::Retrying, None) => Explanation::Retrying { until, error: job.last_error.clone() },
        _ => return None,
    })
}

/// The reasons that the other jobs of the queue give.
async fn explain_among_others<S: Store + ?Sized>(
    store: &S,
    job: &Job,
    policy: &EffectivePolicy,
    now: DateTime<Utc>,
) -> Result<Explanation> {
    let others = JobFilter { queues: (&job.queue).into(), ..JobFilter::default() };
    let others = all_jobs(store, others).await?;
    if policy.order == QueueOrder::Fifo {
        let leased = others.iter().find(|other| other.lease.is_some());
        if let Some(first) = leased.or(others.first()).filter(|first| first.id != job.id) {
            return Ok(Explanation::WaitsBehind { job: first.id });
        }
    }
    let usage = store.usage(&job.queue).await?;
    if let Some(limit) = policy.concurrency_limit.filter(|limit| usage.leased >= u64::from(limit.get())) {
        return Ok(Explanation::ConcurrencyLimit { limit });
    }
    if let Some(until) = usage.next_token_at {
        return Ok(Explanation::RateLimit { until });
    }
    if policy.order == QueueOrder::Fifo {
        return Ok(Explanation::Next);
    }
    let ready = others.iter().filter(|other| other.state(now) == JobState::Ready);
    match ready.min_by_key(|other| (std::cmp::Reverse(other.priority), other.available_at, other.id)) {
        Some(first) if first.id != job.id => Ok(Explanation::WaitsBehind { job: first.id }),
        _ => Ok(Explanation::Next),
    }
}

pub(crate) async fn stats<S: Store + ?Sized>(store: &S, queues: &Queues) -> Result<Vec<QueueStats>> {
    let now = store.now().await?;
    let mut rows: BTreeMap<QueueName, QueueStats> = BTreeMap::new();
    if let Queues::Named(names) = queues {
        rows.extend(names.iter().map(|name| (name.clone(), QueueStats::empty(name.clone(), now))));
    }
    let live = JobFilter { queues: queues.clone(), ..JobFilter::default() };
    for job in all_jobs(store, live).await? {
        let row = rows.entry(job.queue.clone()).or_insert_with(|| QueueStats::empty(job.queue.clone(), now));
        count(row, &job, now);
    }
    let mut dead = HistoryFilter {
        queues: queues.clone(),
        statuses: Some(vec![FinalStatus::DeadLetter]),
        limit: BatchSize::MAX,
        ..HistoryFilter::default()
    };
    loop {
        let page = store.history(&dead).await?;
        for job in page.items {
            rows.entry(job.queue.clone())
                .or_insert_with(|| QueueStats::empty(job.queue, now))
                .dead_letters += 1;
        }
        match page.next {
            Some(next) => dead.after = Some(next),
            None => return Ok(rows.into_values().collect()),
        }
    }
}

fn count(row: &mut QueueStats, job: &Job, now: DateTime<Utc>) {
    let state = job.state(now);
    *row.states.entry(state).or_default() += 1;
    *row.attempts.entry(job.attempts).or_default() += 1;
    if state == JobState::Ready {
        row.oldest_ready_at =
            Some(row.oldest_ready_at.map_or(job.available_at, |oldest| oldest.min(job.available_at)));
    }
}

pub(crate) async fn next_available_at<S: Store + ?Sized>(
    store: &S,
    queues: &Queues,
) -> Result<Option<NextAvailable>> {
    let policies = store.policies().await?;
    let now = store.now().await?;
    let live = JobFilter { queues: queues.clone(), ..JobFilter::default() };
    let mut by_queue: BTreeMap<QueueName, Vec<Job>> = BTreeMap::new();
    for job in all_jobs(store, live).await? {
        by_queue.entry(job.queue.clone()).or_default().push(job);
    }
    let mut soonest = None;
    for (queue, jobs) in by_queue {
        let next = next_of_queue(store, &queue, &jobs, &policies, now).await?;
        soonest = soonest.into_iter().chain(next).min();
    }
    Ok(soonest.map(|at| NextAvailable::new(at, now)))
}

async fn next_of_queue<S: Store + ?Sized>(
    store: &S,
    queue: &QueueName,
    jobs: &[Job],
    policies: &Policies,
    now: DateTime<Utc>,
) -> Result<Option<DateTime<Utc>>> {
    let policy = policies.effective(queue);
    if policy.paused {
        return Ok(None);
    }
    let leases = jobs.iter().filter_map(|job| job.lease.as_ref()).map(|lease| lease.until);
    let exhausted = jobs.iter().filter(|job| job.state(now) == JobState::Exhausted).map(|_| now);
    let soonest = leases.clone().chain(exhausted).min();
    let fifo = policy.order == QueueOrder::Fifo;
    let places = if fifo { 1 } else { policy.concurrency_limit.map_or(u32::MAX, |limit| limit.get()) };
    if leases.count() >= places as usize {
        return Ok(soonest);
    }
    let waiting = jobs.iter().take(if fifo { 1 } else { usize::MAX });
    let waiting = waiting.filter(|job| job.lease.is_none() && job.state(now) != JobState::Exhausted);
    let Some(mut next) = waiting.map(|job| job.available_at).min() else {
        return Ok(soonest);
    };
    if policy.rate.is_some() {
        next = store.usage(queue).await?.next_token_at.map_or(next, |token| next.max(token));
    }
    Ok(soonest.into_iter().chain([next]).min())
}

pub(crate) async fn set_paused<S: Store + ?Sized>(
    store: &S,
    pattern: &QueuePattern,
    paused: bool,
) -> Result<()> {
    let mut policies = store.policies().await?;
    let mut policy = policies.set_for(pattern);
    policy.paused = None;
    policies.set(pattern.clone(), policy.clone());
    policy.paused = if paused { Some(true) } else { paused_by_wider(&policies, pattern).then_some(false) };
    store.set_policy(pattern, &policy).await
}

/// Whether a queue of this pattern would still be paused if the pattern itself said nothing about it.
fn paused_by_wider(policies: &Policies, pattern: &QueuePattern) -> bool {
    let covers = |wider: &QueuePattern| match (wider, pattern) {
        (QueuePattern::Prefix(wider), QueuePattern::Exact(name)) => wider.matches(name),
        (QueuePattern::Prefix(wider), QueuePattern::Prefix(prefix)) => {
            prefix.as_str().starts_with(wider.as_str())
        }
        (QueuePattern::Exact(_), _) => false,
    };
    let length = |pattern: &QueuePattern| pattern.to_string().len();
    let wider = policies.iter().filter(|(wider, policy)| covers(wider) && policy.paused.is_some());
    wider.max_by_key(|(wider, _)| length(wider)).is_some_and(|(_, policy)| policy.paused == Some(true))
}

async fn all_jobs<S: Store + ?Sized>(store: &S, mut filter: JobFilter) -> Result<Vec<Job>> {
    filter.limit = BatchSize::MAX;
    let mut jobs = Vec::new();
    loop {
        let page = store.jobs(&filter).await?;
        jobs.extend(page.items);
        match page.next {
            Some(next) => filter.after = Some(next),
            None => return Ok(jobs),
        }
    }
}
