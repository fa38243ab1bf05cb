//! How SQLite does the statements among many jobs: along an index, with no walk over the table and no sort of the backlog,
//! whatever statistics it has.

use diesel::connection::SimpleConnection;
use diesel::sql_types::Text;
use diesel::{RunQueryDsl, SqliteConnection};
use leasehold_core::{Dequeue, NewJob, Queues, Store};

macro_rules! statements {
    ($($name:literal),+ $(,)?) => { [$(($name, include_str!(concat!("../../queries/", $name, ".sql")))),+] };
}

/// What runs while jobs come and go.
const STATEMENTS: [(&str, &str); 23] = statements![
    "bucket",
    "due",
    "enqueue",
    "facts",
    "finish",
    "forget_hints",
    "forget_keys",
    "head",
    "heartbeat",
    "held",
    "hints",
    "lease",
    "leased",
    "once",
    "pick",
    "queue_of",
    "queues",
    "receipts",
    "remove",
    "requeue",
    "settle_done",
    "taken",
    "turns",
];

fn plan(conn: &mut SqliteConnection, text: &str) -> Vec<String> {
    #[derive(diesel::QueryableByName)]
    struct Line {
        #[diesel(sql_type = Text)]
        detail: String,
    }
    let explain = format!("EXPLAIN QUERY PLAN {}", text.replace("{prefix}", ""));
    let lines: Vec<Line> = diesel::sql_query(explain).load(conn).unwrap();
    lines.into_iter().map(|line| line.detail).collect()
}

/// Whether a step of a plan walks over a table, or sorts.
fn is_slow(step: &str) -> bool {
    let walks = ["SCAN j ", "SCAN b ", "SCAN h ", "SCAN k ", "SCAN job_"]
        .iter()
        .any(|walk| format!("{step} ").starts_with(walk));
    // These have what is Exhausted, hardly ever anything, and what is leased, of which the first is asked for.
    let is_small = ["job_queue_exhausted", "job_queue_leased"].iter().any(|index| step.contains(index));
    (walks && !is_small) || step.contains("TEMP B-TREE")
}

fn check(conn: &mut SqliteConnection, when: &str) {
    for (name, text) in STATEMENTS {
        let plan = plan(conn, text);
        assert!(!plan.iter().any(|step| is_slow(step)), "{name}, {when}:\n{}", plan.join("\n"));
    }
    let pick = plan(conn, include_str!("../../queries/pick.sql")).join("\n");
    assert!(pick.contains("job_queue_ready (queue_name=? AND priority=? AND available_at<?)"), "{pick}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_goes_along_an_index() {
    let (_store, directory) = crate::support::fresh_store().await;
    let mut conn = crate::support::plain(&directory.file());
    check(&mut conn, "with no jobs");
    conn.batch_execute("ANALYZE").unwrap();
    check(&mut conn, "with statistics of no jobs");
    conn.batch_execute(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 50000)
         INSERT INTO job_queue (queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at,
                                updated_at)
         SELECT 'q' || (n % 10), 'k', n % 7, '1', '{}', 5, n, 1, 1 FROM n",
    )
    .unwrap();
    check(&mut conn, "with jobs that nobody has counted");
    conn.batch_execute("ANALYZE").unwrap();
    check(&mut conn, "with jobs that were counted");
}

/// The walk over the levels gives the jobs in the order of D6, though nothing in the statement sorts them.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_the_first_jobs_of_many() {
    let (store, directory) = crate::support::fresh_store().await;
    let jobs: Vec<_> = (0..2000)
        .map(|n: i32| {
            NewJob::builder(format!("q{}", n % 3), "k").priority((n * 7919) % 13 - 6).build().unwrap()
        })
        .collect();
    store.enqueue(&jobs).await.unwrap();
    // Some wait for later at every priority, and all of those at the highest do.
    let spread = "UPDATE job_queue SET available_at = available_at - (id * 7907) % 1000;
                  UPDATE job_queue SET available_at = 253402300799999999 WHERE id % 5 = 0 OR priority = 6";
    crate::support::plain(&directory.file()).batch_execute(spread).unwrap();
    for queues in [Queues::named(["q0"]).unwrap(), Queues::named(["q0", "q1", "q2"]).unwrap()] {
        let mut all: Vec<_> = Vec::new();
        loop {
            let request = Dequeue::new(queues.clone(), "w").unwrap().limit(97).unwrap();
            let claimed = store.dequeue(&request).await.unwrap();
            if claimed.is_empty() {
                break;
            }
            all.extend(claimed.into_iter().map(|job| (-job.priority, job.available_at, job.id)));
        }
        assert!(all.len() > 400, "{queues:?}: {}", all.len());
        assert!(all.is_sorted(), "{queues:?} came in another order");
    }
}
