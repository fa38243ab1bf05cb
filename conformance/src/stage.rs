//! Where a check plays: one database, a handle on it, and the things that every check does.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_core::{
    BatchSize, Dequeue, Job, JobId, LeaseFor, NewJob, NewJobBuilder, QueueName, QueuePattern, QueuePolicy,
    Queues, Receipt, Record, SettleOutcome, Store, Verdict,
};

use crate::dump::Dump;
use crate::failure::{Outcome, Problem, ensure};
use crate::harness::{Harness, Isolation, Transaction};

/// Much longer than any check takes, so that nothing passes or comes due by itself.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// How often a verdict is given again while it is answered Pending.
const PATIENCE: u32 = 10_000;

/// A database with one handle on it. Clones are the same database.
#[derive(Clone)]
pub(crate) struct Stage {
    site: Arc<dyn Site>,
    pub(crate) store: Arc<dyn Store>,
}

impl Stage {
    pub(crate) async fn new<H: Harness>(harness: Arc<H>) -> Outcome<Self> {
        let database = harness.create().await?;
        let store = harness.connect(&database).await?;
        Ok(Self { site: Arc::new(Played { harness, database }), store })
    }

    /// The same database with nothing in it: a new one.
    pub(crate) async fn fresh(&self) -> Outcome<Self> {
        self.site.fresh().await
    }

    /// The database without the handle.
    pub(crate) fn site(&self) -> Arc<dyn Site> {
        Arc::clone(&self.site)
    }

    /// Closes the handle and opens another, when nobody else has one.
    pub(crate) async fn reopen(self) -> Outcome<Self> {
        let Self { site, store } = self;
        drop(store);
        let store = site.connect().await?;
        Ok(Self { site, store })
    }

    /// One more handle, as one more process has it.
    pub(crate) async fn connect(&self) -> Outcome<Arc<dyn Store>> {
        self.site.connect().await
    }

    pub(crate) async fn age(&self, by: Duration) -> Outcome {
        self.site.age(by).await
    }

    /// Sets the store's clock back. The check does not apply where that cannot be done.
    pub(crate) async fn set_back(&self, by: Duration) -> Outcome {
        match self.site.set_back(by).await? {
            true => Ok(()),
            false => Err(Problem::NotApplicable("the clock of the backend cannot be set back")),
        }
    }

    /// Remembers all that is stored. The check does not apply to a database that loses nothing.
    pub(crate) async fn save(&self) -> Outcome {
        match self.site.save().await? {
            true => Ok(()),
            false => Err(Problem::NotApplicable("the database loses nothing that it has answered")),
        }
    }

    /// Loses what was written since.
    pub(crate) async fn lose(&self) -> Outcome {
        self.site.lose().await
    }

    /// Puts a dead letter with the id of a live job into the history. The check does not apply where there is no place for both.
    pub(crate) async fn finish_twin(&self, id: JobId) -> Outcome {
        match self.site.finish_twin(id).await? {
            true => Ok(()),
            false => Err(Problem::NotApplicable("a live job and a finished one never have the same id")),
        }
    }

    pub(crate) async fn begin(&self) -> Outcome<Box<dyn Transaction>> {
        self.site.begin().await?.ok_or_else(no_transactions)
    }

    pub(crate) async fn begin_at(&self, level: Isolation) -> Outcome<Box<dyn Transaction>> {
        self.site.begin_at(level).await?.ok_or_else(no_transactions)
    }

    pub(crate) async fn no_transaction(&self) -> Outcome<Option<Box<dyn Transaction>>> {
        self.site.no_transaction().await
    }

    /// The committed business rows, sorted.
    pub(crate) async fn ledger(&self) -> Outcome<Vec<String>> {
        let mut entries = self.site.ledger().await?;
        entries.sort();
        Ok(entries)
    }

    pub(crate) fn model_cases(&self) -> u32 {
        self.site.model_cases()
    }

    pub(crate) fn race_budget(&self) -> Duration {
        self.site.race_budget()
    }

    pub(crate) async fn now(&self) -> Outcome<DateTime<Utc>> {
        Ok(self.store.now().await?)
    }

    pub(crate) async fn dump(&self) -> Outcome<Dump> {
        Dump::of(&*self.store).await
    }

