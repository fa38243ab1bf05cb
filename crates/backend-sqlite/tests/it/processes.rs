//! Eight processes hammer one file (for eight seconds, or thirty with `LEASEHOLD_TEST_LONG` set), and one after another is killed: nothing is lost, and nothing is
//! done twice.
//!
//! Each process enqueues jobs, alone or in a transaction with a row of its own, and handles jobs, in a transaction with a row
//! in the ledger or by a batch of verdicts. Some it keeps for longer than their lease and handles then, as a process does that was
//! stopped and goes on. What it was told it writes into a file of its own, which a kill does not take away.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use diesel::connection::SimpleConnection;
use diesel::sql_types::{BigInt, Text};
use diesel::{RunQueryDsl, SqliteConnection, sql_query};
use leasehold_core::{BatchSize, Dequeue, Job, Json, NewJob, Store, StoreError, TxStore, Verdict};
use leasehold_sqlite::{SqliteStore, TxError, transaction};

/// What a process is told: the file, its number, and until when to enqueue.
const FILE: &str = "LEASEHOLD_HAMMER_FILE";
const NUMBER: &str = "LEASEHOLD_HAMMER_NUMBER";
const UNTIL: &str = "LEASEHOLD_HAMMER_UNTIL";

const PROCESSES: usize = 8;
const BATCH: usize = 10;
const LEASE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn eight_processes_hammering_one_file_lose_nothing_and_do_nothing_twice() {
    let seconds = if std::env::var_os("LEASEHOLD_TEST_LONG").is_some() { 30 } else { 8 };
    let (store, directory) = crate::support::fresh_store().await;
    let mut conn = store.connection().await.unwrap();
    // Neither has a unique key: what is written twice is seen twice.
    conn.batch_execute("CREATE TABLE asked (key TEXT NOT NULL); CREATE TABLE ledger (job INTEGER NOT NULL)")
        .unwrap();

    let until = unix_time() + Duration::from_secs(seconds);
    let mut started = 0;
    let mut start = || {
        started += 1;
        start(&directory.file(), started, until)
    };
    let mut processes: Vec<Child> = (0..PROCESSES).map(|_| start()).collect();
    let mut kills = 0;
    while unix_time() < until {
        let pause = Duration::from_millis(fastrand::u64(100..900));
        tokio::time::sleep(pause.min(until.saturating_sub(unix_time()))).await;
        let victim = &mut processes[fastrand::usize(..PROCESSES)];
        victim.kill().unwrap(); // SIGKILL, in the middle of whatever it was doing.
        victim.wait().unwrap();
        *victim = start();
        kills += 1;
    }
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    let notes = Notes::read(&directory.file(), started);
    audit(&mut conn, &notes, kills);
}

fn start(file: &str, number: usize, until: Duration) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::one_of_the_processes", "--nocapture"]).stdout(Stdio::null());
    command.env(FILE, file).env(NUMBER, number.to_string()).env(UNTIL, until.as_millis().to_string());
    command.spawn().unwrap()
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// What a process has been told, in a file of its own: lines of a word and perhaps a key.
#[derive(Default)]
struct Notes {
    accepted: BTreeSet<String>,
    counts: BTreeMap<String, usize>,
}

impl Notes {
    fn path(file: &str, number: usize) -> PathBuf {
        Path::new(file).with_file_name(format!("notes-{number}"))
    }

    fn read(file: &str, started: usize) -> Self {
        let mut notes = Self::default();
        for number in 1..=started {
            let text = std::fs::read_to_string(Self::path(file, number)).unwrap_or_default();
            // A kill may have cut the last line.
            for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
                let (word, key) = line.split_once(' ').unwrap_or((line, ""));
                *notes.counts.entry(word.to_owned()).or_default() += 1;
                notes.accepted.extend((word == "accepted").then(|| key.to_owned()));
            }
        }
        notes
    }

    fn count(&self, word: &str) -> usize {
        self.counts.get(word).copied().unwrap_or_default()
    }
}

#[derive(diesel::QueryableByName)]
struct Row {
    #[diesel(sql_type = BigInt)]
    number: i64,
    #[diesel(sql_type = Text)]
    text: String,
}

fn rows(conn: &mut SqliteConnection, question: &str) -> Vec<Row> {
    sql_query(question).load(conn).unwrap()
}

