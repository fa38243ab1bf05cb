//! What the server does for a claim among a hundred thousand jobs: the number of rows that it reads does not grow with the backlog, and no
//! statement sorts it: by what the server counts, and by what it says that it would do (`EXPLAIN`). On both servers.

use std::time::{Duration, Instant};

use diesel::sql_types::Text;
use diesel_async::{AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{Dequeue, Queues, Store, Verdict};
use leasehold_mysql::MysqlStore;

/// How many jobs a claim asks for.
const LIMIT: u32 = 100;

/// For how long a claim is tried again while others read beside it.
const PATIENCE: Duration = Duration::from_secs(120);

/// The server counts for all together, so one test at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Many jobs, and a store with one connection, so that the server's counters of it are those of the store.
struct Scene {
    store: MysqlStore,
    conn: AsyncMysqlConnection,
    fresh: crate::support::Fresh,
}

impl Scene {
    /// Row `n` has these values of queue, priority and available_at.
    async fn with(variable: &str, queue: &str, priority: &str, available_at: &str) -> Self {
        let fresh = crate::support::Fresh::on(variable).await;
        let store = MysqlStore::builder().pool_size(1).polling(false).connect(&fresh.url).await.unwrap();
        store.migrate().await.unwrap();
        let mut conn = crate::support::plain(&fresh.url).await;
        let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL
                       SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
        let fill = format!(
            "INSERT INTO job_queue (queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at,
                                    updated_at)
             SELECT {queue}, 'work', {priority}, '{{}}', '{{}}', 5, {available_at}, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)
             FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n
                   FROM {digits} a, {digits} b, {digits} c, {digits} e, {digits} f) numbers"
        );
        conn.batch_execute(&fill).await.unwrap();
        Self { store, conn, fresh }
    }

    /// How many rows and index entries the server has read for everybody in this database until now.
    async fn reads(&mut self) -> i64 {
        #[derive(diesel::QueryableByName)]
        struct Status {
            #[diesel(sql_type = Text, column_name = "Value")]
            value: String,
        }
        let mut sum = 0;
        for counter in ["Handler_read_key", "Handler_read_next", "Handler_read_prev", "Handler_read_rnd_next"]
        {
            let show = format!("SHOW GLOBAL STATUS LIKE '{counter}'");
            let rows: Vec<Status> = diesel::sql_query(show).load(&mut self.conn).await.unwrap();
            sum += rows[0].value.parse::<i64>().unwrap();
        }
        sum
    }

    /// Sees that no statement of the store's read more than `bound` rows. It is tried until it holds, since others may read
    /// meanwhile, and they may do so for long: other tests fill their tables.
    async fn claim_reads_at_most(&mut self, queues: Queues, bound: i64) {
        let mut fewest = i64::MAX;
        let deadline = Instant::now() + PATIENCE;
        while fewest > bound && Instant::now() < deadline {
            // To ask is to read, too.
            let (asked, before) = (self.reads().await, self.reads().await);
            let asking = before - asked;
            let request = Dequeue::new(queues.clone(), "w").unwrap().limit(LIMIT).unwrap();
            let jobs = self.store.dequeue(&request).await.unwrap();
            assert_eq!(jobs.len(), LIMIT as usize);
            fewest = fewest.min(self.reads().await - before - asking);
            let back: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::release())).collect();
            self.store.settle(&back).await.unwrap();
        }
        assert!(fewest <= bound, "{fewest} rows were read for {LIMIT} jobs, {bound} would do");
    }
}

/// A statement of the hot path: with which arguments, and by which index it finds jobs.
struct Planned {
    name: &'static str,
    text: &'static str,
    arguments: &'static [&'static str],
    index: &'static str,
}

macro_rules! planned {
    ($name:literal, $index:literal, $($argument:literal),*) => {
        Planned {
            name: $name,
            text: include_str!(concat!("../../queries/", $name, ".sql")),
            arguments: &[$($argument),*],
            index: $index,
        }
    };
}

