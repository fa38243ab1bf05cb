//! What the server does for a claim among a million jobs, and for a redrive among a hundred thousand dead letters: no walk over the table,
//! no sort of the backlog, and a bounded number of pages for each job, whatever the table's statistics say. And for a batch over ten
//! thousand queues: no list is compared with another each with each. And for a prune of idempotency keys: no walk over those that are kept.

use diesel::sql_types::Text;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use leasehold_postgres::{PgStore, Schema};
use serde_json::Value;

/// The functions, which plan their statement once: every call of it, and an execution to begin with.
const FUNCTIONS: &[(&str, &str, &str)] = &[
    (
        "dequeue_v2",
        include_str!("../../queries/dequeue_v2.sql"),
        "'{q}', 1, 1, 1, 'w', 0, '{}', '{}', '{}', '{}', '{}', '{}'",
    ),
    ("dequeue_few_v2", include_str!("../../queries/dequeue_few_v2.sql"), "'q', 1, 1, 'w', 16"),
    (
        "dequeue_one_v2",
        include_str!("../../queries/dequeue_one_v2.sql"),
        "'q', 1, 1, 'w', 0, '{}', '{}', '{}', '{}', '{}'",
    ),
    ("settle", include_str!("../../queries/settle.sql"), "'{1}', '{1}', '{null}', '{1}', '{1}', '{1}'"),
    ("settle_one", include_str!("../../queries/settle_one.sql"), "1, 1, 'null'"),
    ("settle_same", include_str!("../../queries/settle_same.sql"), "'{1}', 1, 'null'"),
    ("settle_v2", include_str!("../../queries/settle_v2.sql"), "'{1}', '{1}', '{null}', '{1}', '{1}', '{1}'"),
    ("settle_done_v2", include_str!("../../queries/settle_done_v2.sql"), "'{1}', '{1}', '{null}'"),
    ("settle_one_v2", include_str!("../../queries/settle_one_v2.sql"), "1, 1, 'null'"),
    ("settle_same_v2", include_str!("../../queries/settle_same_v2.sql"), "'{1}', 1, 'null'"),
    (
        "dequeue_limited_v3",
        include_str!("../../queries/dequeue_limited_v3.sql"),
        "'{q}', NULL, NULL, '', 1, 1, 'w', 0",
    ),
    ("stats", include_str!("../../queries/stats.sql"), "'{q}', NULL, NULL"),
    ("reclaim", include_str!("../../queries/reclaim.sql"), "1"),
    ("facts_v2", include_str!("../../queries/facts_v2.sql"), "'{q}', NULL, NULL, NULL"),
    ("heartbeat", include_str!("../../queries/heartbeat.sql"), "'{1}', '{1}', 1"),
];
const JOBS: u32 = 1_000_000;
/// How many jobs a claim asks for, and how many more it looks at.
const LIMIT: u64 = 100;
const WINDOW: u64 = 150;

/// A million rows in a schema of their own, with statistics from before they came: the planner believes in an empty table,
/// and what is planned once was planned for that.
struct Scene {
    conn: AsyncPgConnection,
    schema: Schema,
}

impl Scene {
    /// The tables, and nothing in them.
    async fn empty() -> Self {
        let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
        let schema = crate::support::fresh_schema();
        let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        let conn = diesel_async::pooled_connection::deadpool::Object::take(store.pool().get().await.unwrap());
        Self { conn, schema }
    }

    /// Prepares the statement of a function, under its settings.
    async fn prepare(&mut self, function: &str, body: &str) {
        settings(&mut self.conn, &self.schema, function).await;
        let body = body.replace("{schema}", &format!("\"{}\"", self.schema));
        self.conn.batch_execute(&format!("PREPARE {function} AS {body}; RESET ALL")).await.unwrap();
    }

