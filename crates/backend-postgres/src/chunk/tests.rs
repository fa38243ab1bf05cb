//! With chunks of a few kilobytes: a batch in several statements is as one in one statement.

mod enqueue;
mod lost;
mod settle;
#[cfg(all(feature = "sqlx", feature = "tokio-postgres"))]
mod transactions;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use diesel::sql_types::BigInt;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{Dequeue, Json, NewJob, Receipt, Store};

use super::Chunks;
use crate::{PgStore, Schema};

/// A chunk takes two jobs of [`job`], or two documents of 1000 bytes.
const SMALL: usize = 3000;

#[test]
fn a_chunk_is_as_large_as_it_may_be_and_never_empty() {
    let sizes = [30, 70, 1, 100, 101, 500, 0, 0];
    let places: Vec<usize> = (0..sizes.len()).collect();
    let chunks = Chunks::of(100).split(&places, |place| sizes[place]);
    assert_eq!(chunks, [&[0, 1][..], &[2], &[3], &[4], &[5], &[6, 7]]);
    assert!(Chunks::of(100).split(&[], |_| 1).is_empty());
    assert!(Chunks::of(100).is_one([30, 70].into_iter()));
    assert!(!Chunks::of(100).is_one([30, 71].into_iter()));
}

/// Much longer than anything here takes: a test that is wrong fails, and does not hang.
const DEADLINE: Duration = Duration::from_secs(30);

fn url() -> String {
    std::env::var("LEASEHOLD_TEST_POSTGRES_URL")
        .expect("LEASEHOLD_TEST_POSTGRES_URL is not set: run `cargo xtask test -p leasehold-postgres`")
}

/// A schema of its own, with a store that has small chunks and one that has the usual ones.
struct World {
    schema: Schema,
    small: PgStore,
    whole: PgStore,
    admin: AsyncPgConnection,
}

impl World {
    async fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let schema = Schema::new(format!("chunk_{}_{count}", std::process::id())).unwrap();
        let builder = PgStore::builder().schema(schema.clone()).pool_size(2);
        let whole = builder.clone().connect(&url()).await.unwrap();
        whole.migrate().await.unwrap();
        let small = builder.chunks(Chunks::of(SMALL)).connect(&url()).await.unwrap();
        let admin = AsyncPgConnection::establish(&url()).await.unwrap();
        Self { schema, small, whole, admin }
    }

    async fn run(&mut self, sql: &str) {
        self.admin.batch_execute(&sql.replace("{schema}", &self.schema.quoted())).await.unwrap();
    }

    async fn number(&mut self, sql: &str) -> i64 {
        #[derive(diesel::QueryableByName)]
        struct Number {
            #[diesel(sql_type = BigInt)]
            number: i64,
        }
        let text = format!("SELECT ({})::bigint AS number", sql.replace("{schema}", &self.schema.quoted()));
        diesel::sql_query(text).get_result::<Number>(&mut self.admin).await.unwrap().number
    }

    async fn jobs(&mut self) -> i64 {
        self.number("SELECT count(*) FROM {schema}.job_queue").await
    }

    /// Leases all jobs of a queue.
    async fn lease(&self, queue: &str) -> Vec<Receipt> {
        let request = Dequeue { limit: 100.try_into().unwrap(), ..Dequeue::new(queue, "w").unwrap() };
        self.whole.dequeue(&request).await.unwrap().iter().map(|job| job.receipt()).collect()
    }

    /// Runs `statement` for each row that is inserted into `table` and meets `condition`.
    async fn at_insert(&mut self, table: &str, timing: &str, condition: &str, statement: &str) {
        let kind = if timing.starts_with("AFTER") { "CONSTRAINT TRIGGER" } else { "TRIGGER" };
        let deferred = if timing == "AFTER COMMIT" { "DEFERRABLE INITIALLY DEFERRED" } else { "" };
        let when = timing.split(' ').next().unwrap();
        self.run(&format!(
            "CREATE FUNCTION {{schema}}.at_insert() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 {statement}; RETURN NEW;
             END $$;
             CREATE {kind} at_insert {when} INSERT ON {{schema}}.{table} {deferred}
             FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION {{schema}}.at_insert()"
        ))
        .await;
    }

    /// Returns when a statement on this schema waits for a lock.
    async fn wait_for_a_lock(&mut self) {
        let asked = "SELECT count(*) FROM pg_stat_clear_snapshot(), pg_stat_activity
                     WHERE wait_event_type = 'Lock' AND query LIKE '%{schema}%'";
        let start = Instant::now();
        while self.number(asked).await == 0 {
            assert!(start.elapsed() < DEADLINE, "no session waits for a lock");
        }
    }

    async fn end(mut self) {
        self.run("DROP SCHEMA {schema} CASCADE").await;
    }
}

/// A document of so many bytes.
fn document(text: &str, bytes: usize) -> Json {
    Json::new(&format!("{text:-<bytes$}")).unwrap()
}

fn job(kind: &str, key: Option<&str>) -> NewJob {
    let job = NewJob::builder("q", kind).payload(&format!("{kind:-<300}"));
    match key {
        Some(key) => job.unique_key(key),
        None => job,
    }
    .build()
    .unwrap()
}
