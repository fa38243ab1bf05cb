//! One schema, with jobs to be settled and a table of business rows.

use diesel::sql_types::BigInt;
use diesel_async::pooled_connection::deadpool::Object;
use diesel_async::{AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{Dequeue, Job, NewJob, Queues, Record, Store};
use leasehold_postgres::PgStore;
use sqlx::PgPool;

pub(crate) struct World {
    pub(crate) url: String,
    pub(crate) store: PgStore,
    pub(crate) sqlx: PgPool,
    schema: leasehold_postgres::Schema,
}

impl World {
    pub(crate) async fn new() -> Self {
        let (url, schema) = (
            with_password(crate::support::url("LEASEHOLD_TEST_POSTGRES_URL")),
            crate::support::fresh_schema(),
        );
        let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        let world = Self { sqlx: PgPool::connect_lazy(&url).unwrap(), url, store, schema };
        world.statement(&format!("CREATE TABLE {}.ledger (entry text NOT NULL)", world.schema)).await;
        world
    }

    /// Leaves nothing behind. After a failure it does not come to this.
    pub(crate) async fn end(self) {
        self.sqlx.close().await;
        self.statement(&format!("SET lock_timeout = '10s'; DROP SCHEMA {} CASCADE", self.schema)).await;
    }

    /// Another process.
    pub(crate) async fn other(&self) -> PgStore {
        PgStore::builder().schema(self.schema.clone()).connect(&self.url).await.unwrap()
    }

    pub(crate) async fn pooled(&self) -> Object<AsyncPgConnection> {
        self.store.pool().get().await.unwrap()
    }

    pub(crate) async fn statement(&self, statement: &str) {
        self.pooled().await.batch_execute(statement).await.unwrap();
    }

    /// The statement that writes a business row.
    pub(crate) fn insert(&self) -> String {
        format!("INSERT INTO {}.ledger VALUES ('paid')", self.schema)
    }

    /// Ends the session of everybody who has written a business row and not committed it.
    pub(crate) async fn terminate_writers(&self) {
        let insert = self.insert().replace('\'', "''");
        self.statement(&format!(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
             WHERE state = 'idle in transaction' AND query = '{insert}'"
        ))
        .await;
    }

    /// How many business rows were committed.
    pub(crate) async fn written(&self) -> i64 {
        #[derive(diesel::QueryableByName)]
        struct Count {
            #[diesel(sql_type = BigInt)]
            count: i64,
        }
        let count = diesel::sql_query(format!("SELECT count(*) FROM {}.ledger", self.schema));
        count.get_result::<Count>(&mut self.pooled().await).await.unwrap().count
    }

    /// A job that is leased to us.
    pub(crate) async fn leased(&self) -> Job {
        self.store.enqueue(&[job("work")]).await.unwrap();
        let request = Dequeue::new("work".parse::<Queues>().unwrap(), "me").unwrap().limit(1).unwrap();
        self.store.dequeue(&request).await.unwrap().remove(0)
    }

    pub(crate) async fn is_finished(&self, job: &Job) -> bool {
        matches!(self.store.get(job.id).await.unwrap(), Some(Record::Finished(_)))
    }

    pub(crate) async fn live_jobs(&self) -> u64 {
        let stats = self.store.stats(&Queues::all()).await.unwrap();
        stats.iter().map(|queue| queue.live()).sum()
    }
}

/// The password that no error may tell. Servers of ours take any.
pub(crate) const PASSWORD: &str = "hunter2";

/// A URL with a password in it, unless it has one of its own.
fn with_password(url: String) -> String {
    match url.split_once("://").and_then(|(_, rest)| rest.split_once('@')) {
        Some((user, _)) if !user.contains(':') => url.replacen('@', &format!(":{PASSWORD}@"), 1),
        _ => url,
    }
}

pub(crate) fn job(queue: &str) -> NewJob {
    NewJob::builder(queue, "kind").build().unwrap()
}

pub(crate) fn keyed_job(queue: &str, key: &str) -> NewJob {
    NewJob::builder(queue, "kind").unique_key(key).build().unwrap()
}
