//! The right store with derived operations overridden, as a backend does for speed, each in one wrong way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_core::{
    BatchSize, Capabilities, Dequeue, Enqueued, Events, Explanation, FinalStatus, FinishedJob,
    HeartbeatOutcome, HistoryFilter, Intervention, Job, JobFilter, JobId, JobState, LeaseFor, NewJob,
    NextAvailable, Page, Policies, Prune, QueueName, QueueOrder, QueuePattern, QueuePolicy, QueueStats,
    QueueUsage, Queues, Receipt, ReceiptStatus, Reclaimed, Record, Redrive, Redriven, Result, SettleOutcome,
    Store, Verdict, Wakeups,
};

use crate::fault::Fault;
use crate::naive::Naive;

pub(crate) struct Overridden {
    pub(crate) inner: Arc<Naive>,
    pub(crate) fault: Fault,
    /// How many jobs were promoted.
    pub(crate) promoted: AtomicU64,
}

impl Overridden {
    async fn all(&self, queues: &Queues) -> Result<Vec<Job>> {
        let filter = JobFilter { queues: queues.clone(), limit: BatchSize::MAX, ..JobFilter::default() };
        Ok(self.inner.jobs(&filter).await?.items)
    }

    async fn spoil_stats(&self, mut row: QueueStats) -> Result<QueueStats> {
        let mut moved = |from: JobState, to: JobState| {
            let count = row.states.remove(&from).unwrap_or_default();
            *row.states.entry(to).or_default() += count;
        };
        match self.fault {
            Fault::StatsCountExpiredAsRunning => moved(JobState::Expired, JobState::Running),
            Fault::StatsMissPromotions if self.promoted.load(Ordering::Relaxed) > 0 => {
                moved(JobState::Ready, JobState::Scheduled);
            }
            Fault::StatsCountExhaustedAsReady => moved(JobState::Exhausted, JobState::Ready),
            Fault::StatsCountRetryingAsScheduled => moved(JobState::Retrying, JobState::Scheduled),
            Fault::StatsForgetDeadLetters => row.dead_letters = 0,
            Fault::StatsCountAttemptsOfReadyJobsOnly => {
                row.attempts.retain(|attempts, _| *attempts == 0);
            }
            Fault::StatsTakeTheNewestReadyJob | Fault::StatsTakeTheOldestOfAll => {
                let now = self.inner.now().await?;
                let jobs = self.all(&(&row.queue).into()).await?;
                let ready = jobs.iter().filter(|job| job.state(now) == JobState::Ready);
                row.oldest_ready_at = match self.fault {
                    Fault::StatsTakeTheNewestReadyJob => ready.map(|job| job.available_at).max(),
                    _ => jobs.iter().map(|job| job.created_at).min(),
                };
            }
            Fault::StatsCountAllHistoryAsDead => {
                let filter = HistoryFilter { queues: (&row.queue).into(), ..HistoryFilter::default() };
                row.dead_letters = self.inner.history(&filter).await?.items.len() as u64;
            }
            _ => {}
        }
        Ok(row)
    }

    fn spoil_explanation(&self, explanation: Explanation) -> Explanation {
        match (self.fault, explanation) {
            (Fault::ExplainForgetsHistory, Explanation::Finished { .. }) => Explanation::Unknown,
            (Fault::ExplainTakesDeadForFinished, Explanation::DeadLetter { at, .. }) => {
                Explanation::Finished { status: FinalStatus::DeadLetter, at }
            }
            (Fault::ExplainTakesPassedForLive, Explanation::LeaseExpired { by, since }) => {
                Explanation::Leased { by, until: since }
            }
            (Fault::ExplainLies, Explanation::Leased { .. }) => Explanation::Next,
            (Fault::ExplainTakesRetryForSchedule, Explanation::Retrying { until, .. }) => {
                Explanation::Scheduled { until }
            }
            (Fault::ExplainForgetsExhausted, Explanation::Exhausted) => Explanation::Next,
            (Fault::ExplainForgetsPause, Explanation::Paused) => Explanation::Next,
            (Fault::ExplainForgetsTheLimit, Explanation::ConcurrencyLimit { .. }) => Explanation::Next,
            (Fault::ExplainForgetsTheRate, Explanation::RateLimit { .. }) => Explanation::Next,
            (Fault::ExplainSaysNextForAll, Explanation::WaitsBehind { .. }) => Explanation::Next,
            (_, explanation) => explanation,
        }
    }
}

