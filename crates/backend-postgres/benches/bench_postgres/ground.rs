//! A fresh schema, for one side of one round.

use std::sync::atomic::{AtomicU64, Ordering};

use diesel::QueryableByName;
use diesel::sql_types::BigInt;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use leasehold_postgres::{PgStore, Schema};

use crate::server::Server;
use crate::{Result, load};

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
    /// A schema that nobody else has, and a store on it with so many connections, all of them open: the time to connect
    /// does not count for pgbench either.
    pub(crate) async fn new(server: &Server, connections: usize) -> Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let schema = Schema::new(format!("bench_{}_{count}", std::process::id()))?;
        let store =
            PgStore::builder().schema(schema.clone()).pool_size(connections).connect(&server.url).await?;
        store.migrate().await?;
        let open = (0..connections).map(|_| store.pool().get());
        futures_util::future::try_join_all(open).await?;
        Ok(Self { store, schema })
    }

    /// `sql` with the name of the schema and the payload in it.
    pub(crate) fn sql(&self, sql: &str) -> String {
        sql.replace("{schema}", self.schema.as_str()).replace("{payload}", &load::payload())
    }

    pub(crate) async fn run(&self, sql: &str) -> Result {
        let mut conn = self.store.pool().get().await?;
        Ok(conn.batch_execute(&self.sql(sql)).await?)
    }

    /// Puts so many jobs into the queue `bench`, much faster than anybody enqueues them.
    pub(crate) async fn fill(&self, jobs: usize) -> Result {
        self.run(&FILL.replace("{jobs}", &jobs.to_string())).await?;
        self.settle_down().await
    }

    /// Autovacuum would analyze the tables within a minute; a benchmark does not wait for it. With a checkpoint right
    /// before it, each side writes the same to the log.
    pub(crate) async fn settle_down(&self) -> Result {
        self.run("ANALYZE {schema}.job_queue").await?;
        self.run("CHECKPOINT").await
    }

    /// Sees that there are so many live jobs and so many in the history.
    pub(crate) async fn expect(&self, live: usize, finished: usize) -> Result {
        let counts = [("job_queue", live), ("job_history", finished)];
        for (table, expected) in counts {
            let count = self.number(&format!("SELECT count(*) AS number FROM {{schema}}.{table}")).await?;
            if usize::try_from(count) != Ok(expected) {
                return Err(format!("{table} has {count} rows where {expected} are right").into());
            }
        }
        Ok(())
    }

    pub(crate) async fn number(&self, sql: &str) -> Result<i64> {
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
