//! A fresh file, for one side of one round.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use diesel::SqliteConnection;
use diesel::connection::SimpleConnection;
use leasehold_sqlite::SqliteStore;

use crate::bare::{Cached, Number};
use crate::{Result, load};

const FILL: &str = include_str!("sql/fill.sql");

/// Removes the file when it is dropped.
pub(crate) struct Ground {
    pub(crate) store: SqliteStore,
    directory: PathBuf,
}

impl Ground {
    /// A file that nobody else has, and a store on it.
    pub(crate) async fn new() -> Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name =
            format!("leasehold-bench-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory)?;
        let file = directory.join("jobs.db");
        let store = SqliteStore::connect(file.to_str().ok_or("the path is no UTF-8")?).await?;
        store.migrate().await?;
        let ground = Self { store, directory };
        ground.run("CREATE TABLE ledger (job INTEGER NOT NULL, entry TEXT NOT NULL)").await?;
        Ok(ground)
    }

    /// The database.
    pub(crate) fn file(&self) -> String {
        self.directory.join("jobs.db").to_string_lossy().into_owned()
    }

    /// A connection with the settings that the store's own have.
    pub(crate) async fn connection(&self) -> Result<SqliteConnection> {
        Ok(self.store.connection().await?)
    }

    async fn run(&self, sql: &str) -> Result {
        Ok(self.connection().await?.batch_execute(sql)?)
    }

    /// Puts so many jobs into the queue `bench`, much faster than anybody enqueues them, and the log into the database.
    pub(crate) async fn fill(&self, jobs: usize) -> Result {
        let fill = FILL.replace("{jobs}", &jobs.to_string()).replace("{payload}", &load::payload());
        self.run(&fill).await?;
        self.run("PRAGMA wal_checkpoint(TRUNCATE)").await
    }

    /// Sees that there are so many live jobs and so many in the history.
    pub(crate) async fn expect(&self, live: usize, finished: usize) -> Result {
        for (table, expected) in [("job_queue", live), ("job_history", finished)] {
            self.expect_rows(&format!("SELECT count(*) AS number FROM {table}"), expected).await?;
        }
        Ok(())
    }

    pub(crate) async fn expect_rows(&self, sql: &str, expected: usize) -> Result {
        let mut conn = self.connection().await?;
        let rows: Vec<Number> = diesel::RunQueryDsl::load(Cached(diesel::sql_query(sql)), &mut conn)?;
        match rows.first().map(|row| row.number) {
            Some(number) if usize::try_from(number) == Ok(expected) => Ok(()),
            number => Err(format!("{sql} gave {number:?} where {expected} is right").into()),
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.directory));
    }
}
