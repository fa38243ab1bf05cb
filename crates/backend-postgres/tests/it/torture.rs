//! Everything at once, from many connections: no claim misses a job.
//!
//! Each claim says itself, in its own snapshot, what it has missed (`torture.sql`). There is no tolerance: not for a pause, a late
//! commit, a slow batch, a wait for a lock, a clock that is set back, or a change by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use diesel::sql_types::{BigInt, Text};
use diesel_async::pooled_connection::deadpool::Object;
use diesel_async::{
    AnsiTransactionManager, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager,
};
use leasehold_core::{
    BatchSize, ConcurrencyLimit, Dequeue, Job, LeaseFor, NewJob, QueueOrder, QueuePattern, QueuePolicy,
    Queues, RateLimit, Store, StoreError, TxStore, Verdict,
};
use leasehold_postgres::PgStore;
use tokio::task::JoinSet;

use crate::support::{fresh_schema, url};

/// How long it goes on, in seconds. An hour with `LEASEHOLD_TEST_LONG`.
fn duration() -> Duration {
    Duration::from_secs(if std::env::var_os("LEASEHOLD_TEST_LONG").is_some() { 3600 } else { 30 })
}

const QUEUES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// What all tasks share.
struct World {
    schema: String,
    is_over: AtomicBool,
}

/// A task's own dice, store and connection.
struct Player {
    world: Arc<World>,
    dice: fastrand::Rng,
    store: PgStore,
    conn: Object<AsyncPgConnection>,
}

type Outcome = Result<(), String>;

impl Player {
    fn is_over(&self) -> bool {
        AtomicBool::load(&self.world.is_over, Ordering::Relaxed)
    }

    fn queue(&mut self) -> &'static str {
        QUEUES[self.dice.usize(..QUEUES.len())]
    }

    fn job(&mut self) -> NewJob {
        let (queue, priority) = (self.queue(), self.dice.i32(0..3));
        let builder = NewJob::builder(queue, "work").priority(priority);
        let key = format!("{}", self.dice.u8(..20));
        match self.dice.u8(..6) {
            0 => builder.delay(Duration::from_millis(self.dice.u64(..300))).build().unwrap(),
            1 => builder.unique_key(key.as_str()).build().unwrap(),
            _ => builder.build().unwrap(),
        }
    }

    /// Statements by hand. They may run into other transactions.
    async fn by_hand(&mut self, text: &str) -> Outcome {
        let text = text.replace("{schema}", &self.world.schema);
        match self.conn.batch_execute(&text).await {
            Err(error) if !is_a_clash(&error.to_string()) => Err(format!("{error} in {text}")),
            Err(_) => self.conn.batch_execute("ROLLBACK").await.map_err(|error| error.to_string()),
            Ok(()) => Ok(()),
        }
    }

    /// Lets some time pass, with work of its own.
    async fn linger(&mut self) -> Outcome {
        for _ in 0..self.dice.u32(1..60) {
            retryable(self.store.now().await)?;
        }
        Ok(())
    }
}

fn is_a_clash(text: &str) -> bool {
    ["deadlock", "lock timeout", "could not obtain lock", "duplicate key"]
        .iter()
        .any(|clash| text.contains(clash))
}

fn retryable<T>(answer: Result<T, StoreError>) -> Result<Option<T>, String> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_retryable() => Ok(None),
        Err(error) => Err(format!("{error}: {:?}", std::error::Error::source(&error))),
    }
}

/// Claims from these queues, and gives each job a verdict by chance. Some are left to their leases.
async fn claim(mut player: Player, queues: Queues) -> Outcome {
    while !player.is_over() {
        let limit = player.dice.u32(1..12);
        let lease_for = LeaseFor::new(Duration::from_millis(player.dice.u64(1..400))).unwrap();
        let request =
            Dequeue { lease_for, ..Dequeue::new(queues.clone(), "w").unwrap().limit(limit).unwrap() };
        let jobs = retryable(player.store.dequeue(&request).await)?.unwrap_or_default();
        let verdicts: Vec<_> =
            jobs.iter().filter_map(|job| Some((job.receipt(), verdict(&mut player.dice, job)?))).collect();
        retryable(player.store.settle(&verdicts).await)?;
    }
    Ok(())
}

fn verdict(dice: &mut fastrand::Rng, job: &Job) -> Option<Verdict> {
    let soon = Duration::from_millis(dice.u64(..40));
    match dice.u8(..10) {
        0 => None,
        1 => Some(Verdict::release()),
        2 => Some(Verdict::retry_after("again", soon).unwrap()),
        3 => Some(Verdict::snooze(soon).unwrap()),
        4 if job.attempts > 1 => Some(Verdict::dead("enough")),
        _ => Some(Verdict::done()),
    }
}

