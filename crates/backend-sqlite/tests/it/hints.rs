//! Jobs of other processes, and of the user's own transactions, are found by hints and not by polling.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use diesel::connection::SimpleConnection;
use diesel::sql_types::BigInt;
use diesel::{RunQueryDsl, SqliteConnection, sql_query};
use futures_util::{FutureExt, StreamExt};
use leasehold_core::{JobKind, NewJob, Queues, Store, TxStore, Wakeups};
use leasehold_sqlite::{SqliteStore, TxError, Watch, transaction};
use leasehold_worker::{Context, Worker};

/// What a process is told: the file, and what to do with it.
const FILE: &str = "LEASEHOLD_HINTS_FILE";
const DEED: &str = "LEASEHOLD_HINTS_DEED";

/// How long a hint may take: a bound, not a wait.
const SOON: Duration = Duration::from_secs(20);

fn job(queue: &str) -> NewJob {
    NewJob::of(queue, &Nothing {}).build().unwrap()
}

async fn listen(store: &SqliteStore, queues: &str) -> Wakeups {
    store.wakeups(&queues.parse::<Queues>().unwrap()).await.unwrap()
}

async fn expect_hint(hints: &mut Wakeups, cause: &str) {
    let hint = tokio::time::timeout(SOON, hints.next()).await;
    assert!(matches!(hint, Ok(Some(()))), "no hint after {cause}");
}

/// Has another process do something, which has ended then.
async fn elsewhere(file: &str, deed: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "hints::another_process", "--nocapture"]).stdout(Stdio::null());
    command.env(FILE, file).env(DEED, deed);
    let status = tokio::task::spawn_blocking(move || command.status()).await.unwrap().unwrap();
    assert!(status.success(), "{deed}");
}

/// What the other process does. Run by itself, without a file, it has nothing to do.
#[tokio::test(flavor = "multi_thread")]
async fn another_process() {
    let (Ok(file), Ok(deed)) = (std::env::var(FILE), std::env::var(DEED)) else {
        return;
    };
    if deed == "count" {
        return threads_and_watches_come_and_go(&file).await;
    }
    let store = SqliteStore::connect(&file).await.unwrap();
    match deed.as_str() {
        "migrate" => store.migrate().await.unwrap(),
        "truncate" => {
            let mut conn = store.connection().await.unwrap();
            conn.batch_execute("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        }
        "transaction" => enqueue_in(&store, "q").await,
        queue => drop(store.enqueue(&[job(queue)]).await.unwrap()),
    }
}

async fn enqueue_in(store: &SqliteStore, queue: &str) {
    let mut conn = store.connection().await.unwrap();
    let jobs = [job(queue)];
    let done = transaction(&mut conn, async |conn| {
        store.enqueue_in(conn, &jobs).await?;
        Ok::<_, TxError>(())
    });
    done.await.unwrap();
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Nothing {}

impl JobKind for Nothing {
    const KIND: &'static str = "k";
}

/// The worker polls once an hour.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_picks_up_jobs_of_other_processes_and_transactions() {
    for watch in [Watch::Files, Watch::Polling] {
        let (_, directory) = crate::support::fresh_store().await;
        let store = SqliteStore::builder().watch(watch).connect(&directory.file()).await.unwrap();
        let (sender, mut begun) = tokio::sync::mpsc::unbounded_channel();
        type Begun = tokio::sync::mpsc::UnboundedSender<()>;
        let handler =
            async |_: Nothing, context: Context<Begun>| context.state().send(()).map_err(|_| "gone");
        let worker = Worker::builder(Arc::new(store.clone())).state(sender).queue("q");
        let worker =
            worker.poll_interval(Duration::from_secs(3600)).handle::<Nothing>(handler).start().unwrap();
        for deed in ["q", "transaction", "q", "own transaction"] {
            match deed {
                "own transaction" => enqueue_in(&store, "q").await,
                _ => elsewhere(&directory.file(), deed).await,
            }
            let picked_up = tokio::time::timeout(SOON, begun.recv()).await;
            assert!(matches!(picked_up, Ok(Some(()))), "{watch:?}: {deed} was not picked up");
        }
        worker.shutdown(SOON).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_go_on_when_the_log_was_cut_back() {
    let (store, directory) = crate::support::fresh_store().await;
    let mut hints = listen(&store, "q").await;
    for _ in 0..3 {
        elsewhere(&directory.file(), "truncate").await;
        assert_eq!(std::fs::metadata(format!("{}-wal", directory.file())).unwrap().len(), 0);
        while hints.next().now_or_never().is_some() {}
        elsewhere(&directory.file(), "q").await;
        expect_hint(&mut hints, "a job, with an empty log before").await;
    }
}

/// The last connection to a file removes its log.
#[tokio::test(flavor = "multi_thread")]
async fn hints_come_when_the_log_was_removed_before_or_there_was_no_file() {
    let directory = crate::support::Directory::new();
    for _ in 0..2 {
        assert!(!Path::new(&format!("{}-wal", directory.file())).exists());
        let store = SqliteStore::connect(&directory.file()).await.unwrap();
        let mut hints = listen(&store, "q").await;
        elsewhere(&directory.file(), "migrate").await;
        elsewhere(&directory.file(), "q").await;
        expect_hint(&mut hints, "the first job").await;
        drop((store, hints));
        closed(&directory.file());
    }
}

/// Waits until nothing has the file open any more, and its log is removed. The threads of a store end after it was dropped, and of connections
/// that are closed at the same moment none may be the last: so there is one more here.
fn closed(file: &str) {
    eventually("the log is removed", || {
        crate::support::plain(file).batch_execute("SELECT count(*) FROM sqlite_schema").unwrap();
        !Path::new(&format!("{file}-wal")).exists()
    });
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < deadline, "not so: {what}");
        std::thread::yield_now();
    }
}

/// A hint from elsewhere names its queue, as one of the store's own does.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_other_queues_and_of_the_store_itself_give_no_hints_from_elsewhere() {
    let (store, directory) = crate::support::fresh_store().await;
    let (mut a, mut b) = (listen(&store, "a").await, listen(&store, "b").await);
    for _ in 0..20 {
        store.enqueue(&[job("b")]).await.unwrap();
        elsewhere(&directory.file(), "b").await;
        expect_hint(&mut b, "a job in b").await;
    }
    assert!(a.next().now_or_never().is_none(), "a subscriber of a was woken by b");
    elsewhere(&directory.file(), "a").await;
    expect_hint(&mut a, "a job in a").await;
}

/// Hints are kept in a table, which does not grow with their number.
#[tokio::test(flavor = "multi_thread")]
async fn old_hints_are_removed() {
    let (store, directory) = crate::support::fresh_store().await;
    let (other, mut conn) =
        (SqliteStore::connect(&directory.file()).await.unwrap(), store.connection().await.unwrap());
    for round in 0..2000 {
        store.enqueue(&[job(&format!("queue {round}"))]).await.unwrap();
    }
    assert!((1..=320).contains(&rows(&mut conn)), "{} hints are kept", rows(&mut conn));
    // One that has missed most of them goes on.
    let mut hints = listen(&other, "q").await;
    store.enqueue(&[job("q")]).await.unwrap();
    expect_hint(&mut hints, "a job").await;
    let many: Vec<_> = (0..1000).map(|queue| job(&format!("queue {queue}"))).collect();
    let before = rows(&mut conn);
    store.enqueue(&many).await.unwrap();
    assert!(rows(&mut conn) <= before + 1, "a batch gives a row for each of its queues");
}

fn rows(conn: &mut SqliteConnection) -> i64 {
    #[derive(diesel::QueryableByName)]
    struct Count {
        #[diesel(sql_type = BigInt)]
        count: i64,
    }
    let counted: Vec<Count> = sql_query("SELECT count(*) AS count FROM job_hint").load(conn).unwrap();
    counted[0].count
}

/// A program on tables of an older version, which have no place for hints, does its work all the same.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_table_of_hints_all_but_hints_works() {
    let (store, directory) = crate::support::fresh_store().await;
    crate::support::plain(&directory.file()).batch_execute("DROP TABLE job_hint").unwrap();
    let mut hints = listen(&store, "q").await;
    store.enqueue(&[job("q")]).await.unwrap();
    expect_hint(&mut hints, "a job of its own").await;
    enqueue_in(&store, "q").await;
    assert_eq!(store.stats(&Queues::all()).await.unwrap()[0].live(), 2);
}

