//! Many queues, many priorities, many queues with limits: what the server reads and how many statements it is sent, counted on the only connection
//! of the store.

use std::time::Duration;

use diesel::sql_types::Text;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::{AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{
    BatchSize, ConcurrencyLimit, Dequeue, NewJob, Prune, QueuePolicy, Queues, RateLimit, Store, Verdict,
};
use leasehold_mysql::MysqlStore;

use crate::support::{BOTH, Fresh, plain, users_pool};

struct Scene {
    fresh: Fresh,
    store: MysqlStore,
    pool: Pool<AsyncMysqlConnection>,
}

impl Scene {
    async fn on(variable: &str) -> Self {
        let fresh = Fresh::on(variable).await;
        fresh.store().await;
        let pool = users_pool(&fresh.url, &[]);
        pool.resize(1);
        let store = MysqlStore::builder().polling(false).from_pool(pool.clone());
        Self { fresh, store, pool }
    }

    /// Adds `count` jobs: job `n` has these values of queue, priority and available_at.
    async fn fill(&self, count: u32, queue: &str, priority: &str, available_at: &str) {
        let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL
                       SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
        let fill = format!(
            "INSERT INTO job_queue (queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at,
                                    updated_at)
             SELECT {queue}, 'work', {priority}, '{{}}', '{{}}', 5, {available_at}, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)
             FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n
                   FROM {digits} a, {digits} b, {digits} c, {digits} e, {digits} f) numbers
             WHERE n < {count}"
        );
        let mut conn = plain(&self.fresh.url).await;
        conn.batch_execute(&fill).await.unwrap();
        conn.batch_execute("ANALYZE TABLE job_queue").await.unwrap();
    }

    async fn counter(&self, name: &str) -> i64 {
        #[derive(diesel::QueryableByName)]
        struct Status {
            #[diesel(sql_type = Text, column_name = "Value")]
            value: String,
        }
        let mut conn = self.pool.get().await.unwrap();
        let show = format!("SHOW SESSION STATUS LIKE '{name}'");
        let rows: Vec<Status> = diesel::sql_query(show).load(&mut *conn).await.unwrap();
        rows[0].value.parse().unwrap()
    }

    /// What an operation costs: the rows and index entries that the server reads, and the statements that it is sent.
    async fn cost<T>(&self, operation: impl Future<Output = T>) -> (T, i64, i64) {
        let reads = async || {
            let mut sum = 0;
            for counter in
                ["Handler_read_first", "Handler_read_key", "Handler_read_next", "Handler_read_rnd_next"]
            {
                sum += self.counter(counter).await;
            }
            sum
        };
        // To ask is to read, too.
        let (asked, before) = (reads().await, reads().await);
        let sent = self.counter("Com_stmt_execute").await;
        let answer = operation.await;
        let sent = self.counter("Com_stmt_execute").await - sent;
        let asking = before - asked;
        (answer, reads().await - before - 2 * asking, sent)
    }
}

fn request(queues: &str, limit: u32) -> Dequeue {
    Dequeue::new(queues.parse::<Queues>().unwrap(), "w").unwrap().limit(limit).unwrap()
}

const NOW: &str = "UTC_TIMESTAMP(6)";
const LATER: &str = "UTC_TIMESTAMP(6) + INTERVAL 1 DAY";

/// Twenty thousand queues with a job for later each: a claim reads no more than if they were not there, and so does the question when to look again.
#[tokio::test(flavor = "multi_thread")]
async fn queues_with_jobs_for_later_cost_nothing() {
    for variable in BOTH {
        let mut costs = Vec::new();
        for later in [200, 20_000] {
            let scene = Scene::on(variable).await;
            scene.fill(later, "CONCAT('game:', LPAD(n, 5, '0'))", "0", LATER).await;
            let ask = Queues::all();
            let (next, next_reads, next_sent) = scene.cost(scene.store.next_available_at(&ask)).await;
            assert!(next.unwrap().unwrap().wait > Duration::from_secs(3600));
            scene.fill(50, "CONCAT('game:', LPAD(n * 4, 5, '0'))", "0", NOW).await;
            let (jobs, reads, sent) = scene.cost(scene.store.dequeue(&request("game:*", 10))).await;
            assert_eq!(jobs.unwrap().len(), 10);
            let (rest, ..) = scene.cost(scene.store.dequeue(&request("game:*", 100))).await;
            assert_eq!(rest.unwrap().len(), 40);
            costs.push((next_reads, next_sent, reads, sent));
            scene.fresh.drop().await;
        }
        let [(few_next, few_next_sent, few, few_sent), (next, next_sent, many, sent)] = costs[..] else {
            panic!("two scenes")
        };
        assert!(next <= few_next + 100 && next_sent <= few_next_sent, "{variable}: {costs:?}");
        assert!(many <= few + 200 && sent <= few_sent, "{variable}: {costs:?}");
    }
}

/// What was for later and has come due is found, whether a few jobs or more than a claim reads at once.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_for_later_that_have_come_due_are_found() {
    for variable in BOTH {
        for count in [30, 1500] {
            let scene = Scene::on(variable).await;
            scene.fill(count, "CONCAT('game:', LPAD(n, 5, '0'))", "0", LATER).await;
            let mut conn = plain(&scene.fresh.url).await;
            // A day passes.
            let age = "UPDATE job_queue SET available_at = available_at - INTERVAL 25 HOUR, updated_at = updated_at - INTERVAL 25 HOUR";
            conn.batch_execute(age).await.unwrap();
            let next = scene.store.next_available_at(&"game:*".parse().unwrap()).await.unwrap();
            assert_eq!(next.unwrap().wait, Duration::ZERO);
            let jobs = scene.store.dequeue(&request("game:*", 10_000)).await.unwrap();
            assert_eq!(jobs.len(), count as usize);
            scene.fresh.drop().await;
        }
    }
}

