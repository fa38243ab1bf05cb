//! Which policy counts, proven for each field by what the store does.

use std::time::Duration;

use leasehold_core::{
    Archive, Backoff, BatchSize, Capabilities, ConcurrencyLimit, Delay, MaxAttempts, OnExpiry, Prune,
    QueueOrder, QueuePolicy, RateLimit, Record, Verdict, time,
};

use super::scene::SLOW;
use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job, request};

checks! { "policy":
    every_field_of_the_nearest_policy_counts [P8] needs Policies;
}

const FIELDS: [Field; 10] = [
    Field::Paused,
    Field::Concurrency,
    Field::Rate,
    Field::MaxLease,
    Field::Backoff,
    Field::MaxAttempts,
    Field::Order,
    Field::Retention,
    Field::Archive,
    Field::OnExpiry,
];

#[derive(Debug, Clone, Copy)]
enum Field {
    Paused,
    Concurrency,
    Rate,
    MaxLease,
    Backoff,
    MaxAttempts,
    Order,
    Retention,
    Archive,
    OnExpiry,
}

impl Field {
    fn is_kept(self, capabilities: &Capabilities) -> bool {
        match self {
            Self::Concurrency => capabilities.concurrency_limit,
            Self::Rate => capabilities.rate_limit,
            Self::Order => capabilities.fifo,
            _ => true,
        }
    }

    /// A policy that says this field alone, and what is seen under it. A switch has two values, a number as many as it is asked for.
    fn policy(self, value: u32) -> Outcome<(QueuePolicy, u64)> {
        let none = QueuePolicy::default();
        let (is_on, number) = (value % 2 == 1, u64::from(value) + 1);
        let count = value + 1;
        Ok(match self {
            Self::Paused => (QueuePolicy { paused: Some(is_on), ..none }, if is_on { 0 } else { 9 }),
            Self::Concurrency => {
                (QueuePolicy { concurrency_limit: Some(ConcurrencyLimit::new(count)?), ..none }, number)
            }
            Self::Rate => (QueuePolicy { rate: Some(RateLimit::new(SLOW, count)?), ..none }, number),
            Self::MaxLease => (QueuePolicy { max_lease: Some(lease_for(count * HOUR)?), ..none }, number),
            Self::Backoff => {
                let backoff = Backoff::new(count * HOUR, 0.0, Duration::ZERO, 99 * HOUR)?;
                (QueuePolicy { backoff: Some(backoff), ..none }, number)
            }
            Self::MaxAttempts => {
                (QueuePolicy { max_attempts: Some(MaxAttempts::new(count)?), ..none }, number)
            }
            Self::Order => {
                let order = if is_on { QueueOrder::Fifo } else { QueueOrder::Priority };
                (QueuePolicy { order: Some(order), ..none }, if is_on { 1 } else { 9 })
            }
            Self::Retention => (QueuePolicy { retention: Some(Delay::new(count * HOUR)?), ..none }, number),
            Self::Archive => {
                let archive = if is_on { Archive::DeadOnly } else { Archive::All };
                (QueuePolicy { archive: Some(archive), ..none }, u64::from(!is_on))
            }
            Self::OnExpiry => {
                let on_expiry = if is_on { OnExpiry::Backoff } else { OnExpiry::RetryNow };
                (QueuePolicy { on_expiry: Some(on_expiry), ..none }, u64::from(is_on))
            }
        })
    }

    /// What is seen of the field in a queue: how many jobs are leased at once, or how many hours something takes.
    async fn seen(self, stage: &Stage, queue: &str) -> Outcome<u64> {
        match self {
            Self::Paused | Self::Concurrency | Self::Rate | Self::Order => {
                stage.enqueue_many(queue, 9).await?;
                Ok(stage.store.dequeue(&request(queue, 20)?).await?.len() as u64)
            }
            Self::MaxAttempts => {
                let id = stage.enqueue(new_job(queue)).await?;
                Ok(u64::from(stage.live(id).await?.max_attempts.get()))
            }
            Self::MaxLease => {
                let request = leasehold_core::Dequeue::new(queue, "w")?.lease_for(20 * HOUR)?;
                stage.enqueue(new_job(queue)).await?;
                let jobs = stage.store.dequeue(&request).await?;
                let until = jobs.first().and_then(|job| job.lease.as_ref()).map(|lease| lease.until);
                let until =
                    until.ok_or_else(|| Problem::Surprise(format!("nothing was leased from {queue}")))?;
                Ok(hours(time::between(stage.now().await?, until)))
            }
            Self::Backoff => {
                let job = stage.leased(new_job(queue)).await?;
                stage.settle(job.receipt(), Verdict::retry("no")).await?;
                let at = stage.live(job.id).await?.available_at;
                Ok(hours(time::between(stage.now().await?, at)))
            }
            Self::Archive => {
                let job = stage.leased(new_job(queue)).await?;
                stage.settle(job.receipt(), Verdict::done()).await?;
                Ok(u64::from(matches!(stage.store.get(job.id).await?, Some(Record::Finished(_)))))
            }
            Self::OnExpiry => {
                let job = stage.leased(new_job(queue)).await?;
                stage.age(2 * HOUR).await?;
                stage.reclaim().await?;
                Ok(u64::from(stage.live(job.id).await?.available_at > stage.now().await?))
            }
            Self::Retention => self.hours_kept(stage, queue).await,
        }
    }

    /// After how many hours a finished job is forgotten.
    async fn hours_kept(self, stage: &Stage, queue: &str) -> Outcome<u64> {
        let job = stage.leased(new_job(queue)).await?;
        stage.settle(job.receipt(), Verdict::done()).await?;
        for hours in 1..=9 {
            stage.age(HOUR).await?;
            stage.store.prune(&Prune::by_retention(BatchSize::MAX)).await?;
            if stage.store.get(job.id).await?.is_none() {
                return Ok(hours);
            }
        }
        Err(Problem::Surprise(format!("a finished job of {queue} is never forgotten")))
    }
}

/// Rounded, since a moment passes between two looks at the clock.
fn hours(time: Duration) -> u64 {
    (time.as_secs() + 1800) / 3600
}

/// Three policies that say the field differently, set in several orders.
async fn every_field_of_the_nearest_policy_counts(stage: Stage) -> Outcome {
    let capabilities = stage.store.capabilities();
    for field in FIELDS.into_iter().filter(|field| field.is_kept(&capabilities)) {
        for (round, order) in [[0, 1, 2], [2, 0, 1], [1, 2, 0]].into_iter().enumerate() {
            let prefix = format!("{field:?}-{round}:");
            let patterns = ["*".to_owned(), format!("{prefix}*"), format!("{prefix}1")];
            let mut expected = [0; 3];
            for place in order {
                let (policy, seen) = field.policy(place as u32 + u32::from(round == 1))?;
                expected[place] = seen;
                stage.set_policy(&patterns[place], policy).await?;
            }
            let queues = [format!("{round}-{field:?}"), format!("{prefix}2"), format!("{prefix}1")];
            for (place, queue) in queues.iter().enumerate() {
                let seen = field.seen(&stage, queue).await?;
                let what = format!("{field:?} of {queue}, set in the order {order:?} of {patterns:?}");
                ensure_eq!(P8, what, seen, expected[place]);
            }
            for pattern in &patterns {
                stage.set_policy(pattern, QueuePolicy::default()).await?;
            }
        }
    }
    Ok(())
}
