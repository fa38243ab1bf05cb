//! `stats` does not count what waits: it adds up rows that every statement leaves behind. At every moment those must say what the
//! jobs themselves would.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chrono::{DurationRound, TimeDelta};
use diesel::sql_types::{BigInt, Nullable, Text};
use diesel_async::{AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{
    BatchSize, ConcurrencyLimit, Delay, Dequeue, JobFilter, JobState, Json, NewJob, OnExpiry, Prune,
    QueuePolicy, Queues, Redrive, Schedule, Store, StoreError, Verdict,
};
use leasehold_postgres::{PgStore, Schema};
use tokio::task::JoinSet;

/// How many tasks work at once, and how many things each of them does.
const TASKS: usize = 6;
const DEEDS: usize = 150;

/// What the jobs say and the numbers do not, or the other way round.
const DISAGREEMENT: &str = "
WITH truth AS (
    SELECT j.queue_name::text AS queue, s.state, j.attempts, count(*) AS jobs,
           CASE s.state WHEN 'ready' THEN min(min(j.available_at)) OVER (PARTITION BY j.queue_name, s.state) END AS first
    FROM {schema}.job_queue j
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN j.lease_until > statement_timestamp() THEN 'running'
            WHEN j.lease_until IS NOT NULL THEN 'expired'
            WHEN j.attempts >= j.max_attempts THEN 'exhausted'
            WHEN j.available_at <= statement_timestamp() THEN 'ready'
            WHEN j.attempts = 0 THEN 'scheduled'
            ELSE 'retrying' END AS state
    ) s
    GROUP BY j.queue_name, s.state, j.attempts
    UNION ALL
    SELECT h.queue_name, 'dead_letter', 0, count(*), NULL
    FROM {schema}.job_history h WHERE h.status_final = 'dead_letter' GROUP BY h.queue_name
), told AS MATERIALIZED (
    SELECT queue_name AS queue, state, attempts, count AS jobs, first_available_at AS first
    FROM {schema}.stats(NULL, NULL, NULL) WHERE queue_name IS NOT NULL
)
SELECT 'the jobs: ' || x::text AS line FROM (SELECT * FROM truth EXCEPT ALL SELECT * FROM told) x
UNION ALL
SELECT 'the numbers: ' || x::text FROM (SELECT * FROM told EXCEPT ALL SELECT * FROM truth) x
ORDER BY line";

#[derive(diesel::QueryableByName)]
struct Line {
    #[diesel(sql_type = Nullable<Text>)]
    line: Option<String>,
}

#[derive(diesel::QueryableByName)]
struct Count {
    #[diesel(sql_type = BigInt)]
    count: i64,
}

struct Scene {
    store: PgStore,
    schema: Schema,
}

impl Scene {
    async fn new() -> Self {
        let schema = crate::support::fresh_schema();
        let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
        let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        Self { store, schema }
    }

    fn sql(&self, text: &str) -> String {
        text.replace("{schema}", &format!("\"{}\"", self.schema))
    }

    async fn run(&self, text: &str) {
        self.store.pool().get().await.unwrap().batch_execute(&self.sql(text)).await.unwrap();
    }

    async fn number(&self, text: &str) -> i64 {
        let mut conn = self.store.pool().get().await.unwrap();
        let count: Count = diesel::sql_query(self.sql(text)).get_result(&mut conn).await.unwrap();
        count.count
    }

    /// What jobs and numbers do not agree on, in one snapshot.
    async fn disagreement(&self, conn: &mut AsyncPgConnection) -> String {
        conn.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
        let lines: Vec<Line> = diesel::sql_query(self.sql(DISAGREEMENT)).load(conn).await.unwrap();
        conn.batch_execute("COMMIT").await.unwrap();
        lines.into_iter().filter_map(|line| line.line).collect::<Vec<_>>().join("\n")
    }

    async fn agrees(&self, when: &str) {
        let mut conn = self.store.pool().get().await.unwrap();
        let disagreement = self.disagreement(&mut conn).await;
        assert!(disagreement.is_empty(), "{when}\n{disagreement}");
    }

    /// Sums up now, as if it were time, and counts anew if `again`.
    async fn fold(&self, again: bool) {
        let count_at = if again { "now()" } else { "now() + interval '1 hour'" };
        self.run(&format!(
            "UPDATE {{schema}}.job_queue_upkeep SET fold_at = now(), count_at = {count_at};
             SELECT {{schema}}.fold_counts()"
        ))
        .await;
    }