    /// Enqueues one job and gives its id.
    pub(crate) async fn enqueue(&self, job: NewJobBuilder) -> Outcome<JobId> {
        let answers = self.store.enqueue(&[job.build()?]).await?;
        ensure!(E2, answers.len() == 1, "one job was enqueued, the answers are {answers:?}");
        Ok(answers[0].id)
    }

    /// Enqueues `count` plain jobs and gives their ids.
    pub(crate) async fn enqueue_many(&self, queue: &str, count: usize) -> Outcome<Vec<JobId>> {
        let jobs = (0..count).map(|_| new_job(queue).build()).collect::<Result<Vec<_>, _>>()?;
        let answers = self.store.enqueue(&jobs).await?;
        ensure!(E2, answers.len() == count, "{count} jobs were enqueued, the answers are {answers:?}");
        Ok(answers.iter().map(|answer| answer.id).collect())
    }

    /// Leases up to `limit` jobs for an hour.
    pub(crate) async fn claim(&self, queues: &str, limit: u32) -> Outcome<Vec<Job>> {
        Ok(self.store.dequeue(&request(queues, limit)?).await?)
    }

    /// Leases the one job that there is for an hour.
    pub(crate) async fn claim_one(&self, queues: &str) -> Outcome<Job> {
        let mut jobs = self.claim(queues, 1).await?;
        match jobs.pop() {
            Some(job) => Ok(job),
            None => Err(Problem::Surprise(format!(
                "a job of {queues} should be leasable, but nothing was leased"
            ))),
        }
    }

    /// Enqueues a job and leases it for an hour.
    pub(crate) async fn leased(&self, job: NewJobBuilder) -> Outcome<Job> {
        let id = self.enqueue(job).await?;
        let Record::Live(job) = self.record(id).await? else { return Err(gone(id)) };
        self.claim_one(job.queue.as_str()).await
    }

    /// Gives one verdict, which must be accepted.
    pub(crate) async fn settle(&self, receipt: Receipt, verdict: Verdict) -> Outcome {
        let outcome = self.try_settle(receipt, verdict.clone()).await?;
        ensure!(
            S1,
            matches!(outcome, SettleOutcome::Settled(_)),
            "{verdict:?} with the good receipt {receipt} was answered {outcome:?}"
        );
        Ok(())
    }

    /// Gives one verdict, again while the answer is Pending, as a worker does: a call that was dropped may still be
    /// running in the database.
    pub(crate) async fn try_settle(&self, receipt: Receipt, verdict: Verdict) -> Outcome<SettleOutcome> {
        let item = [(receipt, verdict)];
        for _ in 0..PATIENCE {
            let mut outcomes = self.store.settle(&item).await?;
            ensure!(S1, outcomes.len() == 1, "one item was settled, the outcomes are {outcomes:?}");
            let outcome = outcomes.remove(0);
            if !outcome.is_pending() {
                return Ok(outcome);
            }
        }
        let observed = format!("no transaction is open, but {item:?} was answered Pending {PATIENCE} times");
        Err(Problem::Broken(leasehold_core::contract::S14, observed))
    }

    /// Reclaims all that there is.
    pub(crate) async fn reclaim(&self) -> Outcome<Vec<leasehold_core::Reclaimed>> {
        Ok(self.store.reclaim(BatchSize::MAX).await?)
    }

    pub(crate) async fn record(&self, id: JobId) -> Outcome<Record> {
        self.store.get(id).await?.ok_or_else(|| gone(id))
    }

    /// The job, which must be in the queue.
    pub(crate) async fn live(&self, id: JobId) -> Outcome<Job> {
        match self.record(id).await? {
            Record::Live(job) => Ok(job),
            Record::Finished(job) => {
                Err(Problem::Surprise(format!("job {id} should be in the queue, but is {job:?}")))
            }
        }
    }

    /// The job, which must be in the history.
    pub(crate) async fn finished(&self, id: JobId) -> Outcome<leasehold_core::FinishedJob> {
        match self.record(id).await? {
            Record::Finished(job) => Ok(job),
            Record::Live(job) => {
                Err(Problem::Surprise(format!("job {id} should be finished, but is {job:?}")))
            }
        }
    }

    pub(crate) async fn set_policy(&self, pattern: &str, policy: QueuePolicy) -> Outcome {
        Ok(self.store.set_policy(&pattern.parse::<QueuePattern>()?, &policy).await?)
    }
}

