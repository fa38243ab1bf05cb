//! Everything at once: claims, verdicts of all sorts, unique keys, heartbeats, reclaims, administrators, and transactions of users
//! who lock the same rows in opposite orders. Afterwards every job is where it belongs, and nothing is stuck.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use diesel::sql_types::BigInt;
use diesel_async::pooled_connection::deadpool::Object;
use diesel_async::{AnsiTransactionManager, AsyncMysqlConnection, SimpleAsyncConnection, TransactionManager};
use leasehold_core::{
    BatchSize, Dequeue, Intervention, Job, JobId, Json, LeaseFor, NewJob, Queues, Receipt, RetryAfter, Store,
    StoreError, TxStore, Verdict,
};
use leasehold_mysql::MysqlStore;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Result<T = ()> = std::result::Result<T, Failure>;

/// Queues and accounts: few, so that everybody meets everybody.
const QUEUES: usize = 4;
const ACCOUNTS: i64 = 8;
const KEYS: u64 = 50;
const LEASE: Duration = Duration::from_secs(2);
/// The queue is to be empty so long after the storm. A bound, not a wait.
const PATIENCE: Duration = Duration::from_secs(120);

/// What came of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub(crate) accepted: usize,
    pub(crate) settled: u64,
    /// Deadlocks of the store's operations among themselves: there should be none.
    pub(crate) normal: u64,
    /// Deadlocks that the server broke at the cost of the store's operations, which were done again.
    pub(crate) retried: u64,
    /// Transactions of users that were given up, and run again from the start.
    pub(crate) given_up: u64,
    /// Jobs that were settled in a second of storm, beside a second with a tenth of the tasks.
    pub(crate) ratio: f64,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} jobs accepted, {} settled, none lost, none stuck; 1213 in normal operation: {}; with users' transactions, retried by \
             the store: {}, given up and run again by the user: {}; rate beside the calm one: {:.2}",
            self.accepted, self.settled, self.normal, self.retried, self.given_up, self.ratio
        )
    }
}

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weather {
    /// The store alone: claims, verdicts, unique keys, heartbeats and reclaims.
    Normal,
    /// Users' transactions and administrators besides.
    Storm,
}

/// Normal operation for a quarter of the time, then a storm, after as long with a tenth of the tasks.
pub(crate) async fn storm(url: &str, length: Duration, tasks: usize) -> Result<Told> {
    let normal = Storm::run(url, length / 4, tasks, Weather::Normal).await?;
    let calm = Storm::run(url, length / 4, (tasks / 10).max(2), Weather::Storm).await?;
    let storm = Storm::run(url, length, tasks, Weather::Storm).await?;
    let per_second = |settled: u64, length: Duration| settled as f64 / length.as_secs_f64();
    let ratio = per_second(storm.settled, length) / per_second(calm.settled, length / 4);
    Ok(Told { ratio, normal: normal.retried, ..storm })
}

struct Storm {
    store: MysqlStore,
    weather: Weather,
    is_over: AtomicBool,
    accepted: Mutex<BTreeSet<JobId>>,
    settled: AtomicU64,
    /// Settled in transactions, with a row of their own each.
    written: AtomicU64,
    given_up: AtomicU64,
}

