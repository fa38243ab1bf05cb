//! A fresh database, for one side of one round.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_mysql::MysqlStore;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use crate::bare::connect;
use crate::{Result, load};

const FILL: &str = include_str!("sql/fill.sql");
/// So few pages to be written are as good as none: the server makes some by itself.
const DIRTY_PAGES: u64 = 100;
/// What takes longer than this is not waited for.
const WRITING: Duration = Duration::from_secs(60);
const LEDGER: &str = "CREATE TABLE ledger (job BIGINT NOT NULL, entry TEXT NOT NULL) ENGINE = InnoDB";

pub(crate) struct Ground {
    pub(crate) store: MysqlStore,
    pub(crate) url: String,
    name: String,
}

impl Ground {
    /// A database that nobody else has, and a store on it with so many connections, all of them open.
    pub(crate) async fn new(server: &str, connections: usize) -> Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("bench_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        connect(server).await?.query_drop(format!("CREATE DATABASE {name}")).await?;
        let (place, _) = server.rsplit_once('/').ok_or("the URL names no database")?;
        let url = format!("{place}/{name}");
        let store = MysqlStore::builder().pool_size(connections).connect(&url).await?;
        store.migrate().await?;
        let open = (0..connections).map(|_| leasehold_core::Store::now(&store));
        futures_util::future::try_join_all(open).await?;
        let ground = Self { store, url, name };
        ground.connection().await?.query_drop(LEDGER).await?;
        Ok(ground)
    }

    /// A bare connection.
    pub(crate) async fn connection(&self) -> Result<Conn> {
        connect(&self.url).await
    }

    /// Puts so many jobs into the queue `bench`, much faster than anybody enqueues them.
    pub(crate) async fn fill(&self, jobs: usize) -> Result {
        let fill = FILL.replace("{jobs}", &jobs.to_string()).replace("{payload}", &load::payload());
        let mut conn = self.connection().await?;
        conn.query_drop(fill).await?;
        conn.query_drop("ANALYZE TABLE job_queue").await?;
        write_all(&mut conn).await
    }

    /// Sees that there are so many live jobs and so many in the history.
    pub(crate) async fn expect(&self, live: usize, finished: usize) -> Result {
        for (table, expected) in [("job_queue", live), ("job_history", finished)] {
            self.expect_rows(&format!("SELECT COUNT(*) FROM {table}"), expected).await?;
        }
        Ok(())
    }

    pub(crate) async fn expect_rows(&self, sql: &str, expected: usize) -> Result {
        match self.connection().await?.query_first::<usize, _>(sql).await? {
            Some(number) if number == expected => Ok(()),
            number => Err(format!("{sql} gave {number:?} where {expected} is right").into()),
        }
    }

    /// Drops the database.
    pub(crate) async fn remove(self) -> Result {
        let drop = format!("DROP DATABASE {}", self.name);
        Ok(self.connection().await?.query_drop(drop).await?)
    }
}

/// Waits until the server has written what was put there, which would otherwise go on beside what is measured: as CHECKPOINT
/// does on Postgres.
async fn write_all(conn: &mut Conn) -> Result {
    let percent: Option<f64> = conn.query_first("SELECT @@GLOBAL.innodb_max_dirty_pages_pct").await?;
    conn.query_drop("SET GLOBAL innodb_max_dirty_pages_pct = 0").await?;
    let waiting = Instant::now();
    while dirty_pages(conn).await? > DIRTY_PAGES && waiting.elapsed() < WRITING {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let percent = percent.ok_or("the server does not say when it writes")?;
    Ok(conn.query_drop(format!("SET GLOBAL innodb_max_dirty_pages_pct = {percent}")).await?)
}

async fn dirty_pages(conn: &mut Conn) -> Result<u64> {
    let status = "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'";
    let row: Option<(String, u64)> = conn.query_first(status).await?;
    Ok(row.ok_or("the server does not count its pages")?.1)
}
