//! What the store comes through: a server that is killed, connections that are cut all the time, a pool that is too
//! small. No job is lost, none is in two places, each has its effect once, and work goes on by itself.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel::sql_types::BigInt;
use diesel_async::pooled_connection::deadpool::Object;
use diesel_async::{AnsiTransactionManager, AsyncMysqlConnection, SimpleAsyncConnection, TransactionManager};
use leasehold_core::{
    BatchSize, Dequeue, Job, JobId, Json, NewJob, Result, Store, StoreError, TxStore, Verdict,
};
use leasehold_mysql::MysqlStore;
use leasehold_servers::{Mysql, MysqlFlavor};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, timeout};

/// How long everything may take: a bound, not a wait.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long a lost lease holds its job back.
const LEASE: Duration = Duration::from_millis(700);

/// Producers and workers on one store, and what they know of it.
struct Factory {
    store: MysqlStore,
    accepted: Mutex<BTreeSet<JobId>>,
    is_open: AtomicBool,
    /// Producers that may yet enqueue something.
    producing: AtomicUsize,
    is_done: AtomicBool,
    errors: AtomicU64,
    /// Settled in batches, and in transactions with a row of their own.
    settled: [AtomicU64; 2],
}

impl Factory {
    async fn new(url: &str, pool_size: usize) -> Arc<Self> {
        let store = MysqlStore::builder()
            .pool_size(pool_size)
            .pool_wait(Duration::from_secs(5))
            .connect(url)
            .await
            .unwrap();
        store.migrate().await.unwrap();
        let mut conn = store.pool().get().await.unwrap();
        conn.batch_execute("CREATE TABLE ledger (job BIGINT NOT NULL) ENGINE = InnoDB").await.unwrap();
        drop(conn);
        Arc::new(Self {
            store,
            accepted: Mutex::default(),
            is_open: AtomicBool::new(true),
            producing: AtomicUsize::new(0),
            is_done: AtomicBool::new(false),
            errors: AtomicU64::new(0),
            settled: Default::default(),
        })
    }

