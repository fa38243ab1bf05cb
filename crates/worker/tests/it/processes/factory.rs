//! A schema with the tables of a business, and the worker processes on it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use diesel::QueryableByName;
use diesel::sql_types::BigInt;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{JobKind, NewJob, Store};
use leasehold_postgres::{PgStore, Schema};

use super::child::{ORDERS, Orders, QUEUE, TEST};

/// How long anything may take: a bound, not a wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const LEASE: Duration = Duration::from_millis(500);
const VARIABLE: &str = "LEASEHOLD_TEST_POSTGRES_URL";

/// The server that `cargo xtask test` has started, or that whoever runs the tests has named.
pub(crate) fn url() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!("{VARIABLE} is not set: run `cargo xtask test -p leasehold-worker`, or `cargo xtask servers` and set what it prints")
    })
}

pub(crate) fn fresh_schema() -> Schema {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Schema::new(format!("worker_{}_{count}", std::process::id())).unwrap()
}

pub(crate) struct Factory {
    pub(crate) store: PgStore,
    pub(crate) url: String,
    pub(crate) schema: Schema,
}

#[derive(QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    number: i64,
}

impl Factory {
    pub(crate) async fn new(url: String) -> Self {
        let schema = fresh_schema();
        let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        let tables = format!(
            "CREATE TABLE {schema}.ledger (job bigint NOT NULL, epoch bigint NOT NULL);
             CREATE TABLE {schema}.note (job bigint NOT NULL, epoch bigint NOT NULL);
             CREATE TABLE {schema}.given_back (job bigint NOT NULL, epoch bigint NOT NULL)"
        );
        store.pool().get().await.unwrap().batch_execute(&tables).await.unwrap();
        Self { store, url, schema }
    }

    /// So many jobs, which may be tried as often as it takes.
    pub(crate) async fn enqueue<K: JobKind>(&self, count: usize, job: impl Fn(usize) -> K) {
        let new = |n| NewJob::of(QUEUE, &job(n)).max_attempts(1000).build().unwrap();
        let jobs: Vec<NewJob> = (0..count).map(new).collect();
        self.store.enqueue(&jobs).await.unwrap();
    }

    /// The number that a query gives; `{schema}` in it is ours.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let sql = format!("SELECT ({}) AS number", sql.replace("{schema}", self.schema.as_str()));
        let mut conn = self.store.pool().get().await.unwrap();
        diesel::sql_query(sql).get_result::<Number>(&mut conn).await.unwrap().number
    }

    /// Waits until a query gives a number that is right.
    pub(crate) async fn until(&self, sql: &str, right: impl Fn(i64) -> bool) -> i64 {
        let start = Instant::now();
        loop {
            let number = self.number(sql).await;
            if right(number) {
                return number;
            }
            assert!(start.elapsed() < PATIENCE, "it is still {number}: {sql}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn until_nothing_is_left(&self) {
        self.until("SELECT count(*) FROM {schema}.job_queue", |left| left == 0).await;
    }

    /// Orders for a worker that nothing happens to.
    pub(crate) fn orders(&self, name: &str) -> Orders {
        Orders {
            url: self.url.clone(),
            schema: self.schema.to_string(),
            name: name.to_owned(),
            concurrency: 8,
            lease: LEASE,
            grace: PATIENCE,
            death: None,
        }
    }

    /// Looks for what must not be: jobs in two places, effects that are missing or too many, verdicts of those who had lost
    /// their lease, attempts that nobody has made. Of `jobs` jobs all are completed.
    pub(crate) async fn check(&self, jobs: usize) {
        let wrongs = [
            ("live", "SELECT count(*) FROM {schema}.job_queue"),
            ("not completed", "SELECT count(*) FROM {schema}.job_history WHERE status_final <> 'completed'"),
            ("finished twice", "SELECT count(*) - count(DISTINCT id) FROM {schema}.job_history"),
            (
                "paid otherwise than once, by the lease that counts",
                "SELECT count(*) FROM {schema}.job_history h WHERE kind = 'pay' AND ARRAY[lease_epoch] IS DISTINCT FROM
                 (SELECT array_agg(l.epoch) FROM {schema}.ledger l WHERE l.job = h.id)",
            ),
            (
                "noted never by the lease that counts",
                "SELECT count(*) FROM {schema}.job_history h WHERE kind = 'note' AND NOT EXISTS
                 (SELECT FROM {schema}.note n WHERE n.job = h.id AND n.epoch = h.lease_epoch)",
            ),
            (
                "completed by a verdict of another lease",
                "SELECT count(*) FROM {schema}.job_history WHERE kind = 'note' AND result::text <> lease_epoch::text",
            ),
            // A lease is an attempt and an epoch, and to take one away is an epoch too. One that is given back is no attempt.
            (
                "leased and not counted",
                "SELECT count(*) FROM {schema}.job_history h WHERE lease_epoch NOT BETWEEN attempts AND 2 * attempts - 1
                 + (SELECT count(*) FROM {schema}.given_back g WHERE g.job = h.id)",
            ),
            (
                "run under a lease that was never granted",
                "SELECT count(*) FROM {schema}.job_history h JOIN {schema}.note n ON n.job = h.id WHERE n.epoch > h.lease_epoch",
            ),
        ];
        for (what, sql) in wrongs {
            assert_eq!(self.number(sql).await, 0, "jobs that are {what}");
        }
        assert_eq!(
            self.number("SELECT count(*) FROM {schema}.job_history").await,
            jobs as i64,
            "jobs are lost"
        );
    }

    pub(crate) fn start(&self, orders: &Orders) -> Process {
        Process::start(orders)
    }
}

/// A worker process. Dropped, it is killed.
pub(crate) struct Process {
    child: Child,
    pub(crate) name: String,
    log: Arc<Mutex<Vec<String>>>,
}

impl Process {
    fn start(orders: &Orders) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--nocapture"])
            .env(ORDERS, serde_json::to_string(orders).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (lines, heard) = (BufReader::new(child.stderr.take().unwrap()).lines(), Arc::clone(&log));
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| heard.lock().unwrap().push(line));
        });
        Self { child, name: orders.name.clone(), log }
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success(), "SIG{name} was not sent to {}", self.name);
    }

    /// As `kill -9` would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) async fn until_ended(&mut self, within: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(start.elapsed() < within, "{} has not ended: {:#?}", self.name, self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// The lines of its log with this text.
    pub(crate) fn logged(&self, text: &str) -> Vec<String> {
        self.log().into_iter().filter(|line| line.contains(text)).collect()
    }

    pub(crate) async fn until_logged(&self, text: &str) {
        let start = Instant::now();
        while self.logged(text).is_empty() {
            assert!(start.elapsed() < PATIENCE, "{} has not logged {text:?}: {:#?}", self.name, self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprint(&self.name, &self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[allow(clippy::print_stderr, reason = "for whoever reads why a test failed")]
fn eprint(name: &str, log: &[String]) {
    eprintln!("the last lines of {name}: {:#?}", &log[log.len().saturating_sub(20)..]);
}