#[async_trait]
impl Store for Overridden {
    async fn pause(&self, pattern: &QueuePattern) -> Result<()> {
        match self.fault {
            Fault::PauseWipesThePolicy => {
                let policy = QueuePolicy { paused: Some(true), ..QueuePolicy::default() };
                self.inner.set_policy(pattern, &policy).await
            }
            _ => self.inner.pause(pattern).await,
        }
    }

    async fn resume(&self, pattern: &QueuePattern) -> Result<()> {
        match self.fault {
            Fault::ResumeWipesThePolicy => self.inner.set_policy(pattern, &QueuePolicy::default()).await,
            Fault::ResumeForgetsTheWiderPause => {
                let policy = self.inner.policies().await?.set_for(pattern);
                self.inner.set_policy(pattern, &QueuePolicy { paused: None, ..policy }).await
            }
            _ => self.inner.resume(pattern).await,
        }
    }

    async fn release(&self, receipts: &[Receipt]) -> Result<Vec<SettleOutcome>> {
        match self.fault {
            Fault::ReleaseKeepsTheAttempt => {
                let again = Verdict::retry_after("released", Duration::ZERO)?;
                let items: Vec<_> = receipts.iter().map(|receipt| (*receipt, again.clone())).collect();
                self.inner.settle(&items).await
            }
            Fault::ReleaseTakesASecond => {
                let later = Verdict::snooze(Duration::from_secs(1))?;
                let items: Vec<_> = receipts.iter().map(|receipt| (*receipt, later.clone())).collect();
                self.inner.settle(&items).await
            }
            _ => self.inner.release(receipts).await,
        }
    }

    async fn receipts(&self, receipts: &[Receipt]) -> Result<Vec<ReceiptStatus>> {
        let mut statuses = self.inner.receipts(receipts).await?;
        let until = self.inner.now().await?;
        match self.fault {
            Fault::ReceiptsAlwaysHeld => statuses.fill(ReceiptStatus::Held { until }),
            Fault::ReceiptsForgetFinished => {
                let finished = |status: &&mut ReceiptStatus| matches!(status, ReceiptStatus::Finished { .. });
                statuses.iter_mut().filter(finished).for_each(|status| *status = ReceiptStatus::Gone);
            }
            Fault::ReceiptsCallPassedLeasesGone => {
                let passed = |status: &&mut ReceiptStatus| matches!(status, ReceiptStatus::Held { until: end } if *end <= until);
                statuses.iter_mut().filter(passed).for_each(|status| *status = ReceiptStatus::Gone);
            }
            Fault::ReceiptsOutOfOrder => statuses.reverse(),
            _ => {}
        }
        Ok(statuses)
    }

    async fn stuck(&self, older_than: Duration, limit: BatchSize) -> Result<Vec<Job>> {
        match self.fault {
            Fault::StuckIgnoresAge => self.inner.stuck(Duration::ZERO, limit).await,
            Fault::StuckIgnoresLimit => self.inner.stuck(older_than, BatchSize::MAX).await,
            Fault::StuckCountsFromTheStart => {
                let expired = JobFilter { states: Some(vec![JobState::Expired]), ..JobFilter::default() };
                let (jobs, now) = (self.inner.jobs(&expired).await?.items, self.inner.now().await?);
                let old = |job: &Job| leasehold_core::time::between(job.created_at, now) >= older_than;
                Ok(jobs.into_iter().filter(old).take(limit.as_usize()).collect())
            }
            _ => self.inner.stuck(older_than, limit).await,
        }
    }

    async fn explain(&self, id: JobId) -> Result<Explanation> {
        Ok(self.spoil_explanation(self.inner.explain(id).await?))
    }