    /// Fills the queue with `JOBS` rows, of which row `n` has these values of queue, priority and available_at.
    async fn with(queue: &str, priority: &str, available_at: &str) -> Self {
        let mut scene = Self::empty().await;
        let Self { conn, schema } = &mut scene;
        let prepare = |text: &str| text.replace("{schema}", &format!("\"{schema}\""));
        let off = format!("ALTER TABLE {schema}.job_queue SET (autovacuum_enabled = off)");
        conn.batch_execute(&off).await.unwrap();
        conn.batch_execute(&format!("VACUUM ANALYZE {schema}.job_queue")).await.unwrap();
        for (name, text, arguments) in FUNCTIONS {
            let body = body(text);
            settings(conn, schema, name).await;
            conn.batch_execute(&format!(
                "PREPARE {name} AS {}; EXECUTE {name}({arguments}); RESET ALL",
                prepare(body)
            ))
            .await
            .unwrap();
        }
        conn.batch_execute(&format!(
            "INSERT INTO {schema}.job_queue (queue_name, kind, priority, payload, headers, max_attempts, available_at,
                                             created_at, updated_at)
             SELECT {queue}, 'work', {priority}, '{{\"n\":1}}', '{{}}', 5, {available_at}, now(), now()
             FROM generate_series(1, {JOBS}) n;
             SELECT {schema}.count_again()"
        ))
        .await
        .unwrap();
        scene
    }

    async fn analyze(&mut self) {
        self.conn.batch_execute(&format!("ANALYZE {}.job_queue", self.schema)).await.unwrap();
    }

    /// What the server did for the statement, which is then undone.
    async fn plan(&mut self, name: &str, arguments: &str) -> Plan {
        settings(&mut self.conn, &self.schema, name).await;
        let plan = self.explained(&format!("{name}({arguments})")).await;
        self.conn.batch_execute("RESET ALL").await.unwrap();
        plan
    }

    /// The same for a prepared statement that is no function's, under the settings that hold.
    async fn explained(&mut self, call: &str) -> Plan {
        #[derive(diesel::QueryableByName)]
        struct Line {
            #[diesel(sql_type = Text, column_name = "QUERY PLAN")]
            line: String,
        }
        // A statement that compares each with each would run for minutes before its plan could be seen.
        self.conn.batch_execute("BEGIN; SET LOCAL statement_timeout = '60s'").await.unwrap();
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS) EXECUTE {call}");
        let shown: Vec<Line> = diesel::sql_query(explain).load(&mut self.conn).await.unwrap();
        self.conn.batch_execute("ROLLBACK; BEGIN").await.unwrap();
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {call}");
        let json: Vec<Json> = diesel::sql_query(explain).load(&mut self.conn).await.unwrap();
        self.conn.batch_execute("ROLLBACK").await.unwrap();
        let json: Value = json[0].plan.clone();
        let text = shown.into_iter().map(|line| line.line).collect::<Vec<_>>().join("\n");
        Plan { root: json[0]["Plan"].clone(), text }
    }

    /// The one text that a statement answers.
    async fn text(&mut self, statement: &str) -> String {
        #[derive(diesel::QueryableByName)]
        struct Answer {
            #[diesel(sql_type = Text)]
            text: String,
        }
        diesel::sql_query(statement).get_result::<Answer>(&mut self.conn).await.unwrap().text
    }

    async fn claim(&mut self, queues: &str) -> Plan {
        let none = "0, '{}', '{}', '{}', '{}', '{}', '{}'";
        self.plan("dequeue_v2", &format!("{queues}, {LIMIT}, {WINDOW}, 60000000, 'w', {none}")).await
    }

    async fn claim_one(&mut self, queue: &str) -> Plan {
        let none = "0, '{}', '{}', '{}', '{}', '{}'";
        self.plan("dequeue_one_v2", &format!("'{queue}', {LIMIT}, 60000000, 'w', {none}")).await
    }

    async fn claim_few(&mut self, queue: &str) -> Plan {
        self.plan("dequeue_few_v2", &format!("'{queue}', {LIMIT}, 60000000, 'w', 16")).await
    }

    /// Numbers of all queues. Of the jobs themselves only a few are looked at; besides, there is a row for each minute in which
    /// any become available.
    async fn stats_are_bounded(&mut self, what: &str) {
        let plan = self.plan("stats", "NULL, NULL, NULL").await;
        plan.each(&mut |node| {
            if node["Relation Name"] == "job_queue" {
                let kind = node["Node Type"].as_str().unwrap_or_default();
                assert_ne!(kind, "Seq Scan", "stats of {what}\n{}", plan.text);
                let count = |name| node[name].as_f64().unwrap_or(0.0);
                let read = (count("Actual Rows") + count("Rows Removed by Filter")) * count("Actual Loops");
                assert!(read <= 500.0, "stats of {what}: {kind} reads {read} jobs\n{}", plan.text);
            }
        });
        assert!(plan.pages() <= 2000, "stats of {what}: {} pages\n{}", plan.pages(), plan.text);
    }

    async fn claim_matching(&mut self) -> Plan {
        self.plan("dequeue_limited_v3", &format!("NULL, 'q', 'q\x7f', '', {LIMIT}, 60000000, 'w', 0")).await
    }

    /// Makes the first jobs leased, some of them for a time that has passed.
    async fn lease(&mut self) {
        let schema = &self.schema;
        let lease = format!(
            "UPDATE {schema}.job_queue SET locked_by = 'w', attempts = 1, lease_epoch = 1,
                 lease_until = now() + CASE WHEN id % 2 = 0 THEN interval '1 hour' ELSE interval '-1 hour' END
             WHERE id <= 200"
        );
        self.conn.batch_execute(&lease).await.unwrap();
    }

    async fn end(mut self) {
        self.conn.batch_execute(&format!("DROP SCHEMA {} CASCADE", self.schema)).await.unwrap();
    }
}