    /// Starts so many producers and workers.
    fn run(self: &Arc<Self>, producers: usize, workers: usize) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for number in 0..producers {
            self.producing.fetch_add(1, Ordering::SeqCst);
            let producer = Arc::clone(self);
            tasks.spawn(async move {
                Arc::clone(&producer).produce(number).await;
                producer.producing.fetch_sub(1, Ordering::SeqCst);
            });
        }
        for number in 0..workers {
            tasks.spawn(Arc::clone(self).work(number));
        }
        tasks
    }

    /// Enqueues until it is told to stop. An answer that was lost is asked for again: the unique key tells.
    async fn produce(self: Arc<Self>, number: usize) {
        for count in 0.. {
            if !self.is_open.load(Ordering::Relaxed) {
                return;
            }
            let key = format!("{number}/{count}");
            let job =
                NewJob::builder("chaos", "work").unique_key(key.as_str()).payload(&key).build().unwrap();
            loop {
                match self.store.enqueue(std::slice::from_ref(&job)).await {
                    Ok(answers) => break self.accepted.lock().unwrap().extend([answers[0].id]),
                    Err(error) if !self.is_open.load(Ordering::Relaxed) => break self.bear(&error),
                    Err(error) => self.bear(&error),
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// Works until there is nothing left to do.
    async fn work(self: Arc<Self>, number: usize) {
        let request = Dequeue::new("chaos", format!("worker-{number}").as_str()).unwrap();
        let request = request.limit(10).unwrap().lease_for(LEASE).unwrap();
        while !self.is_done.load(Ordering::Relaxed) {
            if let Err(error) = self.round(&request, number).await {
                self.bear(&error);
            }
            tokio::task::yield_now().await;
        }
    }

    async fn round(&self, request: &Dequeue, number: usize) -> Result<()> {
        let jobs = self.store.dequeue(request).await?;
        if jobs.is_empty() {
            self.store.reclaim(BatchSize::new(100)?).await?;
        } else if number.is_multiple_of(2) {
            let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect();
            let outcomes = self.store.settle(&items).await?;
            let settled = outcomes.iter().filter(|outcome| !outcome.is_lost()).count();
            self.settled[0].fetch_add(settled as u64, Ordering::Relaxed);
        } else {
            for job in &jobs {
                self.transact(job).await?;
            }
        }
        Ok(())
    }

    /// A row of one's own and the verdict, together or not at all.
    async fn transact(&self, job: &Job) -> Result<()> {
        let conn = self.store.pool().get().await.map_err(|error| StoreError::unavailable("begin", error))?;
        let mut conn = Transaction(Some(conn));
        let told = |error: diesel::result::Error| StoreError::unavailable("transaction", error);
        AnsiTransactionManager::begin_transaction(&mut **conn.get()).await.map_err(told)?;
        let insert = diesel::sql_query("INSERT INTO ledger VALUES (?)");
        let insert = insert.bind::<BigInt, _>(job.id.get());
        diesel_async::RunQueryDsl::execute(insert, conn.get()).await.map_err(told)?;
        self.store.ack_in(conn.get(), &job.receipt(), Json::null()).await?.fate();
        AnsiTransactionManager::commit_transaction(&mut **conn.get()).await.map_err(told)?;
        self.settled[1].fetch_add(1, Ordering::Relaxed);
        conn.end();
        Ok(())
    }

    /// Trouble is to be expected, but none that nobody can do anything about.
    fn bear(&self, error: &StoreError) {
        let is_trouble = error.is_retryable() || error.is_unknown() || error.is_lease_lost();
        assert!(is_trouble, "{error}: {:?}", std::error::Error::source(error));
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    fn done(&self) -> u64 {
        self.settled.iter().map(|settled| settled.load(Ordering::Relaxed)).sum()
    }

    /// Waits until this many more jobs are done than at the beginning.
    async fn go_on(&self, jobs: u64) {
        let goal = self.done() + jobs;
        let mut look = interval(Duration::from_millis(20));
        let (mut done, mut since) = (self.done(), Instant::now());
        while done < goal {
            assert!(since.elapsed() < PATIENCE, "no work was done for {PATIENCE:?}");
            look.tick().await;
            if self.done() > done {
                (done, since) = (self.done(), Instant::now());
            }
        }
    }

    /// Stops the producers, waits until the queue is empty, and looks at everything.
    async fn close(&self, mut tasks: JoinSet<()>) {
        self.is_open.store(false, Ordering::Relaxed);
        let start = Instant::now();
        let mut look = interval(Duration::from_millis(100));
        let left = "SELECT COUNT(*) AS count FROM job_queue";
        while self.producing.load(Ordering::SeqCst) > 0 || self.count(left).await != 0 {
            assert!(start.elapsed() < PATIENCE, "jobs are left after {PATIENCE:?}");
            look.tick().await;
        }
        self.is_done.store(true, Ordering::Relaxed);
        timeout(PATIENCE, async { while tasks.join_next().await.transpose().unwrap().is_some() {} })
            .await
            .unwrap();
        self.is_sound().await;
    }

    async fn is_sound(&self) {
        let both = "SELECT COUNT(*) AS count FROM job_queue JOIN job_history USING (id)";
        assert_eq!(self.count(both).await, 0, "jobs are in both places");
        let completed = "SELECT COUNT(*) AS count FROM job_history WHERE status_final = 'completed'";
        let finished = "SELECT COUNT(*) AS count FROM job_history";
        let accepted = self.accepted.lock().unwrap().clone();
        for id in &accepted {
            assert!(self.store.get(*id).await.unwrap().is_some(), "job {id} is lost");
        }
        assert!(self.count(finished).await >= accepted.len() as i64, "jobs are left in the queue");
        // A lease that was lost too often is a dead letter; everything else is completed.
        let dead = "SELECT COUNT(*) AS count FROM job_history WHERE last_error LIKE '%lease_expired%'
                    AND status_final = 'dead_letter'";
        assert_eq!(self.count(completed).await + self.count(dead).await, self.count(finished).await);
        let twice =
            "SELECT COUNT(*) AS count FROM (SELECT job FROM ledger GROUP BY job HAVING count(*) > 1) twice";
        assert_eq!(self.count(twice).await, 0, "effects happened twice");
        let unfounded = "SELECT COUNT(*) AS count FROM ledger l LEFT JOIN job_history h
                         ON h.id = l.job AND h.status_final = 'completed' WHERE h.id IS NULL";
        assert_eq!(self.count(unfounded).await, 0, "effects of jobs that are not completed");
    }

    async fn count(&self, query: &str) -> i64 {
        #[derive(diesel::QueryableByName)]
        struct Count {
            #[diesel(sql_type = BigInt)]
            count: i64,
        }
        for _ in 0..100 {
            let Ok(mut conn) = self.store.pool().get().await else { continue };
            match diesel_async::RunQueryDsl::load(diesel::sql_query(query), &mut conn).await {
                Ok::<Vec<Count>, _>(rows) => return rows[0].count,
                Err(_) => drop(Object::take(conn)),
            }
        }
        panic!("the server does not answer");
    }
}

/// A connection with a transaction: given up, and so rolled back, unless it came to its end.
struct Transaction(Option<Object<AsyncMysqlConnection>>);

impl Transaction {
    fn get(&mut self) -> &mut Object<AsyncMysqlConnection> {
        self.0.as_mut().unwrap()
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

async fn private_server(flavor: MysqlFlavor) -> Arc<Mysql> {
    let start = move || Mysql::start(flavor, &[]).unwrap();
    Arc::new(tokio::task::spawn_blocking(start).await.unwrap())
}

/// Kills the server three times under load.
async fn kills(flavor: MysqlFlavor) {
    let server = private_server(flavor).await;
    let factory = Factory::new(&server.url(), 8).await;
    let tasks = factory.run(2, 6);
    for _ in 0..3 {
        factory.go_on(200).await;
        let server = Arc::clone(&server);
        tokio::task::spawn_blocking(move || {
            server.kill().unwrap();
            server.restart().unwrap();
        })
        .await
        .unwrap();
    }
    factory.go_on(200).await;
    assert!(factory.errors.load(Ordering::Relaxed) > 0, "nobody noticed");
    factory.close(tasks).await;
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
}

/// Cuts every connection five times a second for five seconds.
async fn cuts(flavor: MysqlFlavor) {
    let server = private_server(flavor).await;
    let factory = Factory::new(&server.url(), 8).await;
    let tasks = factory.run(2, 6);
    let mut often = interval(Duration::from_millis(200));
    let before = factory.done();
    let mut cut = 0;
    // On a busy machine hardly anything is done between two cuts: then there are more of them.
    for round in 0..1500 {
        if round >= 25 && factory.done() > before {
            break;
        }
        often.tick().await;
        let server = Arc::clone(&server);
        cut += tokio::task::spawn_blocking(move || kill_connections(&server)).await.unwrap();
    }
    assert!(cut > 25, "only {cut} connections were there to be cut");
    assert!(factory.done() > before, "nothing was done meanwhile");
    factory.go_on(200).await;
    factory.close(tasks).await;
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
}

/// Kills every connection to the database but our own; says how many.
fn kill_connections(server: &Mysql) -> usize {
    let all = "SELECT GROUP_CONCAT(id) FROM information_schema.processlist
               WHERE id <> CONNECTION_ID() AND db = 'leasehold'";
    let ids = server.query(all).unwrap().unwrap_or_default();
    // Those that have gone by themselves meanwhile cannot be killed.
    ids.split(',').filter(|id| !id.is_empty() && server.query(&format!("KILL {id}")).is_ok()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mysql_that_is_killed_and_started_again() {
    kills(MysqlFlavor::Mysql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mariadb_that_is_killed_and_started_again() {
    kills(MysqlFlavor::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_mysql_that_are_cut_five_times_a_second() {
    cuts(MysqlFlavor::Mysql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_mariadb_that_are_cut_five_times_a_second() {
    cuts(MysqlFlavor::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_two_with_sixteen_tasks() {
    for variable in crate::support::BOTH {
        let fresh = crate::support::Fresh::on(variable).await;
        let factory = Factory::new(&fresh.url, 2).await;
        let tasks = factory.run(4, 12);
        factory.go_on(1000).await;
        factory.close(tasks).await;
        fresh.drop().await;
    }
}