    async fn stats(&self, queues: &Queues) -> Result<Vec<QueueStats>> {
        let mut rows = Vec::new();
        for row in self.inner.stats(queues).await? {
            rows.push(self.spoil_stats(row).await?);
        }
        match self.fault {
            Fault::StatsForgetEmptyQueues => rows.retain(|row| row.live() + row.dead_letters > 0),
            Fault::StatsForgetQueuesOfDeadLetters => {
                rows.retain(|row| row.live() > 0 || row.dead_letters == 0);
            }
            Fault::StatsUnsorted => rows.reverse(),
            _ => {}
        }
        Ok(rows)
    }

    async fn next_available_at(&self, queues: &Queues) -> Result<Option<NextAvailable>> {
        let right = self.inner.next_available_at(queues).await?.map(|next| next.at);
        let jobs = self.all(queues).await?;
        let waiting = jobs.iter().filter(|job| job.lease.is_none()).map(|job| job.available_at).min();
        let policy = match jobs.first() {
            Some(job) => Some(self.inner.policy(&job.queue).await?),
            None => None,
        };
        let now = self.inner.now().await?;
        let spoilt = match self.fault {
            Fault::NextForgetsLeases => waiting,
            Fault::NextForgetsWaitingJobs => {
                jobs.iter().filter_map(|job| Some(job.lease.as_ref()?.until)).min()
            }
            Fault::NextIsLate => right.map(|next| leasehold_core::time::later(next, Duration::from_secs(1))),
            Fault::NextIsNowWhilePaused if policy.as_ref().is_some_and(|policy| policy.paused) => waiting,
            Fault::NextIsNowAtTheLimit if right.is_some() => right.into_iter().chain(waiting).min(),
            Fault::NextIsNowWithoutTokens if policy.as_ref().is_some_and(|policy| policy.rate.is_some()) => {
                waiting
            }
            Fault::NextLooksPastTheFifoHead
                if policy.as_ref().is_some_and(|policy| policy.order == QueueOrder::Fifo) =>
            {
                waiting
            }
            _ => right,
        };
        Ok(spoilt.map(|at| NextAvailable::new(at, now)))
    }

    // ---- As it is.

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn now(&self) -> Result<DateTime<Utc>> {
        self.inner.now().await
    }

    async fn enqueue(&self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.inner.enqueue(jobs).await
    }

    async fn dequeue(&self, request: &Dequeue) -> Result<Vec<Job>> {
        self.inner.dequeue(request).await
    }

    async fn settle(&self, items: &[(Receipt, Verdict)]) -> Result<Vec<SettleOutcome>> {
        self.inner.settle(items).await
    }

    async fn heartbeat(&self, receipts: &[Receipt], extend: LeaseFor) -> Result<Vec<HeartbeatOutcome>> {
        self.inner.heartbeat(receipts, extend).await
    }

    async fn reclaim(&self, limit: BatchSize) -> Result<Vec<Reclaimed>> {
        self.inner.reclaim(limit).await
    }

    async fn intervene(&self, id: JobId, intervention: &Intervention) -> Result<()> {
        if *intervention == Intervention::Promote {
            self.promoted.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.intervene(id, intervention).await
    }

    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        self.inner.get(id).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Page<Job>> {
        self.inner.jobs(filter).await
    }

    async fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>> {
        self.inner.history(filter).await
    }

    async fn redrive(&self, request: &Redrive) -> Result<Redriven> {
        self.inner.redrive(request).await
    }

    async fn prune(&self, request: &Prune) -> Result<u64> {
        self.inner.prune(request).await
    }

    async fn set_policy(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> Result<()> {
        self.inner.set_policy(pattern, policy).await
    }

    async fn policies(&self) -> Result<Policies> {
        self.inner.policies().await
    }

    async fn usage(&self, queue: &QueueName) -> Result<QueueUsage> {
        self.inner.usage(queue).await
    }

    async fn dedicated(&self) -> Result<Option<Arc<dyn Store>>> {
        self.inner.dedicated().await
    }

    async fn wakeups(&self, queues: &Queues) -> Result<Wakeups> {
        self.inner.wakeups(queues).await
    }

    async fn subscribe(&self, queues: &Queues) -> Result<Events> {
        self.inner.subscribe(queues).await
    }
}