/// A plain job of the kind `task`.
pub(crate) fn new_job(queue: &str) -> NewJobBuilder {
    NewJob::builder(queue, "task")
}

/// A request for up to `limit` jobs on a lease of an hour.
pub(crate) fn request(queues: &str, limit: u32) -> Outcome<Dequeue> {
    Ok(Dequeue::new(queues, "suite")?.limit(limit)?.lease_for(HOUR)?)
}

/// A request over several named queues.
pub(crate) fn request_named(queues: &[&str], limit: u32) -> Outcome<Dequeue> {
    Ok(Dequeue::new(Queues::named(queues.iter().copied())?, "suite")?.limit(limit)?.lease_for(HOUR)?)
}

pub(crate) fn lease_for(length: Duration) -> Outcome<LeaseFor> {
    Ok(LeaseFor::new(length)?)
}

pub(crate) fn queue(name: &str) -> Outcome<QueueName> {
    Ok(QueueName::new(name)?)
}

pub(crate) fn ids(jobs: &[Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

fn gone(id: JobId) -> Problem {
    Problem::Broken(leasehold_core::contract::C1, format!("job {id} was accepted, but get finds nothing"))
}

fn no_transactions() -> Problem {
    Problem::Harness("the backend says that it has transactions, but Harness::begin gives none".into())
}

/// A harness with one of its databases, whatever their types.
#[async_trait]
pub(crate) trait Site: Send + Sync {
    async fn fresh(&self) -> Outcome<Stage>;
    async fn destroy(&self) -> Outcome;
    async fn connect(&self) -> Outcome<Arc<dyn Store>>;
    async fn age(&self, by: Duration) -> Outcome;
    async fn set_back(&self, by: Duration) -> Outcome<bool>;
    async fn save(&self) -> Outcome<bool>;
    async fn lose(&self) -> Outcome;
    async fn finish_twin(&self, id: JobId) -> Outcome<bool>;
    async fn begin(&self) -> Outcome<Option<Box<dyn Transaction>>>;
    async fn begin_at(&self, level: Isolation) -> Outcome<Option<Box<dyn Transaction>>>;
    async fn no_transaction(&self) -> Outcome<Option<Box<dyn Transaction>>>;
    async fn ledger(&self) -> Outcome<Vec<String>>;
    fn model_cases(&self) -> u32;
    fn race_budget(&self) -> Duration;
}

struct Played<H: Harness> {
    harness: Arc<H>,
    database: H::Database,
}

#[async_trait]
impl<H: Harness> Site for Played<H> {
    async fn fresh(&self) -> Outcome<Stage> {
        Stage::new(Arc::clone(&self.harness)).await
    }

    async fn destroy(&self) -> Outcome {
        Ok(self.harness.destroy(&self.database).await?)
    }

    async fn connect(&self) -> Outcome<Arc<dyn Store>> {
        Ok(self.harness.connect(&self.database).await?)
    }

    async fn age(&self, by: Duration) -> Outcome {
        Ok(self.harness.age(&self.database, by).await?)
    }

    async fn set_back(&self, by: Duration) -> Outcome<bool> {
        Ok(self.harness.set_back(&self.database, by).await?)
    }

    async fn save(&self) -> Outcome<bool> {
        Ok(self.harness.save(&self.database).await?)
    }

    async fn lose(&self) -> Outcome {
        Ok(self.harness.lose(&self.database).await?)
    }

    async fn finish_twin(&self, id: JobId) -> Outcome<bool> {
        Ok(self.harness.finish_twin(&self.database, id).await?)
    }

    async fn begin(&self) -> Outcome<Option<Box<dyn Transaction>>> {
        Ok(self.harness.begin(&self.database).await?)
    }

    async fn begin_at(&self, level: Isolation) -> Outcome<Option<Box<dyn Transaction>>> {
        Ok(self.harness.begin_at(&self.database, level).await?)
    }

    async fn no_transaction(&self) -> Outcome<Option<Box<dyn Transaction>>> {
        Ok(self.harness.no_transaction(&self.database).await?)
    }

    async fn ledger(&self) -> Outcome<Vec<String>> {
        Ok(self.harness.ledger(&self.database).await?)
    }

    fn model_cases(&self) -> u32 {
        self.harness.model_cases()
    }

    fn race_budget(&self) -> Duration {
        self.harness.race_budget()
    }
}