fn audit(conn: &mut SqliteConnection, notes: &Notes, kills: usize) {
    let live = rows(conn, "SELECT id AS number, kind AS text FROM job_queue").len();
    let done = rows(
        conn,
        "SELECT id AS number, unique_key AS text FROM job_history WHERE status_final = 'completed'",
    );
    let ended = rows(conn, "SELECT id AS number, kind AS text FROM job_history");
    let asked = rows(conn, "SELECT 0 AS number, key AS text FROM asked");
    let ledger = rows(conn, "SELECT job AS number, '' AS text FROM ledger");
    let whole = rows(conn, "SELECT 0 AS number, integrity_check AS text FROM pragma_integrity_check");

    let keys: BTreeSet<&String> = done.iter().map(|row| &row.text).collect();
    let known: BTreeSet<&String> = asked.iter().map(|row| &row.text).chain(&notes.accepted).collect();
    let lost: Vec<_> = known.difference(&keys).collect();
    let unknown = keys.difference(&known).count();
    let mut entries: Vec<i64> = ledger.iter().map(|row| row.number).collect();
    let mut wanted: Vec<i64> = ended.iter().filter(|row| row.text == "tx").map(|row| row.number).collect();
    entries.sort_unstable();
    wanted.sort_unstable();

    println!("{PROCESSES} processes, {kills} of which were killed and replaced");
    println!("   jobs: {} done, {} of them in a transaction with a row", done.len(), entries.len());
    println!("   enqueued: {} alone, {} in a transaction", notes.accepted.len(), asked.len());
    println!("   accepted by nobody's knowledge, since a kill came between: {unknown}");
    println!("   too late and refused: {}, busy: {}", notes.count("late"), notes.count("busy"));

    assert!(lost.is_empty(), "lost: {lost:?}");
    assert_eq!((live, ended.len()), (0, done.len()), "live, finished");
    assert_eq!(keys.len(), done.len(), "a job was there twice");
    assert!(unknown <= kills * BATCH, "{unknown} jobs that nobody has enqueued");
    let twice: Vec<_> = entries.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    assert!(twice.is_empty(), "jobs that were done twice: {twice:?}");
    assert!(entries == wanted, "{} rows in the ledger for {} jobs", entries.len(), wanted.len());
    assert_eq!(asked.len(), asked.iter().map(|row| &row.text).collect::<BTreeSet<_>>().len());
    assert_eq!(whole.first().map(|row| row.text.as_str()), Some("ok"));
    assert!(notes.count("late") > 0, "no lease was lost: nothing was put to the test");
    assert!(done.len() > 100, "the processes have hardly done anything");
}

/// What each process does. Run by itself, without a file, it has nothing to do.
#[tokio::test(flavor = "current_thread")]
async fn one_of_the_processes() {
    let Ok(file) = std::env::var(FILE) else {
        return;
    };
    let number = std::env::var(NUMBER).unwrap().parse().unwrap();
    let until = Duration::from_millis(std::env::var(UNTIL).unwrap().parse().unwrap());
    let mut process = Process::new(&file, number).await;
    while unix_time() < until {
        process.step().await;
    }
    process.work_off().await;
}

struct Process {
    store: SqliteStore,
    conn: SqliteConnection,
    notes: std::fs::File,
    number: usize,
    enqueued: usize,
    /// Jobs that are kept beyond their lease, since when.
    kept: Vec<(Job, Instant)>,
}

impl Process {
    async fn new(file: &str, number: usize) -> Self {
        let store = SqliteStore::connect(file).await.unwrap();
        let conn = store.connection().await.unwrap();
        let notes = OpenOptions::new().create(true).append(true).open(Notes::path(file, number)).unwrap();
        Self { store, conn, notes, number, enqueued: 0, kept: Vec::new() }
    }

    async fn step(&mut self) {
        match fastrand::bool() {
            true => self.enqueue().await,
            false => self.enqueue_in().await,
        }
        self.claim().await;
        self.handle_late().await;
    }