/// `{list}` stands for a hundred ids.
const PLANNED: &[Planned] = &[
    planned!("heads", "job_queue_ready", "'q7'", "-9999999999", "116"),
    planned!("lock", "PRIMARY", "UTC_TIMESTAMP(6)"),
    planned!("lease", "PRIMARY", "UTC_TIMESTAMP(6)", "'w'", "UTC_TIMESTAMP(6)", "UTC_TIMESTAMP(6)"),
    planned!("complete", "PRIMARY", "'null'", "1"),
    planned!("completed", "PRIMARY", "1"),
    planned!("held", "PRIMARY",),
    planned!("live", "PRIMARY",),
    planned!("seen", "PRIMARY",),
    planned!("still_live", "PRIMARY",),
    planned!("extend", "PRIMARY", "UTC_TIMESTAMP(6)", "UTC_TIMESTAMP(6)"),
    planned!("due", "job_queue_reclaim", "UTC_TIMESTAMP(6)", "100", "0"),
    planned!("lock_due", "PRIMARY", "UTC_TIMESTAMP(6)"),
    planned!("remove", "PRIMARY", "'[[1,1,1],[2,1,1]]'"),
    planned!("requeue", "PRIMARY", "'[[1,1,1,null,\"2020-01-01\",0]]'", "UTC_TIMESTAMP(6)"),
    planned!("finish_same", "PRIMARY", "1", "'completed'", "'null'", "NULL", "UTC_TIMESTAMP(6)", "1", "1"),
    planned!("finish_each", "PRIMARY", "UTC_TIMESTAMP(6)", "'[[1,1,1,0,\"completed\",\"null\",null]]'"),
    planned!("queues", "job_queue_fifo", "'q'", "'r'", "100"),
    planned!("ready_queues", "job_queue_reclaim", "'q'", "'r'", "100"),
    planned!("due_queues", "job_queue_reclaim", "UTC_TIMESTAMP(6)", "'q'", "'r'", "1000"),
    planned!("later_queues", "job_queue_reclaim", "'q'", "'r'", "100"),
    planned!("held_queues", "job_queue_reclaim", "'q'", "'r'", "100"),
    planned!("taken", "PRIMARY", "0", "'q7'", "'key'"),
    planned!("leased", "job_queue_ready", "0", "'q7'"),
    planned!("head", "job_queue_fifo", "0", "'q7'"),
];

impl Planned {
    /// The text with its arguments in it.
    fn statement(&self) -> String {
        let bare =
            self.text.lines().map(|line| line.split("--").next().unwrap()).collect::<Vec<_>>().join(" ");
        let ids: Vec<String> = (1..=100).map(|id| id.to_string()).collect();
        // What MariaDB alone reads cannot be explained, or holds only in a transaction.
        let mut parts = bare.split("/*M!");
        let first = parts.next().unwrap().to_owned();
        let bare = parts.fold(first, |text, part| text + part.split_once("*/").unwrap().1);
        let text = bare.replace("{prefix}", "").replace("{list}", &ids.join(","));
        self.arguments.iter().fold(text, |text, argument| text.replacen('?', argument, 1))
    }
}

/// How a table is read.
#[derive(Debug, PartialEq)]
struct Access {
    table: String,
    way: String,
    index: String,
}

/// Every access of a plan, and whether it sorts.
fn look_at(plan: &serde_json::Value, accesses: &mut Vec<Access>, sorts: &mut bool) {
    if let Some(array) = plan.as_array() {
        array.iter().for_each(|part| look_at(part, accesses, sorts));
    }
    let Some(object) = plan.as_object() else {
        return;
    };
    let word = |key: &str| object.get(key).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
    if object.contains_key("table_name") {
        accesses.push(Access { table: word("table_name"), way: word("access_type"), index: word("key") });
    }
    // MySQL's word, and MariaDB's.
    *sorts |=
        object.get("using_filesort").is_some_and(|value| value == true) || object.contains_key("filesort");
    object.values().for_each(|part| look_at(part, accesses, sorts));
}

impl Scene {
    async fn explain(&mut self, statement: &str) -> serde_json::Value {
        #[derive(diesel::QueryableByName)]
        struct Plan {
            #[diesel(sql_type = Text, column_name = "EXPLAIN")]
            plan: String,
        }
        let explain = format!("EXPLAIN FORMAT=JSON {statement}");
        let rows: Vec<Plan> = diesel::sql_query(explain).load(&mut self.conn).await.unwrap();
        serde_json::from_str(&rows[0].plan).unwrap()
    }

    /// Sees that every statement of the hot path goes by its index, reads no more of it than it must, and sorts nothing.
    async fn plans_go_by_their_indexes(&mut self, planned: impl Fn(&Planned) -> bool) {
        // MariaDB has one format, and no such variable.
        drop(self.conn.batch_execute("SET SESSION explain_json_format_version = 1").await);
        self.conn.batch_execute("ANALYZE TABLE job_queue").await.unwrap();
        self.conn.batch_execute("SET @leasehold_has_policies = 0").await.unwrap();
        let is_mariadb = self.fresh.url.starts_with("mariadb");
        // MariaDB cannot explain a block. What its steps read is counted by `claim_reads_at_most`.
        let is_explained = |one: &&Planned| planned(one) && !(is_mariadb && one.text.contains("/*!80000"));
        for planned in PLANNED.iter().filter(is_explained) {
            let plan = self.explain(&planned.statement()).await;
            let (mut accesses, mut sorts) = (Vec::new(), false);
            look_at(&plan, &mut accesses, &mut sorts);
            let jobs: Vec<&Access> = accesses.iter().filter(|access| is_jobs(access)).collect();
            let (name, index) = (planned.name, planned.index);
            // A unique key that is not there is found out while it is planned.
            let is_looked_up = plan.to_string().contains("const table");
            assert!(is_looked_up || !jobs.is_empty(), "{name} reads no jobs: {plan:#}");
            assert!(!sorts, "{name} sorts: {plan:#}");
            for access in jobs {
                let is_short = matches!(access.way.as_str(), "range" | "ref" | "const" | "eq_ref");
                assert!(access.index == index && is_short, "{name} does {access:?}: {plan:#}");
            }
        }
    }
}