    /// Something that a producer, a worker or an administrator would do.
    async fn deed(&self, dice: &mut fastrand::Rng) -> Result<(), StoreError> {
        let limit = BatchSize::new(dice.u32(1..20)).unwrap();
        match dice.u32(0..14) {
            0..=3 => {
                let jobs: Vec<NewJob> = (0..dice.usize(1..8)).map(|_| some_job(dice)).collect();
                self.store.enqueue(&jobs).await?;
            }
            4..=8 => {
                let queues = match dice.u32(0..4) {
                    0 => Queues::all(),
                    1 => Queues::named(["a", "b", "c"]).unwrap(),
                    _ => Queues::named([["a", "b", "c"][dice.usize(0..3)]]).unwrap(),
                };
                let lease = Duration::from_secs(dice.u64(1..30));
                let request = Dequeue::new(queues, "w").unwrap().limit(limit.get()).unwrap();
                let jobs = self.store.dequeue(&request.lease_for(lease).unwrap()).await?;
                let mut items: Vec<_> = jobs.iter().map(|job| (job.receipt(), some_verdict(dice))).collect();
                items.truncate(dice.usize(0..=items.len()));
                self.store.settle(&items).await?;
            }
            9 => drop(self.store.reclaim(limit).await?),
            10 => drop(self.store.redrive(&Redrive::all(limit)).await?),
            11 => drop(self.store.prune(&Prune::older_than(Duration::ZERO, limit).unwrap()).await?),
            12 => {
                self.run(
                    "UPDATE {schema}.job_queue SET lease_until = now() WHERE id IN (
                         SELECT id FROM {schema}.job_queue WHERE lease_until > now() LIMIT 5 FOR UPDATE SKIP LOCKED)",
                )
                .await; // As if a long time had passed.
            }
            _ => {
                let jobs = self.store.jobs(&JobFilter::default()).await?.items;
                let Some(job) = dice.choice(&jobs) else {
                    return Ok(());
                };
                match dice.u32(0..3) {
                    0 => self.store.promote(job.id).await?,
                    1 => self.store.discard(job.id, Json::error("no use")).await?,
                    _ => self.store.retry_later(job.id, Schedule::After(some_delay(dice))).await?,
                }
            }
        }
        Ok(())
    }
}

fn some_delay(dice: &mut fastrand::Rng) -> Delay {
    let most = [1, 60_000, 120_000, 7_200_000][dice.usize(0..4)];
    Delay::new(Duration::from_millis(dice.u64(0..most))).unwrap()
}

fn some_job(dice: &mut fastrand::Rng) -> NewJob {
    let queue = ["a", "b", "c"][dice.usize(0..3)];
    let mut job = NewJob::builder(queue, "work").priority(dice.i32(0..3)).max_attempts(dice.u32(1..4));
    if dice.bool() {
        job = job.delay(some_delay(dice).get());
    }
    if dice.u32(0..4) == 0 {
        job = job.unique_key(dice.u32(0..9).to_string());
    }
    job.build().unwrap()
}

fn some_verdict(dice: &mut fastrand::Rng) -> Verdict {
    match dice.u32(0..8) {
        0 => Verdict::retry("no"),
        1 => Verdict::retry_after("no", some_delay(dice).get()).unwrap(),
        2 => Verdict::snooze(some_delay(dice).get()).unwrap(),
        3 => Verdict::dead("never"),
        4 => Verdict::discard("no use"),
        5 => Verdict::release(),
        6 => Verdict::done_with(&dice.u32(0..9)).unwrap(),
        _ => Verdict::done(),
    }
}