    /// Handles jobs until there are none, and none that anybody holds.
    async fn work_off(&mut self) {
        loop {
            self.claim().await;
            self.handle_late().await;
            if rows(&mut self.conn, "SELECT id AS number, kind AS text FROM job_queue LIMIT 1").is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn enqueue(&mut self) {
        let keys: Vec<String> = (0..fastrand::usize(..BATCH)).map(|_| self.new_key()).collect();
        let jobs: Vec<_> = keys.iter().map(|key| job(key)).collect();
        match self.store.enqueue(&jobs).await {
            Ok(_) => keys.iter().for_each(|key| self.note("accepted", key)),
            Err(error) => self.busy(error),
        }
    }

    async fn enqueue_in(&mut self) {
        let (store, key) = (self.store.clone(), self.new_key());
        let enqueued = transaction(&mut self.conn, async |conn| ask(&store, conn, &key).await).await;
        self.look_at(enqueued);
    }

    async fn claim(&mut self) {
        let request = Dequeue::new("work", format!("process {}", self.number)).unwrap();
        let request = request.limit(BATCH as u32).unwrap().lease_for(LEASE).unwrap();
        let leased = match fastrand::u8(..4) {
            0 => self.store.reclaim(BatchSize::MAX).await.map(|_| Vec::new()),
            _ => self.store.dequeue(&request).await,
        };
        let mut batch = Vec::new();
        match leased {
            Err(error) => self.busy(error),
            Ok(jobs) => {
                for job in jobs {
                    match (job.kind.as_str(), fastrand::u8(..20)) {
                        (_, 0) => self.kept.push((job, Instant::now())),
                        ("tx", _) => self.handle(job).await,
                        _ => batch.push((job.receipt(), Verdict::done())),
                    }
                }
            }
        }
        match self.store.settle(&batch).await {
            Ok(outcomes) => {
                let late = outcomes.iter().filter(|outcome| outcome.is_lost()).count();
                (0..late).for_each(|_| self.note("late", ""));
            }
            Err(error) => self.busy(error),
        }
    }

    /// Handles jobs whose leases have long passed. Others have them now, or have done them.
    async fn handle_late(&mut self) {
        let (late, kept) = self.kept.drain(..).partition(|(_, since)| since.elapsed() > LEASE + LEASE / 4);
        self.kept = kept;
        let late: Vec<(Job, Instant)> = late;
        for (job, _) in late {
            self.handle(job).await;
        }
    }

    /// A row in the ledger, perhaps a job that follows, and the end of this one.
    async fn handle(&mut self, job: Job) {
        let (store, follow) = (self.store.clone(), fastrand::u8(..8) == 0);
        let key = self.new_key();
        let handled = transaction(&mut self.conn, async |conn| {
            if job.kind.as_str() == "tx" {
                let write = sql_query("INSERT INTO ledger VALUES (?)");
                write.bind::<BigInt, _>(job.id.get()).execute(conn)?;
            }
            if follow {
                ask(&store, conn, &key).await?;
            }
            let _settled = store.ack_in(conn, &job.receipt(), Json::null()).await?;
            Ok(())
        });
        let handled = handled.await;
        self.look_at(handled);
    }

    fn new_key(&mut self) -> String {
        self.enqueued += 1;
        format!("{}-{}", self.number, self.enqueued)
    }

    fn look_at(&mut self, result: Result<(), TxError>) {
        match result {
            Ok(()) => {}
            Err(TxError::Store(error)) if error.is_lease_lost() => self.note("late", ""),
            Err(TxError::Store(error)) => self.busy(error),
            Err(error) if error.to_string().contains("locked") => self.note("busy", ""),
            Err(error) => panic!("{error}"),
        }
    }

    fn busy(&mut self, error: StoreError) {
        assert!(error.is_retryable(), "{error:?}");
        self.note("busy", "");
    }

    fn note(&mut self, word: &str, key: &str) {
        self.notes.write_all(format!("{word} {key}\n").as_bytes()).unwrap();
    }
}

fn job(key: &str) -> NewJob {
    let kind = if fastrand::bool() { "tx" } else { "batch" };
    NewJob::builder("work", kind).unique_key(key).max_attempts(1000).build().unwrap()
}

/// A row in `asked` and a job, both or neither.
async fn ask(store: &SqliteStore, conn: &mut SqliteConnection, key: &str) -> Result<(), TxError> {
    sql_query("INSERT INTO asked VALUES (?)").bind::<Text, _>(key).execute(conn)?;
    store.enqueue_in(conn, &[job(key)]).await?;
    Ok(())
}