/// The statement that does the work in a function: the first one that is returned, or put into the columns of the answer.
fn body(function: &str) -> &str {
    let begin = ["RETURN QUERY\n", "BEGIN\n"].into_iter().find_map(|word| function.split_once(word));
    let statement = begin.unwrap().1.split_once(";\n").unwrap().0;
    statement.split_once("\nINTO ").map_or(statement, |(statement, _)| statement)
}

/// Makes the settings under which a function plans.
async fn settings(conn: &mut AsyncPgConnection, schema: &Schema, function: &str) {
    #[derive(diesel::QueryableByName)]
    struct Setting {
        #[diesel(sql_type = Text)]
        setting: String,
    }
    let asked = "SELECT unnest(proconfig) AS setting FROM pg_proc
                 WHERE pronamespace = quote_ident($1)::regnamespace AND proname = $2";
    let asked = diesel::sql_query(asked).bind::<Text, _>(schema.to_string()).bind::<Text, _>(function);
    let settings: Vec<Setting> = asked.load(conn).await.unwrap();
    assert!(!settings.is_empty(), "{function} has no settings of its own");
    if function == "dequeue_few_v2" {
        conn.batch_execute(PgStore::SETTINGS).await.unwrap(); // It is called nowhere else.
    }
    for Setting { setting } in settings {
        conn.batch_execute(&format!("SET {setting}")).await.unwrap();
    }
}

#[derive(diesel::QueryableByName)]
struct Json {
    #[diesel(sql_type = diesel::sql_types::Json, column_name = "QUERY PLAN")]
    plan: Value,
}

struct Plan {
    root: Value,
    text: String,
}

impl Plan {
    /// Looks at every node.
    fn each(&self, look: &mut impl FnMut(&Value)) {
        fn walk(node: &Value, look: &mut impl FnMut(&Value)) {
            look(node);
            node["Plans"].as_array().into_iter().flatten().for_each(|node| walk(node, look));
        }
        walk(&self.root, look);
    }

    fn pages(&self) -> u64 {
        let pages = |name| self.root[name].as_u64().unwrap_or(0);
        pages("Shared Hit Blocks") + pages("Shared Read Blocks")
    }

