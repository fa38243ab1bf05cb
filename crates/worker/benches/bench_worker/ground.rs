//! A fresh schema, for one side of one round.

use std::sync::atomic::{AtomicU64, Ordering};

use diesel::QueryableByName;
use diesel::sql_types::BigInt;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use leasehold_postgres::{PgStore, Schema};

use crate::{Bench, Result};

const FILL: &str = include_str!("sql/fill.sql");

pub(crate) struct Ground {
    pub(crate) store: PgStore,
    pub(crate) schema: Schema,
}

#[derive(QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    number: i64,
}

impl Ground {
    /// A schema that nobody else has, and a store on it with so many connections.
    pub(crate) async fn new(bench: &Bench, connections: usize) -> Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let schema = Schema::new(format!("bench_{}_{count}", std::process::id()))?;
        let store = PgStore::builder().schema(schema.clone()).pool_size(connections);
        let store = store.connect(&bench.server.url()).await?;
        store.migrate().await?;
        Ok(Self { store, schema })
    }

    /// `sql` with the name of the schema in it.
    pub(crate) fn sql(&self, sql: &str) -> String {
        sql.replace("{schema}", self.schema.as_str())
    }

    async fn run(&self, sql: &str) -> Result {
        let mut conn = self.store.pool().get().await?;
        Ok(conn.batch_execute(&self.sql(sql)).await?)
    }

    /// Puts so many jobs into the queue `bench`, much faster than anybody enqueues them.
    pub(crate) async fn fill(&self, jobs: usize) -> Result {
        let payload = format!(r#"{{"fill":"{}"}}"#, "x".repeat(89));
        self.run(&FILL.replace("{payload}", &payload).replace("{jobs}", &jobs.to_string())).await?;
        // Autovacuum would do it within a minute, and each side is to write the same to the log.
        self.run("ANALYZE {schema}.job_queue").await?;
        self.run("CHECKPOINT").await
    }

    /// Sees that there are no live jobs and so many in the history.
    pub(crate) async fn expect_finished(&self, finished: usize) -> Result {
        for (table, expected) in [("job_queue", 0), ("job_history", finished)] {
            let count = self.number(&format!("SELECT count(*) AS number FROM {{schema}}.{table}")).await?;
            if usize::try_from(count) != Ok(expected) {
                return Err(format!("{table} has {count} rows where {expected} are right").into());
            }
        }
        Ok(())
    }

    async fn number(&self, sql: &str) -> Result<i64> {
        let mut conn = self.store.pool().get().await?;
        let row: Number = diesel::sql_query(self.sql(sql)).get_result(&mut conn).await?;
        Ok(row.number)
    }

    /// Drops the schema, and closes the connections.
    pub(crate) async fn remove(self) -> Result {
        self.run("DROP SCHEMA {schema} CASCADE").await?;
        self.store.pool().close();
        Ok(())
    }
}
