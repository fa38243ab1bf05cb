//! What the server does for a claim among a hundred thousand jobs: the number of rows that it reads does not grow with the backlog, and no
//! statement sorts it. On both servers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

use diesel::sql_types::Text;
use diesel_async::{AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{Dequeue, Queues, Store, Verdict};
use leasehold_mysql::MysqlStore;

/// How many jobs a claim asks for.
const LIMIT: u32 = 100;

/// The server counts for all together, so one test at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Many jobs, and a store with one connection, so that the server's counters of it are those of the store.
struct Scene {
    store: MysqlStore,
    conn: AsyncMysqlConnection,
    fresh: support::Fresh,
}

impl Scene {
    /// Row `n` has these values of queue, priority and available_at.
    async fn with(variable: &str, queue: &str, priority: &str, available_at: &str) -> Self {
        let fresh = support::Fresh::on(variable).await;
        let store = MysqlStore::builder().pool_size(1).polling(false).connect(&fresh.url).await.unwrap();
        store.migrate().await.unwrap();
        let mut conn = support::plain(&fresh.url).await;
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

    /// Sees that no statement of the store's read more than `bound` rows; the fewest of a few tries, since others may read
    /// meanwhile.
    async fn claim_reads_at_most(&mut self, queues: Queues, bound: i64) {
        let mut fewest = i64::MAX;
        for _ in 0..10 {
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

const NOW: &str = "UTC_TIMESTAMP(6)";
const LATER: &str = "UTC_TIMESTAMP(6) + INTERVAL 1 DAY";

#[tokio::test(flavor = "multi_thread")]
async fn the_length_of_the_queue_costs_nothing() {
    let _alone = ALONE.lock().await;
    for variable in support::BOTH {
        let mut scene = Scene::with(variable, "'q'", "0", NOW).await;
        scene.claim_reads_at_most("q".parse().unwrap(), 600).await;
        scene.fresh.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_priorities_cost_nothing() {
    let _alone = ALONE.lock().await;
    for variable in support::BOTH {
        let mut scene = Scene::with(variable, "'q'", "n % 100", NOW).await;
        scene.claim_reads_at_most("q".parse().unwrap(), 600).await;
        scene.fresh.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_wait_above_cost_a_step_for_each_priority() {
    let _alone = ALONE.lock().await;
    for variable in support::BOTH {
        let at = format!("IF(n % 11 = 10, {NOW}, {LATER})");
        let mut scene = Scene::with(variable, "'q'", "10 - n % 11", &at).await;
        scene.claim_reads_at_most("q".parse().unwrap(), 2500).await;
        scene.fresh.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_queues_cost_a_step_for_each() {
    let _alone = ALONE.lock().await;
    for variable in support::BOTH {
        let mut scene = Scene::with(variable, "CONCAT('q', n % 50)", "0", NOW).await;
        let names = Queues::named((0..50).map(|queue| format!("q{queue}"))).unwrap();
        scene.claim_reads_at_most(names, 8_000).await;
        scene.claim_reads_at_most("q*".parse().unwrap(), 8_000).await;
        scene.fresh.drop().await;
    }
}