    /// No walk over the table of jobs, no sort of more rows than were looked at, few pages.
    fn is_bounded(&self, what: &str, pages: u64) {
        self.each(&mut |node| {
            let kind = node["Node Type"].as_str().unwrap_or_default();
            let walks = kind == "Seq Scan" && ["job_queue", "job_history"].contains(&name(node));
            assert!(!walks, "{what}: a sequential scan\n{}", self.text);
            let rows = node["Actual Rows"].as_f64().unwrap_or(0.0);
            let sorts = kind.contains("Sort") || kind.contains("Aggregate") || kind == "Hash";
            assert!(!sorts || rows <= 20.0 * WINDOW as f64, "{what}: {kind} of {rows} rows\n{}", self.text);
            let read = rows + node["Rows Removed by Filter"].as_f64().unwrap_or(0.0);
            assert!(read <= 50.0 * WINDOW as f64, "{what}: {kind} reads {read} rows\n{}", self.text);
            // Lists that are compared each with each would be seconds for a batch of ten thousand.
            let loops = node["Actual Loops"].as_f64().unwrap_or(1.0);
            let compared = match kind {
                "CTE Scan" => read * loops,
                _ => node["Rows Removed by Join Filter"].as_f64().unwrap_or(0.0) * loops,
            };
            assert!(
                compared <= 50.0 * WINDOW as f64,
                "{what}: {kind} compares {compared} rows\n{}",
                self.text
            );
        });
        assert!(self.pages() <= pages, "{what}: {} pages, at most {pages}\n{}", self.pages(), self.text);
    }
}

fn name(node: &Value) -> &str {
    node["Relation Name"].as_str().unwrap_or_default()
}

/// Pages for a claim of `LIMIT` jobs: what finding, locking and updating a row costs in the table and its indexes.
const CLAIM: u64 = 45 * LIMIT;