impl Storm {
    async fn run(url: &str, length: Duration, tasks: usize, weather: Weather) -> Result<Told> {
        let store = MysqlStore::builder().pool_size(tasks).pool_wait(PATIENCE).connect(url).await?;
        store.migrate().await?;
        let storm = Arc::new(Self {
            store,
            weather,
            is_over: AtomicBool::new(false),
            accepted: Mutex::default(),
            settled: AtomicU64::new(0),
            written: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        });
        storm.prepare().await?;
        let mut running = tokio::task::JoinSet::new();
        for number in 0..tasks {
            running.spawn(Arc::clone(&storm).blow(number));
        }
        let end = Instant::now() + length;
        while Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            if let Ok(Some(ended)) = tokio::time::timeout(left, running.join_next()).await {
                ended??;
            }
        }
        storm.is_over.store(true, Ordering::Relaxed);
        let settled = storm.settled.load(Ordering::Relaxed);
        tokio::time::timeout(PATIENCE, async {
            while let Some(ended) = running.join_next().await {
                ended??;
            }
            Result::Ok(())
        })
        .await
        .map_err(|_| "somebody is stuck")??;
        storm.calm_down().await?;
        let accepted = storm.check().await?;
        let (retried, given_up) = (storm.store.deadlocks(), storm.given_up.load(Ordering::Relaxed));
        Ok(Told { accepted, settled, normal: 0, retried, given_up, ratio: 1.0 })
    }

    async fn prepare(&self) -> Result {
        let mut conn = self.store.pool().get().await?;
        for text in [
            "DELETE FROM job_queue",
            "DELETE FROM job_history",
            "DROP TABLE IF EXISTS account, effect",
            "CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL) ENGINE = InnoDB",
            "CREATE TABLE effect (job BIGINT NOT NULL) ENGINE = InnoDB",
        ] {
            conn.batch_execute(text).await?;
        }
        for id in 0..ACCOUNTS {
            conn.batch_execute(&format!("INSERT INTO account VALUES ({id}, 0)")).await?;
        }
        Ok(())
    }

    async fn blow(self: Arc<Self>, number: usize) -> Result {
        let mut random = fastrand::Rng::with_seed(number as u64);
        while !self.is_over.load(Ordering::Relaxed) {
            match self.gust(&mut random, number).await {
                Ok(()) => {}
                Err(error) if error.is_lease_lost() => {}
                Err(StoreError::NotFound(_) | StoreError::Conflict { .. }) => {}
                Err(error) if error.is_retryable() => drop(self.given_up.fetch_add(1, Ordering::Relaxed)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn gust(&self, random: &mut fastrand::Rng, number: usize) -> leasehold_core::Result<()> {
        match random.u32(..10) {
            0..=2 => self.enqueue(random).await,
            3 => self.store.reclaim(BatchSize::new(50)?).await.map(drop),
            4 if self.weather == Weather::Storm => self.intervene(random).await,
            _ => self.work(random, number).await,
        }
    }

    async fn enqueue(&self, random: &mut fastrand::Rng) -> leasehold_core::Result<()> {
        let mut jobs = Vec::new();
        for _ in 0..random.usize(1..20) {
            let queue = format!("storm:{}", random.usize(..QUEUES));
            let job = NewJob::builder(queue.as_str(), "blow").priority(random.i32(..3)).max_attempts(1000);
            let key = format!("key {}", random.u64(..KEYS));
            jobs.push(if random.bool() { job.unique_key(key.as_str()).build()? } else { job.build()? });
        }
        let answers = self.store.enqueue(&jobs).await?;
        self.accept(answers.iter().map(|answer| answer.id));
        Ok(())
    }

    fn accept(&self, ids: impl Iterator<Item = JobId>) {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).extend(ids);
    }

    async fn intervene(&self, random: &mut fastrand::Rng) -> leasehold_core::Result<()> {
        let id = {
            let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
            accepted.iter().rev().nth(random.usize(..50)).copied()
        };
        match id {
            Some(id) if random.bool() => self.store.promote(id).await,
            Some(id) => {
                self.store.intervene(id, &Intervention::RetryLater(leasehold_core::Schedule::Now)).await
            }
            None => Ok(()),
        }
    }

    async fn work(&self, random: &mut fastrand::Rng, number: usize) -> leasehold_core::Result<()> {
        let queues = match random.u32(..3) {
            0 => "storm:*".parse::<Queues>()?,
            1 => Queues::named((0..QUEUES).map(|queue| format!("storm:{queue}")))?,
            _ => Queues::named([format!("storm:{}", random.usize(..QUEUES))])?,
        };
        let request = Dequeue::new(queues, format!("worker {number}").as_str())?.limit(random.u32(1..20))?;
        let jobs = self.store.dequeue(&request.lease_for(LEASE)?).await?;
        let receipts: Vec<Receipt> = jobs.iter().map(Job::receipt).collect();
        self.store.heartbeat(&receipts, LeaseFor::new(LEASE)?).await?;
        if self.weather == Weather::Storm && random.u32(..3) == 0 {
            for job in &jobs {
                self.transact(random, job).await?;
            }
            return Ok(());
        }
        let items: Vec<_> = receipts.iter().map(|receipt| (*receipt, verdict(random))).collect();
        let outcomes = self.store.settle(&items).await?;
        let settled = outcomes.iter().filter(|outcome| !outcome.is_lost()).count();
        self.settled.fetch_add(settled as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Two accounts in any order, an effect, a new job and the verdict: together or not at all.
    async fn transact(&self, random: &mut fastrand::Rng, job: &Job) -> leasehold_core::Result<()> {
        let told = |error: diesel::result::Error| StoreError::unavailable("transaction", error);
        let conn = self.store.pool().get().await;
        let mut conn = Transaction(Some(conn.map_err(|error| StoreError::unavailable("begin", error))?));
        AnsiTransactionManager::begin_transaction(&mut **conn.get()).await.map_err(told)?;
        for account in [random.i64(..ACCOUNTS), random.i64(..ACCOUNTS)] {
            let update = diesel::sql_query("UPDATE account SET balance = balance + 1 WHERE id = ?");
            let update = update.bind::<BigInt, _>(account);
            diesel_async::RunQueryDsl::execute(update, conn.get()).await.map_err(told)?;
        }
        let effect = diesel::sql_query("INSERT INTO effect VALUES (?)").bind::<BigInt, _>(job.id.get());
        diesel_async::RunQueryDsl::execute(effect, conn.get()).await.map_err(told)?;
        let key = format!("key {}", random.u64(..KEYS));
        let next = NewJob::builder(&job.queue, "blow").unique_key(key.as_str()).max_attempts(1000).build()?;
        let answers = self.store.enqueue_in(conn.get(), &[next]).await?;
        self.store.ack_in(conn.get(), &job.receipt(), Json::null()).await?.fate();
        AnsiTransactionManager::commit_transaction(&mut **conn.get()).await.map_err(told)?;
        conn.end();
        self.accept(answers.iter().map(|answer| answer.id));
        self.settled.fetch_add(1, Ordering::Relaxed);
        self.written.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Works off what is left.
    async fn calm_down(&self) -> Result {
        let start = Instant::now();
        let request = Dequeue::new("storm:*".parse::<Queues>()?, "last")?.limit(500)?;
        while self.number("SELECT COUNT(*) AS number FROM job_queue").await? > 0 {
            if start.elapsed() > PATIENCE {
                return Err("jobs are stuck".into());
            }
            self.store.reclaim(BatchSize::MAX).await?;
            let waiting = self.store.jobs(&leasehold_core::JobFilter::default()).await?;
            for job in waiting.items {
                drop(self.store.promote(job.id).await);
            }
            let jobs = self.store.dequeue(&request).await?;
            let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect();
            self.store.settle(&items).await?;
        }
        Ok(())
    }

    /// Everything that was accepted is in the history once, and every effect belongs to a job that is completed.
    async fn check(&self) -> Result<usize> {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let finished = self.number("SELECT COUNT(*) AS number FROM job_history").await?;
        if finished < accepted.len() as i64 {
            return Err(format!("{} jobs were accepted and {finished} are finished", accepted.len()).into());
        }
        for id in &accepted {
            if self.store.get(*id).await?.is_none() {
                return Err(format!("job {id} is lost").into());
            }
        }
        let zero = [
            "SELECT COUNT(*) AS number FROM (SELECT job FROM effect GROUP BY job HAVING COUNT(*) > 1) twice",
            "SELECT COUNT(*) AS number FROM effect e LEFT JOIN job_history h ON h.id = e.job AND h.status_final = 'completed'
             WHERE h.id IS NULL",
        ];
        for question in zero {
            let count = self.number(question).await?;
            if count != 0 {
                return Err(format!("{question} gave {count}").into());
            }
        }
        let effects = self.number("SELECT COUNT(*) AS number FROM effect").await?;
        if effects < self.written.load(Ordering::Relaxed) as i64 {
            return Err("effects are lost".into());
        }
        Ok(accepted.len())
    }

    async fn number(&self, query: &str) -> Result<i64> {
        #[derive(diesel::QueryableByName)]
        struct Number {
            #[diesel(sql_type = BigInt)]
            number: i64,
        }
        let mut conn = self.store.pool().get().await?;
        let rows: Vec<Number> = diesel_async::RunQueryDsl::load(diesel::sql_query(query), &mut conn).await?;
        rows.first().map(|row| row.number).ok_or_else(|| "no number".into())
    }
}

fn verdict(random: &mut fastrand::Rng) -> Verdict {
    match random.u32(..6) {
        0 => Verdict::release(),
        1 => Verdict::Retry {
            error: Json::error("again"),
            after: RetryAfter::Delay(leasehold_core::Delay::ZERO),
        },
        2 => Verdict::Discard { reason: Json::null() },
        _ => Verdict::done(),
    }
}

/// A connection with a transaction: given up, and so rolled back, unless it came to its end.
struct Transaction(Option<Object<AsyncMysqlConnection>>);

impl Transaction {
    #[allow(clippy::expect_used, reason = "it is there until the end")]
    fn get(&mut self) -> &mut Object<AsyncMysqlConnection> {
        self.0.as_mut().expect("a transaction that has not ended")
    }

    fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        drop(self.0.take().map(Object::take));
    }
}