/// Enqueues one by one, in batches, and in batches over many queues, which take long while there are policies.
async fn enqueue(mut player: Player) -> Outcome {
    while !player.is_over() {
        let count = [1, 1, 1, 20, 300][player.dice.usize(..5)];
        let mut jobs: Vec<NewJob> = (0..count).map(|_| player.job()).collect();
        if count == 300 {
            jobs.extend(
                (0..300).map(|n| NewJob::builder(format!("many:{n}").as_str(), "work").build().unwrap()),
            );
        }
        retryable(player.store.enqueue(&jobs).await)?;
        player.linger().await?;
    }
    Ok(())
}

/// Enqueues in transactions that stay open for a while, and commits or rolls back.
async fn commit_late(mut player: Player) -> Outcome {
    while !player.is_over() {
        let jobs: Vec<NewJob> = (0..player.dice.usize(1..4)).map(|_| player.job()).collect();
        AnsiTransactionManager::begin_transaction(&mut *player.conn)
            .await
            .map_err(|error| error.to_string())?;
        let answer = player.store.clone().enqueue_in(&mut player.conn, &jobs).await;
        let is_good = retryable(answer)?.is_some();
        player.linger().await?;
        let ended = if is_good && player.dice.u8(..4) > 0 {
            AnsiTransactionManager::commit_transaction(&mut *player.conn).await
        } else {
            AnsiTransactionManager::rollback_transaction(&mut *player.conn).await
        };
        ended.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Pauses, resumes, sets and removes policies.
async fn operate(mut player: Player) -> Outcome {
    while !player.is_over() {
        let queue = player.queue();
        let pattern: QueuePattern = queue.parse().unwrap();
        let shorter = QueuePolicy {
            max_lease: Some(Duration::from_secs(1).try_into().unwrap()),
            ..QueuePolicy::default()
        };
        match player.dice.u8(..10) {
            0 => retryable(player.store.set_policy(&pattern, &shorter).await)?,
            1 | 2 => retryable(player.store.set_policy(&pattern, &QueuePolicy::default()).await)?,
            3 => {
                let many = if player.dice.bool() { pattern } else { "many:*".parse().unwrap() };
                let limits = limits(&mut player.dice);
                retryable(player.store.set_policy(&many, &limits).await)?
            }
            4 | 5 => retryable(player.store.pause(&pattern).await)?,
            _ => retryable(player.store.resume(&pattern).await)?,
        };
        player.linger().await?;
    }
    for queue in QUEUES {
        player.store.resume(&queue.parse().unwrap()).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn limits(dice: &mut fastrand::Rng) -> QueuePolicy {
    let policy = QueuePolicy::default();
    match dice.u8(..4) {
        0 => QueuePolicy { order: Some(QueueOrder::Fifo), ..policy },
        1 => QueuePolicy {
            rate: Some(RateLimit::new(f64::from(dice.u32(10..500)), dice.u32(1..20)).unwrap()),
            ..policy
        },
        _ => {
            QueuePolicy { concurrency_limit: Some(ConcurrencyLimit::new(dice.u32(1..8)).unwrap()), ..policy }
        }
    }
}

/// Changes rows by hand, locks some, locks the table, and sets the clock.
async fn meddle(mut player: Player) -> Outcome {
    const SOME: &str = "SELECT j.id FROM {schema}.job_queue j ORDER BY random() LIMIT 5";
    while !player.is_over() {
        let ago = format!("interval '{} milliseconds'", player.dice.u32(1..5000));
        let end = if player.dice.bool() { "COMMIT" } else { "ROLLBACK" };
        match player.dice.u8(..9) {
            0 => player.by_hand(&format!("UPDATE {{schema}}.job_queue SET available_at = available_at - {ago} WHERE id IN ({SOME})")).await?,
            1 => player.by_hand(&format!("UPDATE {{schema}}.job_queue SET available_at = '2000-01-01' WHERE id IN ({SOME})")).await?,
            2 => player.by_hand(&format!("UPDATE {{schema}}.job_queue SET priority = 2 - priority WHERE id IN ({SOME})")).await?,
            3 => player.by_hand(&format!("UPDATE {{schema}}.job_queue SET lease_until = NULL, locked_by = NULL WHERE id IN ({SOME})")).await?,
            4 => player.by_hand(&format!("UPDATE {{schema}}.job_queue SET available_at = available_at - {ago}, lease_until = lease_until - {ago}")).await?,
            5 => player.by_hand(&format!("UPDATE {{schema}}.job_queue SET available_at = available_at + {ago}, lease_until = lease_until + {ago}")).await?,
            6 => player.by_hand(&format!("UPDATE {{schema}}.job_queue SET queue_name = 'a' WHERE unique_key IS NULL AND id IN ({SOME})")).await?,
            7 => {
                player.by_hand(&format!("BEGIN; SELECT FROM {{schema}}.job_queue WHERE id IN ({SOME}) FOR UPDATE SKIP LOCKED")).await?;
                player.linger().await?;
                player.by_hand(end).await?;
            }
            _ => {
                player.by_hand("BEGIN; SET LOCAL lock_timeout = '200ms'; LOCK TABLE {schema}.job_queue").await?;
                player.linger().await?;
                player.by_hand(end).await?;
            }
        }
        player.linger().await?;
    }
    Ok(())
}

/// Takes back what has passed, and holds an old snapshot meanwhile.
async fn reclaim(mut player: Player) -> Outcome {
    while !player.is_over() {
        player.by_hand("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1").await?;
        for _ in 0..50 {
            retryable(player.store.reclaim(BatchSize::new(100).unwrap()).await)?;
            player.linger().await?;
        }
        player.by_hand("COMMIT").await?;
    }
    Ok(())
}

/// How often a claim must have been tried, at least.
struct Sought {
    claim: &'static str,
    claims: i64,
    with_floors: i64,
}

const SOUGHT: [Sought; 3] = [
    Sought { claim: "dequeue_one_v2", claims: 500, with_floors: 100 },
    Sought { claim: "dequeue_v2", claims: 500, with_floors: 100 },
    Sought { claim: "dequeue_limited_v3", claims: 100, with_floors: 0 },
];

impl Sought {
    fn is_met(&self, rows: &[Row]) -> bool {
        let row = rows.iter().find(|row| row.claim == self.claim);
        row.is_some_and(|row| {
            row.claims > self.claims && row.with_floors >= self.with_floors && row.leased > 100
        })
    }
}

#[derive(diesel::QueryableByName, Debug)]
struct Row {
    #[diesel(sql_type = Text)]
    claim: String,
    #[diesel(sql_type = BigInt)]
    claims: i64,
    #[diesel(sql_type = BigInt)]
    with_floors: i64,
    #[diesel(sql_type = BigInt)]
    leased: i64,
    #[diesel(sql_type = BigInt)]
    missed: i64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[allow(clippy::print_stdout, reason = "the seed is for the reader of a failure")]
async fn no_claim_misses_a_job() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let (url, schema) = (url("LEASEHOLD_TEST_POSTGRES_URL"), fresh_schema());
    let connect =
        async || PgStore::builder().schema(schema.clone()).pool_size(16).connect(&url).await.unwrap();
    let shared = connect().await;
    shared.migrate().await.unwrap();
    let mut conn = shared.pool().get().await.unwrap();
    conn.batch_execute(&include_str!("torture.sql").replace("{schema}", &schema.to_string())).await.unwrap();

    let world = Arc::new(World { schema: schema.to_string(), is_over: AtomicBool::new(false) });
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut tasks: JoinSet<Outcome> = JoinSet::new();
    let player = async |store: &PgStore, dice: &mut fastrand::Rng| {
        let conn = store.pool().get().await.unwrap();
        Player { world: Arc::clone(&world), dice: dice.fork(), store: store.clone(), conn }
    };
    let other = connect().await;
    // Several sources on one store, and another store.
    for (store, queues) in [
        (&shared, vec!["a"]),
        (&shared, vec!["b", "c"]),
        (&shared, vec!["d", "e"]),
        (&shared, vec!["a", "b", "c", "d", "e"]),
        (&other, vec!["e"]),
        (&other, vec!["a", "b"]),
    ] {
        tasks.spawn(claim(player(store, &mut dice).await, Queues::named(queues).unwrap()));
    }
    for prefix in ["many:*", "*"] {
        tasks.spawn(claim(player(&shared, &mut dice).await, prefix.parse().unwrap()));
    }
    tasks.spawn(enqueue(player(&shared, &mut dice).await));
    tasks.spawn(enqueue(player(&other, &mut dice).await));
    tasks.spawn(commit_late(player(&other, &mut dice).await));
    tasks.spawn(commit_late(player(&other, &mut dice).await));
    tasks.spawn(operate(player(&other, &mut dice).await));
    tasks.spawn(meddle(player(&other, &mut dice).await));
    tasks.spawn(reclaim(player(&other, &mut dice).await));

    let start = Instant::now();
    let mut watch = shared.pool().get().await.unwrap();
    let text = "SELECT claim, count(*) AS claims, count(*) FILTER (WHERE floors > 0) AS with_floors,
                       sum(leased)::bigint AS leased, count(*) FILTER (WHERE missed <> '{}') AS missed
                FROM {schema}.torture GROUP BY claim ORDER BY claim";
    let text = text.replace("{schema}", &world.schema);
    let rows = loop {
        let rows: Vec<Row> = diesel::sql_query(&text).load(&mut watch).await.unwrap();
        // On a busy machine it goes on until each claim was tried often enough to mean something.
        let is_enough = SOUGHT.iter().all(|sought| sought.is_met(&rows)) || start.elapsed() > 10 * duration();
        if start.elapsed() > duration() && is_enough
            || rows.iter().any(|row| row.missed > 0)
            || tasks.try_join_next().is_some()
        {
            break rows;
        }
    };
    world.is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap().unwrap();
    }
    println!("after {:?}: {rows:#?}", start.elapsed());
    assert!(
        rows.iter().all(|row| row.missed == 0),
        "claims have missed jobs that were Ready and free: {rows:#?}"
    );
    for sought in &SOUGHT {
        assert!(sought.is_met(&rows), "{} was hardly tried: {rows:#?}", sought.claim);
    }
    assert!(start.elapsed() >= duration(), "it has ended too early");
}