/// Four thousand priorities whose jobs are all for later, above one that is due: not a statement for each.
#[tokio::test(flavor = "multi_thread")]
async fn priorities_are_not_a_statement_each() {
    for variable in BOTH {
        let scene = Scene::on(variable).await;
        scene.fill(4000, "'q'", "n", LATER).await;
        let queues: Queues = "q".parse().unwrap();
        let (next, _, sent) = scene.cost(scene.store.next_available_at(&queues)).await;
        assert!(next.unwrap().unwrap().wait > Duration::from_secs(3600));
        assert!(sent <= 50, "{variable}: {sent} statements");
        scene.fill(1, "'q'", "-1", NOW).await;
        let (next, _, sent) = scene.cost(scene.store.next_available_at(&queues)).await;
        assert_eq!(next.unwrap().unwrap().wait, Duration::ZERO);
        assert!(sent <= 50, "{variable}: {sent} statements");
        let (jobs, reads, sent) = scene.cost(scene.store.dequeue(&request("q", 1))).await;
        assert_eq!(jobs.unwrap()[0].priority, -1);
        assert!(sent <= 50 && reads < 3 * 4000, "{variable}: {sent} statements, {reads} reads");
        scene.fresh.drop().await;
    }
}

/// Queues with limits that no claim has ever locked: their rows are made together.
#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_new_queues_with_limits_are_claimed_from_at_once() {
    for variable in BOTH {
        let scene = Scene::on(variable).await;
        scene.fill(2000, "CONCAT('room:', n)", "0", NOW).await;
        let policy = QueuePolicy {
            concurrency_limit: Some(ConcurrencyLimit::new(1).unwrap()),
            ..QueuePolicy::default()
        };
        scene.store.set_policy(&"room:*".parse().unwrap(), &policy).await.unwrap();
        let (jobs, _, sent) = scene.cost(scene.store.dequeue(&request("room:*", 2000))).await;
        assert_eq!(jobs.unwrap().len(), 2000);
        assert!(sent < 1000, "{variable}: {sent} statements");
        scene.fresh.drop().await;
    }
}

/// Rows of limits are removed when their queues are empty and their buckets full; a user without the right to delete them can prune all the same.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_limits_do_not_pile_up() {
    #[derive(diesel::QueryableByName)]
    struct Row {
        #[diesel(sql_type = Text)]
        queue_name: String,
    }
    for variable in BOTH {
        let scene = Scene::on(variable).await;
        let store = &scene.store;
        let limit = Some(ConcurrencyLimit::new(5).unwrap());
        let policy = QueuePolicy { concurrency_limit: limit, ..QueuePolicy::default() };
        store.set_policy(&"room:*".parse().unwrap(), &policy).await.unwrap();
        let policy = QueuePolicy { rate: Some(RateLimit::new(0.001, 5).unwrap()), ..QueuePolicy::default() };
        store.set_policy(&"room:rated".parse().unwrap(), &policy).await.unwrap();
        let jobs: Vec<NewJob> = ["room:done", "room:live", "room:rated"]
            .map(|queue| NewJob::builder(queue, "k").build().unwrap())
            .to_vec();
        store.enqueue(&jobs).await.unwrap();
        let leased = store.dequeue(&request("room:*", 10)).await.unwrap();
        assert_eq!(leased.len(), 3);
        let done: Vec<_> = leased.iter().filter(|job| job.queue.as_str() != "room:live").collect();
        let items: Vec<_> = done.iter().map(|job| (job.receipt(), Verdict::done())).collect();
        store.settle(&items).await.unwrap();

        let prune = Prune::older_than(Duration::from_secs(3600), BatchSize::MAX).unwrap();
        let user = format!("p_{}", scene.fresh.name);
        let mut conn = plain(&scene.fresh.url).await;
        conn.batch_execute(&format!("CREATE USER {user}@'%' IDENTIFIED BY 'word'")).await.unwrap();
        for table in
            ["job_queue", "job_history", "job_queue_config", "job_idempotency", "job_unique", "job_migration"]
        {
            let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {user}@'%'");
            conn.batch_execute(&grant).await.unwrap();
        }
        let grant = format!("GRANT SELECT, INSERT, UPDATE ON job_queue_limit TO {user}@'%'");
        conn.batch_execute(&grant).await.unwrap();
        let url = scene.fresh.url.replacen("leasehold@", &format!("{user}:word@"), 1);
        let limited = MysqlStore::connect(&url).await.unwrap();
        assert_eq!(limited.prune(&prune).await.unwrap(), 0);
        let names = "SELECT CAST(queue_name AS CHAR) AS queue_name FROM job_queue_limit ORDER BY queue_name";
        let rows: Vec<Row> = diesel::sql_query(names).load(&mut conn).await.unwrap();
        assert_eq!(rows.len(), 3);

        assert_eq!(store.prune(&prune).await.unwrap(), 0);
        let rows: Vec<Row> = diesel::sql_query(names).load(&mut conn).await.unwrap();
        let left: Vec<_> = rows.iter().map(|row| row.queue_name.as_str()).collect();
        assert_eq!(left, ["room:live", "room:rated"], "{variable}");
        // The next claim makes the row again.
        store.enqueue(&jobs[..1]).await.unwrap();
        assert_eq!(store.dequeue(&request("room:done", 1)).await.unwrap().len(), 1);
        conn.batch_execute(&format!("DROP USER {user}@'%'")).await.unwrap();
        scene.fresh.drop().await;
    }
}