/// In a process of its own, since it counts the threads and watches of the whole process.
#[tokio::test(flavor = "multi_thread")]
async fn one_watcher_serves_a_process_and_nothing_is_left_of_it() {
    let (_, directory) = crate::support::fresh_store().await;
    elsewhere(&directory.file(), "count").await;
}

async fn threads_and_watches_come_and_go(file: &str) {
    if !cfg!(target_os = "linux") {
        return;
    }
    let other = format!("{file}-other");
    let link = format!("{file}-link");
    std::os::unix::fs::symlink(file, &link).unwrap();
    for _ in 0..2 {
        assert_eq!(watchers(), (0, 0), "before");
        let producer = SqliteStore::connect(file).await.unwrap();
        producer.enqueue(&[job("q")]).await.unwrap();
        assert_eq!(watchers(), (0, 0), "nothing listens");
        let mut stores = Vec::new();
        for (place, watches) in [(file, 1), (file, 1), (&link, 1), (&other, 2)] {
            let store = SqliteStore::connect(place).await.unwrap();
            let hints = [listen(&store, "q").await, listen(&store, "*").await];
            stores.push((store, hints));
            // A thread gives itself its name.
            eventually("one thread watches each file once", || watchers() == (1, watches));
        }
        drop(stores.remove(0));
        producer.enqueue(&[job("q")]).await.unwrap();
        expect_hint(&mut stores[0].1[0], "a job, after another store was dropped").await;
        stores.clear();
        eventually("no watcher is left", || watchers() == (0, 0));
        drop(producer);
        closed(file);
    }
    std::fs::remove_file(link).unwrap();
    eventually("no thread of a store is left", || threads("leasehold-") == 0);
}

/// How many threads watch, and how many files.
fn watchers() -> (usize, usize) {
    let files = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    let texts = files.filter_map(|file| std::fs::read_to_string(file.unwrap().path()).ok());
    let watches = texts.map(|text| text.lines().filter(|line| line.starts_with("inotify ")).count()).sum();
    (threads("leasehold-watch"), watches)
}

fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|comm| comm.starts_with(name)).count()
}