/// Everything at once, looked at all the time, summed up and counted anew meanwhile.
async fn numbers_agree_at_every_moment(policy: Option<QueuePolicy>) {
    let scene = Arc::new(Scene::new().await);
    if let Some(policy) = policy {
        scene.store.set_policy(&"a".parse().unwrap(), &policy).await.unwrap();
    }
    let at_work = Arc::new(AtomicUsize::new(TASKS));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (scene, at_work, seed) = (Arc::clone(&scene), Arc::clone(&at_work), fastrand::u64(..));
        tasks.spawn(async move {
            let mut dice = fastrand::Rng::with_seed(seed);
            for _ in 0..DEEDS {
                match scene.deed(&mut dice).await {
                    Ok(()) | Err(StoreError::NotFound(_) | StoreError::Conflict { .. }) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            at_work.fetch_sub(1, Ordering::Relaxed);
        });
    }
    for sums_up in [false, true] {
        let (scene, at_work) = (Arc::clone(&scene), Arc::clone(&at_work));
        tasks.spawn(async move {
            while AtomicUsize::load(&at_work, Ordering::Relaxed) > 0 {
                if sums_up {
                    scene.fold(fastrand::u32(0..50) == 0).await; // What is counted anew is right again.
                } else {
                    scene.agrees("while others work").await;
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    scene.agrees("in the end").await;
    scene.fold(false).await;
    scene.agrees("summed up").await;
    assert!(
        scene.number("SELECT sum(count)::bigint AS count FROM {schema}.stats(NULL, NULL, NULL)").await > 0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_agree_with_the_jobs_at_every_moment() {
    numbers_agree_at_every_moment(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_agree_with_the_jobs_of_queues_with_policies() {
    let policy = QueuePolicy {
        concurrency_limit: Some(ConcurrencyLimit::new(3).unwrap()),
        on_expiry: Some(OnExpiry::Backoff),
        ..QueuePolicy::default()
    };
    numbers_agree_at_every_moment(Some(policy)).await;
}

/// Which queues are small is known by experience, so the claim for those is called by its name.
#[tokio::test]
async fn claims_of_small_queues_are_counted() {
    let scene = Scene::new().await;
    let jobs: Vec<NewJob> = (0..9).map(|_| NewJob::builder("q", "work").build().unwrap()).collect();
    scene.store.enqueue(&jobs).await.unwrap();
    let leased = scene.store.dequeue(&Dequeue::new("q", "w").unwrap().limit(4).unwrap()).await.unwrap();
    let again =
        leased.iter().take(2).map(|job| (job.receipt(), Verdict::retry_after("no", Duration::ZERO).unwrap()));
    scene.store.settle(&again.collect::<Vec<_>>()).await.unwrap();
    scene.run("SELECT * FROM {schema}.dequeue_few('q', 6, 60000000, 'w', 16, 1000000)").await;
    scene.agrees("some were tried before").await;
    assert_eq!(
        scene.number("SELECT count(*) AS count FROM {schema}.job_queue WHERE lease_until IS NOT NULL").await,
        8
    );
}

#[tokio::test]
async fn one_row_is_made_of_many() {
    let scene = Scene::new().await;
    let hour = scene.store.now().await.unwrap().duration_trunc(TimeDelta::hours(1)).unwrap();
    let later = |minute| {
        let at = hour + TimeDelta::hours(2) + TimeDelta::minutes(minute);
        NewJob::builder("q", "work").at(at).build().unwrap()
    };
    for n in 0..50 {
        scene.store.enqueue(&[NewJob::builder("q", "work").build().unwrap(), later(n % 2)]).await.unwrap();
    }
    let rows = "SELECT count(*) AS count FROM {schema}.job_queue_count";
    assert_eq!(scene.number(rows).await, 100);
    scene.fold(false).await;
    let sums = scene.number(rows).await;
    assert!(
        (3..=4).contains(&sums),
        "one for now, or two if it has become another minute, and one for each minute: {sums}"
    );
    scene.agrees("summed up").await;
    scene.store.enqueue(&[later(0), later(0), later(1)]).await.unwrap();
    scene.run("UPDATE {schema}.job_queue_upkeep SET fold_at = now() + interval '1 hour'").await;
    scene.run("SELECT {schema}.fold_counts()").await; // It is not time.
    let deltas = "SELECT count(*) AS count FROM {schema}.job_queue_count WHERE NOT is_sum";
    assert_eq!(scene.number(deltas).await, 2);
    scene.fold(false).await;
    assert_eq!(scene.number(deltas).await, 0);
    assert_eq!(scene.number(rows).await, sums + 2, "sums stay until they are due: there may be many");
    scene.agrees("summed up twice").await;
}

#[tokio::test]
async fn numbers_come_right_after_changes_by_hand() {
    let scene = Scene::new().await;
    let jobs: Vec<NewJob> = (0..9).map(|_| NewJob::builder("q", "work").build().unwrap()).collect();
    scene.store.enqueue(&jobs).await.unwrap();
    scene.run("DELETE FROM {schema}.job_queue WHERE id % 3 = 0").await;
    let ready = async || {
        let stats = scene.store.stats(&Queues::named(["q"]).unwrap()).await.unwrap();
        stats[0].states.get(&JobState::Ready).copied()
    };
    assert_eq!(ready().await, Some(9), "nobody has counted");
    scene.run("SELECT {schema}.count_again()").await;
    assert_eq!(ready().await, Some(6));
    scene.run("DELETE FROM {schema}.job_queue WHERE id % 2 = 0").await;
    scene.fold(true).await;
    assert_eq!(ready().await, Some(3), "once in an hour it is counted anyway");
}

#[tokio::test]
async fn what_was_rolled_back_was_never_counted() {
    let scene = Scene::new().await;
    scene
        .run("BEGIN; SELECT {schema}.enqueue_one('q', 'work', 0, '1', '{}', NULL, NULL, NULL); ROLLBACK")
        .await;
    assert_eq!(scene.number("SELECT count(*) AS count FROM {schema}.job_queue_count").await, 0);
    scene.agrees("rolled back").await;
}

/// As with a publication of all tables, which refuses to delete rows that nothing identifies.
#[tokio::test]
async fn rows_are_summed_up_while_they_are_published() {
    let scene = Scene::new().await;
    scene.run(&format!("CREATE PUBLICATION \"{}\" FOR TABLE {{schema}}.job_queue_count", scene.schema)).await;
    for _ in 0..2 {
        scene.store.enqueue(&[NewJob::builder("q", "work").build().unwrap()]).await.unwrap();
    }
    let rows = "SELECT count(*) AS count FROM {schema}.job_queue_count WHERE NOT is_sum";
    assert_eq!(scene.number(rows).await, 2);
    scene.fold(false).await;
    assert_eq!(scene.number(rows).await, 0);
}

/// Who reads has the time of his statement, and may see what somebody else has done a little later.
#[tokio::test]
async fn a_reader_whose_time_is_old_agrees() {
    let scene = Scene::new().await;
    let mut reader = scene.store.pool().get().await.unwrap();
    let mut writer = scene.store.pool().get().await.unwrap();
    let lock = "SELECT pg_advisory_lock(hashtext('{schema}'))";
    writer.batch_execute(&scene.sql(lock)).await.unwrap();
    // The time of a statement in a procedure is that of its call; the second transaction has a snapshot of its own.
    let prepare =
        "SET default_transaction_isolation = 'repeatable read'; CREATE TEMP TABLE found (line text)";
    reader.batch_execute(prepare).await.unwrap();
    let read = scene.sql(&format!(
        "DO $do$ BEGIN
             PERFORM pg_advisory_lock(hashtext('{{schema}}'));
             COMMIT;
             INSERT INTO found SELECT line FROM ({DISAGREEMENT}) x;
         END $do$"
    ));
    let waits = "SELECT count(*) AS count FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                 AND objid = hashtext('{schema}')::bit(32)::bigint::oid";
    let reading = async { reader.batch_execute(&read).await.unwrap() };
    let writing = async {
        while scene.number(waits).await == 0 {
            tokio::task::yield_now().await;
        }
        let jobs =
            [NewJob::builder("q", "work").build().unwrap(), NewJob::builder("r", "work").build().unwrap()];
        scene.store.enqueue(&jobs).await.unwrap();
        assert_eq!(scene.store.dequeue(&Dequeue::new("r", "w").unwrap()).await.unwrap().len(), 1);
        scene.fold(true).await;
        writer.batch_execute(&scene.sql("SELECT pg_advisory_unlock(hashtext('{schema}'))")).await.unwrap();
    };
    tokio::join!(reading, writing);
    let lines: Vec<Line> = diesel::sql_query("SELECT line FROM found").load(&mut reader).await.unwrap();
    let lines: Vec<String> = lines.into_iter().filter_map(|line| line.line).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

#[tokio::test]
async fn numbers_survive_the_loss_of_the_upkeep() {
    let scene = Scene::new().await;
    scene.store.enqueue(&[NewJob::builder("q", "work").build().unwrap()]).await.unwrap();
    scene.run("TRUNCATE {schema}.job_queue_upkeep; SELECT {schema}.fold_counts(); SELECT {schema}.fold_counts()").await;
    let rows = "SELECT count(*) AS count FROM {schema}.job_queue_count WHERE NOT is_sum";
    assert_eq!(scene.number(rows).await, 0, "nobody sums up any more");
    scene.agrees("counted again").await;
}

#[tokio::test]
async fn who_may_not_write_sums_up_nothing() {
    let scene = Scene::new().await;
    scene.store.enqueue(&[NewJob::builder("q", "work").build().unwrap()]).await.unwrap();
    scene.run("BEGIN READ ONLY; SELECT {schema}.fold_counts(); COMMIT").await;
    assert_eq!(scene.number("SELECT count(*) AS count FROM {schema}.job_queue_count WHERE is_sum").await, 0);
}

/// More rows than are summed up at once, in a time that is too short to count the jobs.
#[tokio::test]
async fn a_great_many_rows_are_summed_up_bit_by_bit() {
    let scene = Scene::new().await;
    scene
        .run(
            "INSERT INTO {schema}.job_queue_count (queue_name, attempts, jobs)
         SELECT 'q', 0, CASE n % 2 WHEN 0 THEN 1 ELSE -1 END FROM generate_series(1, 70000) n",
        )
        .await;
    let rows = "SELECT count(*) AS count FROM {schema}.job_queue_count";
    scene.fold(false).await;
    assert!((20_000..=20_001).contains(&scene.number(rows).await));
    let soon = "SELECT count(*) AS count FROM {schema}.job_queue_upkeep WHERE fold_at <= now() + interval '10 seconds'";
    assert_eq!(scene.number(soon).await, 1, "the rest has to wait");
    scene.fold(false).await;
    assert_eq!(scene.number(rows).await, 0);
}

#[tokio::test]
async fn where_nothing_happens_nothing_is_written() {
    let scene = Scene::new().await;
    for queue in ["busy", "idle"] {
        scene.store.enqueue(&[NewJob::builder(queue, "work").build().unwrap()]).await.unwrap();
    }
    scene.run("UPDATE {schema}.job_queue SET available_at = now() - interval '1 hour'").await;
    scene.fold(true).await;
    let sums = "SELECT count(*) AS count FROM {schema}.job_queue_count WHERE is_sum AND due IS NULL";
    assert_eq!(scene.number(sums).await, 2);
    let place = "SELECT (ctid::text::point)[1]::bigint AS count FROM {schema}.job_queue_count WHERE queue_name = 'idle'";
    let before = scene.number(place).await;
    assert_eq!(scene.store.dequeue(&Dequeue::new("busy", "w").unwrap()).await.unwrap().len(), 1);
    scene.fold(false).await;
    assert_eq!(scene.number(sums).await, 1, "one and minus one are nothing");
    assert_eq!(scene.number(place).await, before, "the row of the idle queue was written anew");
    scene.agrees("summed up").await;
}

/// Waits until nothing is left to be summed up, which happens beside everything else.
async fn summed_up(scene: &Scene) {
    let rows = "SELECT count(*) AS count FROM {schema}.job_queue_count WHERE NOT is_sum";
    let wait = async {
        while scene.number(rows).await > 0 {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert!(waited.is_ok(), "nobody sums up");
}

#[tokio::test]
async fn who_asks_for_numbers_sums_up() {
    let scene = Scene::new().await;
    scene.store.enqueue(&[NewJob::builder("q", "work").build().unwrap()]).await.unwrap();
    scene.store.stats(&Queues::all()).await.unwrap();
    summed_up(&scene).await;
}

#[tokio::test]
async fn who_has_done_much_sums_up() {
    let scene = Scene::new().await;
    let two = [0, 1].map(|_| NewJob::builder("q", "work").build().unwrap());
    for _ in 0..500 {
        scene.store.enqueue(&two).await.unwrap();
        assert_eq!(scene.store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().len(), 1);
    }
    summed_up(&scene).await;
    scene.agrees("summed up").await;
}

/// Or they would wait for each other, and who drops the tables would be told of a deadlock.
#[tokio::test]
async fn nobody_waits_for_a_table_that_is_being_dropped() {
    let scene = Scene::new().await;
    let mut other = scene.store.pool().get().await.unwrap();
    for table in ["job_queue_count", "job_queue", "job_history"] {
        let lock = format!("BEGIN; LOCK TABLE {{schema}}.{table} IN ACCESS EXCLUSIVE MODE");
        other.batch_execute(&scene.sql(&lock)).await.unwrap();
        let folded = tokio::time::timeout(Duration::from_secs(60), scene.fold(true)).await;
        assert!(folded.is_ok(), "it waits for {table}");
        other.batch_execute("ROLLBACK").await.unwrap();
    }
}