/// By name, or by the alias that statements use. What is inserted into is not read.
fn is_jobs(access: &Access) -> bool {
    access.table == "j" || access.table == "job_queue"
}

/// A policy for another queue: whether there is one is a look at the first entry, in each branch. To count them, MySQL would start threads.
#[tokio::test(flavor = "multi_thread")]
async fn policies_of_other_queues_cost_a_claim_nothing() {
    #[derive(diesel::QueryableByName)]
    struct Plan {
        #[diesel(sql_type = Text, column_name = "EXPLAIN")]
        plan: String,
    }
    let _alone = ALONE.lock().await;
    let heads = PLANNED.iter().find(|planned| planned.name == "heads").unwrap().statement();
    for variable in crate::support::BOTH {
        let mut scene = Scene::with(variable, "CONCAT('q', n % 50)", "0", NOW).await;
        let names = Queues::named((0..8).map(|queue| format!("q{queue}"))).unwrap();
        scene.claim_reads_at_most(names.clone(), 2_500).await;
        for other in 0..1000 {
            let insert = format!(
                "INSERT INTO job_queue_config (pattern, paused, updated_at) VALUES ('o{other}', 1, UTC_TIMESTAMP(6))"
            );
            scene.conn.batch_execute(&insert).await.unwrap();
        }
        let eight = [heads.as_str(); 8].join(" UNION ALL ");
        let (before, asking) = (scene.reads().await, scene.reads().await);
        scene.conn.batch_execute(&eight).await.unwrap();
        let read = scene.reads().await - asking - (asking - before);
        assert!(read < 8 * 150, "{read} rows were read for the heads of eight queues");
        if variable == crate::support::MYSQL {
            let explain = format!("EXPLAIN FORMAT=TREE {heads}");
            let plan: Vec<Plan> = diesel::sql_query(explain).load(&mut scene.conn).await.unwrap();
            assert!(!plan[0].plan.contains("Count rows"), "{}", plan[0].plan);
        }
        scene.fresh.drop().await;
    }
}

/// A long queue, many priorities, many queues: the plans are the same.
#[tokio::test(flavor = "multi_thread")]
async fn every_statement_of_the_hot_path_goes_by_its_index() {
    let _alone = ALONE.lock().await;
    for variable in crate::support::BOTH {
        for (queue, priority) in [("'q7'", "0"), ("'q7'", "n % 100"), ("CONCAT('q', n % 50)", "0")] {
            let mut scene = Scene::with(variable, queue, priority, NOW).await;
            scene.plans_go_by_their_indexes(|_| true).await;
            scene.fresh.drop().await;
        }
    }
}

/// The server would rather walk all over a small table, and lock everything on its way.
#[tokio::test(flavor = "multi_thread")]
async fn what_locks_jobs_finds_them_by_id_in_a_small_queue_too() {
    let _alone = ALONE.lock().await;
    for variable in crate::support::BOTH {
        let mut scene = Scene::with(variable, "'q7'", "0", NOW).await;
        scene.conn.batch_execute("DELETE FROM job_queue WHERE id > 50").await.unwrap();
        scene.plans_go_by_their_indexes(|planned| planned.index == "PRIMARY").await;
        scene.fresh.drop().await;
    }
}

const NOW: &str = "UTC_TIMESTAMP(6)";
const LATER: &str = "UTC_TIMESTAMP(6) + INTERVAL 1 DAY";

#[tokio::test(flavor = "multi_thread")]
async fn the_length_of_the_queue_costs_nothing() {
    let _alone = ALONE.lock().await;
    for variable in crate::support::BOTH {
        let mut scene = Scene::with(variable, "'q'", "0", NOW).await;
        scene.claim_reads_at_most("q".parse().unwrap(), 600).await;
        scene.fresh.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_priorities_cost_nothing() {
    let _alone = ALONE.lock().await;
    for variable in crate::support::BOTH {
        let mut scene = Scene::with(variable, "'q'", "n % 100", NOW).await;
        scene.claim_reads_at_most("q".parse().unwrap(), 600).await;
        scene.fresh.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_wait_above_cost_a_step_for_each_priority() {
    let _alone = ALONE.lock().await;
    for variable in crate::support::BOTH {
        let at = format!("IF(n % 11 = 10, {NOW}, {LATER})");
        let mut scene = Scene::with(variable, "'q'", "10 - n % 11", &at).await;
        scene.claim_reads_at_most("q".parse().unwrap(), 2500).await;
        scene.fresh.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_queues_cost_a_step_for_each() {
    let _alone = ALONE.lock().await;
    for variable in crate::support::BOTH {
        let mut scene = Scene::with(variable, "CONCAT('q', n % 50)", "0", NOW).await;
        let names = Queues::named((0..50).map(|queue| format!("q{queue}"))).unwrap();
        scene.claim_reads_at_most(names, 8_000).await;
        scene.claim_reads_at_most("q*".parse().unwrap(), 8_000).await;
        scene.fresh.drop().await;
    }
}