async fn claims_are_bounded(mut scene: Scene, queues: &str, what: &str, pages: u64) {
    let one = queues.trim_matches(['\'', '{', '}']).split(',').next().unwrap_or_default();
    for statistics in ["old statistics", "new statistics"] {
        let plan = scene.claim(queues).await;
        plan.is_bounded(&format!("{what}, {statistics}"), pages);
        let plan = scene.claim_one(one).await;
        plan.is_bounded(&format!("{what}, one queue, {statistics}"), pages);
        let plan = scene.claim_few(one).await;
        plan.is_bounded(&format!("{what}, as if they were few, {statistics}"), CLAIM);
        let plan = scene.claim_matching().await;
        plan.is_bounded(&format!("{what} by prefix, {statistics}"), 2 * pages);
        scene.stats_are_bounded(&format!("{what}, {statistics}")).await;
        scene.analyze().await;
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_ready_jobs() {
    let scene = Scene::with("'q'", "0", "now() - n * interval '1 ms'").await;
    claims_are_bounded(scene, "'{q}'", "a million ready jobs", CLAIM).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_jobs_of_a_later_time_and_a_higher_priority() {
    let later = "now() + CASE WHEN n % 100 = 0 THEN interval '-1 hour' ELSE n * interval '1 second' + interval '1 hour' END";
    let scene = Scene::with("'q'", "CASE WHEN n % 100 = 0 THEN 0 ELSE 9 END", later).await;
    claims_are_bounded(scene, "'{q}'", "a million scheduled jobs", CLAIM).await;
}

/// A floor leads past what was leased before, whose dead rows an old snapshot holds, and past the floor's own undecided
/// transactions, of which there are some.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_snapshot_and_a_floor() {
    let mut scene = Scene::with("'q'", "0", "now() - interval '1 hour' + n * interval '1 ms'").await;
    let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let mut reader = AsyncPgConnection::establish(&url).await.unwrap();
    let old = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1";
    reader.batch_execute(old).await.unwrap();
    let schema = scene.schema.clone();
    let leased = format!(
        "UPDATE {schema}.job_queue SET locked_by = 'w', attempts = 1, lease_until = now() + interval '1 hour' WHERE id <= 900000"
    );
    scene.conn.batch_execute(&leased).await.unwrap();
    let time = scene
        .text(&format!("SELECT available_at::text AS text FROM {schema}.job_queue WHERE id = 900001"))
        .await;
    let xmax = scene.text("SELECT pg_snapshot_xmax(pg_current_snapshot())::text AS text").await;
    let floor = format!("'{{0}}', '{{\"{time}\"}}', '{{900001}}', '{{{xmax}}}', '{{3,4,5}}'");
    let server = format!("{schema}.server_id()");
    for statistics in ["old statistics", "new statistics"] {
        let claim = format!("'{{q,r}}', {LIMIT}, {WINDOW}, 60000000, 'w', {server}, '{{q}}', {floor}");
        scene.plan("dequeue_v2", &claim).await.is_bounded(&format!("a floor, {statistics}"), CLAIM);
        let claim = format!("'q', {LIMIT}, 60000000, 'w', {server}, {floor}");
        scene.plan("dequeue_one_v2", &claim).await.is_bounded(&format!("one floor, {statistics}"), CLAIM);
        let pages = scene.claim_one("q").await.pages();
        assert!(pages > 2 * CLAIM, "{pages} pages without a floor: there is nothing to be stepped over");
        scene.analyze().await;
    }
    drop(reader);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_priorities() {
    let scene = Scene::with("'q'", "n % 100", "now() - n * interval '1 ms'").await;
    claims_are_bounded(scene, "'{q}'", "a hundred priorities", CLAIM).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_queues() {
    let scene = Scene::with("'q' || n % 50", "n / 50 % 3", "now() - n * interval '1 ms'").await;
    let queues: Vec<String> = (0..50).map(|queue| format!("q{queue}")).collect();
    // Each queue is asked for a whole window before they are merged.
    claims_are_bounded(scene, &format!("'{{{}}}'", queues.join(",")), "fifty queues", 50 * WINDOW + CLAIM)
        .await;
}

/// Queues that have nothing but jobs for later are not visited, neither by a claim over their prefix nor by the question when to look again.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_queues_of_tomorrow() {
    let tomorrow = "now() + n * interval '1 ms' + interval '1 day'";
    let mut scene = Scene::with("'q' || n % 20000", "n % 2", tomorrow).await;
    let schema = &scene.schema;
    let due = format!(
        "UPDATE {schema}.job_queue SET available_at = now() - interval '1 minute' WHERE id IN (7, 10007, 500007);
         UPDATE {schema}.job_queue SET updated_at = available_at - interval '1 second' WHERE id = 7"
    );
    scene.conn.batch_execute(&due).await.unwrap();
    for statistics in ["old", "new"] {
        let plan = scene.claim_matching().await;
        plan.is_bounded(&format!("queues of tomorrow, {statistics} statistics"), 10 * LIMIT);
        let leased = plan.root["Actual Rows"].as_f64();
        assert_eq!(leased, Some(3.0), "{}", plan.text);
        let plan = scene.plan("facts_v2", "NULL, 'q', 'q\x7f', 100").await;
        plan.is_bounded(&format!("facts of tomorrow, {statistics} statistics"), 50 * LIMIT);
        scene.analyze().await;
    }
}

/// Each has a row in `job_queue_limit`, too.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_queues_in_order() {
    let mut scene = Scene::with("'q' || n % 10000", "0", "now() - n * interval '1 ms'").await;
    let schema = &scene.schema;
    let limited = format!(
        "INSERT INTO {schema}.job_queue_config (pattern, queue_order) VALUES ('q*', 'fifo');
         INSERT INTO {schema}.job_queue_limit (queue_name) SELECT 'q' || n FROM generate_series(0, 9999) n"
    );
    scene.conn.batch_execute(&limited).await.unwrap();
    for statistics in ["old", "new"] {
        let plan = scene.claim_matching().await;
        plan.is_bounded(&format!("ten thousand queues, {statistics} statistics"), 2 * CLAIM);
        scene.conn.batch_execute(&format!("ANALYZE {}.job_queue_limit", scene.schema)).await.unwrap();
        scene.analyze().await;
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verdicts_heartbeats_reclaims_and_looks() {
    let mut scene = Scene::with("'q'", "n % 10", "now() - n * interval '1 ms'").await;
    scene.lease().await;
    let all = |value: &dyn Fn(u32) -> String| {
        format!("'{{{}}}'", (1..=100).map(value).collect::<Vec<_>>().join(","))
    };
    let ids = all(&|n| (2 * n).to_string());
    let [ones, nulls, none, half] = ["1", "\"null\"", "NULL", "0.5"].map(|value| all(&|_| value.to_owned()));
    for statistics in ["old", "new"] {
        let what = |what: &str| format!("{what}, {statistics} statistics");
        let plan = scene.plan("settle_done_v2", &format!("{ids}, {ones}, {nulls}")).await;
        plan.is_bounded(&what("settle done"), 40 * LIMIT);
        for name in ["settle_one", "settle_one_v2"] {
            let plan = scene.plan(name, "2, 1, 'null'").await;
            plan.is_bounded(&what(name), 40);
        }
        for name in ["settle_same", "settle_same_v2"] {
            let plan = scene.plan(name, &format!("{ids}, 1, 'null'")).await;
            plan.is_bounded(&what(name), 40 * LIMIT);
        }
        for name in ["settle", "settle_v2"] {
            let plan = scene.plan(name, &format!("{ids}, {ones}, {nulls}, {ones}, {none}, {half}")).await;
            plan.is_bounded(&what(name), 60 * LIMIT);
        }
        let plan = scene.plan("heartbeat", &format!("{ids}, {ones}, 60000000")).await;
        plan.is_bounded(&what("heartbeat"), 45 * LIMIT);
        let plan = scene.plan("reclaim", "100").await;
        plan.is_bounded(&what("reclaim"), 60 * LIMIT);
        let plan = scene.plan("facts_v2", "'{q}', NULL, NULL, NULL").await;
        plan.is_bounded(&what("facts"), 30 * LIMIT);
        scene.analyze().await;
    }
    scene.end().await;
}

/// Half of them are of another queue and have smaller ids; every second one has a unique key.
const DEAD_LETTERS: u32 = 100_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_dead_letters() {
    let mut scene = Scene::empty().await;
    let schema = &scene.schema;
    let fill = format!(
        "ALTER TABLE {schema}.job_history SET (autovacuum_enabled = off);
         VACUUM ANALYZE {schema}.job_history;
         INSERT INTO {schema}.job_history (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch,
                                           status_final, last_error, redrives, created_at, finished_at)
         SELECT n, CASE WHEN n <= {DEAD_LETTERS} / 2 THEN 'other' ELSE 'q' END, 'work', 0, CASE WHEN n % 2 = 0 THEN 'key ' || n END,
                '{{\"n\":1}}', '{{}}', 5, 5, 5, 'dead_letter', '\"no\"', 0, now(), now()
         FROM generate_series(1, {DEAD_LETTERS}) n"
    );
    for statement in fill.split(';') {
        scene.conn.batch_execute(statement).await.unwrap(); // VACUUM is no part of a batch.
    }
    scene.prepare("redrive", body(include_str!("../../queries/redrive.sql"))).await;
    let ids: Vec<String> = (1..=LIMIT).map(|n| (n * 997).to_string()).collect();
    let ids = format!("NULL, '', E'\\x7f', NULL, '{{{}}}'", ids.join(","));
    let requests = [
        ("one queue", "'{q}', NULL, NULL, NULL, NULL"),
        ("two queues", "'{q,other}', NULL, NULL, NULL, NULL"),
        ("a kind of one queue", "'{q}', NULL, NULL, 'work', NULL"),
        ("all", "NULL, '', E'\\x7f', NULL, NULL"),
        ("a prefix", "NULL, 'q', E'q\\x7f', NULL, NULL"),
        ("ids", ids.as_str()),
    ];
    for statistics in ["old", "new"] {
        for (what, arguments) in requests {
            let plan = scene.plan("redrive", &format!("{arguments}, {LIMIT}")).await;
            plan.is_bounded(&format!("redrive of {what}, {statistics} statistics"), 60 * LIMIT);
        }
        scene.conn.batch_execute(&format!("ANALYZE {}.job_history", scene.schema)).await.unwrap();
    }
    scene.end().await;
}

/// The jobs of the largest batch, each in a queue of its own.
const BATCH: u64 = 10_000;

/// There are some policies, of which one holds for some of the queues.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_over_ten_thousand_queues() {
    let mut scene = Scene::empty().await;
    let policies = format!(
        "INSERT INTO {}.job_queue_config (pattern, max_attempts) VALUES ('other', 3), ('other:*', 3), ('q1*', 3)",
        scene.schema
    );
    scene.conn.batch_execute(&policies).await.unwrap();
    scene.prepare("enqueue_v2", body(include_str!("../../queries/enqueue_v2.sql"))).await;
    let queues: Vec<String> = (1..=BATCH).map(|queue| format!("q{queue}")).collect();
    let all = |value: &str| format!("array_fill({value}, ARRAY[{BATCH}])");
    let columns =
        ["'k'::text", "0", "'1'::text", "'{}'::text", "NULL::integer", "NULL::bigint", "NULL::timestamptz"];
    let columns = columns.map(all).join(", ");
    let plan = scene.plan("enqueue_v2", &format!("'{{{}}}', {columns}", queues.join(","))).await;
    plan.each(&mut |node| {
        let count = |name| node[name].as_f64().unwrap_or(0.0);
        let rows =
            count("Actual Rows") + count("Rows Removed by Filter") + count("Rows Removed by Join Filter");
        let (kind, rows) = (&node["Node Type"], rows * node["Actual Loops"].as_f64().unwrap_or(1.0));
        assert!(rows <= 5.0 * BATCH as f64, "{kind} looks at {rows} rows\n{}", plan.text);
    });
    scene.end().await;
}

const KEYS: u32 = 100_000;

/// A prune of idempotency keys goes by the index, whether none has passed, a few have or all, and whatever the statistics say.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_idempotency_keys() {
    for (what, kept_until, count) in [
        ("none passed", "now() + n * interval '1 hour'", 0),
        ("ten passed", "now() + (n - 10) * interval '1 hour'", 10),
        ("all passed, in any order", "now() - n * 7919 % 100003 * interval '1 second'", LIMIT),
    ] {
        let mut scene = Scene::empty().await;
        let schema = &scene.schema;
        let prune = include_str!("../../queries/prune.sql").replace("{schema}", &format!("\"{schema}\""));
        let fill = format!(
            "ALTER TABLE {schema}.job_idempotency SET (autovacuum_enabled = off);
             VACUUM ANALYZE {schema}.job_idempotency;
             INSERT INTO {schema}.job_idempotency (key, kept_until) SELECT 'key ' || n, {kept_until} FROM generate_series(1, {KEYS}) n;
             SET plan_cache_mode = force_custom_plan"
        );
        for statement in fill.split(';') {
            scene.conn.batch_execute(statement).await.unwrap(); // VACUUM is no part of a batch.
        }
        let types = "bigint, text[], text, text, text[], bigint[], integer, boolean";
        scene.conn.batch_execute(&format!("PREPARE prune ({types}) AS {prune}")).await.unwrap();
        for statistics in ["old", "new"] {
            let what = format!("{what}, {statistics} statistics");
            let plan = scene.explained(&format!("prune(0, NULL, '', NULL, NULL, NULL, {LIMIT}, true)")).await;
            let mut forgotten = None;
            plan.each(&mut |node| {
                let kind = node["Node Type"].as_str().unwrap_or_default();
                let walks = name(node) == "job_idempotency" && kind == "Seq Scan";
                assert!(!walks, "{what}: a sequential scan\n{}", plan.text);
                if node["Subplan Name"] == "CTE forgotten" {
                    forgotten = node["Actual Rows"].as_f64();
                }
            });
            assert_eq!(forgotten, Some(count as f64), "{what}\n{}", plan.text);
            assert!(plan.pages() <= 100 + 10 * LIMIT, "{what}: {} pages\n{}", plan.pages(), plan.text);
            scene.conn.batch_execute(&format!("ANALYZE {}.job_idempotency", scene.schema)).await.unwrap();
        }
        scene.end().await;
    }
}
