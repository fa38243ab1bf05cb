//! Eight processes on one file, one of which is killed: nothing is lost, and nothing is done twice.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use diesel::connection::SimpleConnection;
use diesel::sql_types::BigInt;
use diesel::{RunQueryDsl, SqliteConnection};
use futures_util::FutureExt;
use leasehold_core::{BatchSize, Dequeue, Job, Json, NewJob, Store, TxStore, Verdict};
use leasehold_sqlite::{SqliteStore, TxError};

const FILE: &str = "LEASEHOLD_TEST_SQLITE_FILE";
const PROCESSES: usize = 8;
const JOBS: u32 = 1_500;

#[derive(diesel::QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    number: i64,
}

fn number(conn: &mut SqliteConnection, text: &str) -> i64 {
    diesel::sql_query(text).get_result::<Number>(conn).unwrap().number
}

fn start(file: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "one_of_the_processes", "--nocapture"]).env(FILE, file);
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

/// What each process does. Run by itself, without a file, it has nothing to do.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_the_processes() {
    let Ok(file) = std::env::var(FILE) else {
        return;
    };
    let store = SqliteStore::connect(&file).await.unwrap();
    store.migrate().await.unwrap();
    work_off(&store, &format!("process {}", std::process::id())).await;
}

/// Handles jobs until there are none: half of them in a transaction with a row of their own and a job that follows, half
/// of them by a batch of verdicts.
async fn work_off(store: &SqliteStore, worker: &str) {
    let mut conn = store.connection().await.unwrap();
    let request = Dequeue::new("work", worker).unwrap().limit(10).unwrap();
    loop {
        let jobs = store.dequeue(&request).await.unwrap();
        if jobs.is_empty() {
            return;
        }
        let (mine, batch): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| job.kind.as_str() == "tx");
        for job in mine {
            handle(store, &mut conn, &job).unwrap();
        }
        let verdicts: Vec<_> = batch.iter().map(|job| (job.receipt(), Verdict::done())).collect();
        assert!(store.settle(&verdicts).await.unwrap().iter().all(|outcome| !outcome.is_lost()));
    }
}

fn handle(store: &SqliteStore, conn: &mut SqliteConnection, job: &Job) -> Result<(), TxError> {
    conn.immediate_transaction(|conn| {
        let write = diesel::sql_query("INSERT INTO ledger VALUES (?)");
        write.bind::<BigInt, _>(job.id.get()).execute(conn)?;
        let follow = [NewJob::builder("work", "batch").build().unwrap()];
        store.enqueue_in(conn, &follow).now_or_never().unwrap()?;
        let _settled = store.ack_in(conn, &job.receipt(), Json::null()).now_or_never().unwrap()?;
        Ok(())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_processes_lose_nothing_and_do_nothing_twice() {
    let (store, directory) = support::fresh_store().await;
    let mut conn = store.connection().await.unwrap();
    conn.batch_execute("CREATE TABLE ledger (job INTEGER NOT NULL)").unwrap();
    let kinds = ["tx", "batch"];
    let jobs: Vec<_> =
        (0..JOBS).map(|n| NewJob::builder("work", kinds[n as usize % 2]).build().unwrap()).collect();
    store.enqueue(&jobs).await.unwrap();

    let mut processes: Vec<Child> = (0..PROCESSES).map(|_| start(&directory.file())).collect();
    let mut victim = processes.remove(0);
    let deadline = Instant::now() + Duration::from_secs(60);
    let held =
        format!("SELECT count(*) AS number FROM job_queue WHERE locked_by = 'process {}'", victim.id());
    while number(&mut conn, &held) == 0 {
        assert!(Instant::now() < deadline, "the process that is to be killed has no lease");
        std::thread::yield_now();
    }
    victim.kill().unwrap(); // SIGKILL, in the middle of whatever it was doing.
    victim.wait().unwrap();
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }

    // What the dead one held comes back when its leases have passed.
    let passed = "UPDATE job_queue SET lease_until = 1 WHERE lease_until IS NOT NULL";
    conn.batch_execute(passed).unwrap();
    store.reclaim(BatchSize::MAX).await.unwrap();
    work_off(&store, "the last").await;

    let follow_ups = i64::from(JOBS / 2);
    let count = |table: &str| format!("SELECT count(*) AS number FROM {table}");
    assert_eq!(number(&mut conn, &count("job_queue")), 0);
    assert_eq!(number(&mut conn, &count("job_history")), i64::from(JOBS) + follow_ups);
    assert_eq!(number(&mut conn, &count("ledger")), follow_ups);
    assert_eq!(number(&mut conn, "SELECT count(DISTINCT job) AS number FROM ledger"), follow_ups);
    let workers = number(&mut conn, "SELECT count(DISTINCT processed_by) AS number FROM job_history");
    assert!(workers > 3, "only {workers} processes have done anything");
    let whole = "SELECT count(*) AS number FROM pragma_integrity_check WHERE integrity_check = 'ok'";
    assert_eq!(number(&mut conn, whole), 1);
}
