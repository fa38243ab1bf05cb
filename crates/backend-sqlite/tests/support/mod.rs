//! A harness for the conformance suite on a file: a directory for each check.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use diesel::connection::{AnsiTransactionManager, SimpleConnection, TransactionManager};
use diesel::sql_types::Text;
use diesel::{Connection, RunQueryDsl, SqliteConnection};
use leasehold_conformance::{BoxError, Ending, Harness, Isolation, Transaction};
use leasehold_core::{
    Enqueued, IdempotencyKey, JobId, NewJob, Receipt, Result, Settled, Store, TxStore, Verdict,
};
use leasehold_sqlite::SqliteStore;

/// A directory that nobody else has, gone when this is dropped.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("leasehold-sqlite-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The database in it.
    pub(crate) fn file(&self) -> String {
        self.0.join("jobs.db").to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A store on a new file.
pub(crate) async fn fresh_store() -> (SqliteStore, Directory) {
    let directory = Directory::new();
    let store = SqliteStore::connect(&directory.file()).await.unwrap();
    store.migrate().await.unwrap();
    (store, directory)
}

/// A plain connection to a file.
pub(crate) fn plain(file: &str) -> SqliteConnection {
    let mut conn = SqliteConnection::establish(file).unwrap();
    conn.batch_execute("PRAGMA busy_timeout = 10000").unwrap();
    conn
}

/// A file for each check.
pub(crate) struct File;

/// One file, and a store on it for transactions.
pub(crate) struct Database {
    directory: Directory,
    home: SqliteStore,
}

#[async_trait]
impl Harness for File {
    type Database = Database;

    fn name(&self) -> &str {
        "sqlite"
    }

    async fn create(&self) -> Result<Database, BoxError> {
        let (home, directory) = fresh_store().await;
        home.connection().await?.batch_execute(
            "CREATE TABLE ledger (entry TEXT NOT NULL);
             CREATE TABLE rules (rule INTEGER PRIMARY KEY ON CONFLICT ROLLBACK);
             INSERT INTO rules VALUES (1)",
        )?;
        Ok(Database { directory, home })
    }

    async fn connect(&self, database: &Database) -> Result<Arc<dyn Store>, BoxError> {
        Ok(Arc::new(SqliteStore::connect(&format!("sqlite://{}", database.directory.file())).await?))
    }

    async fn age(&self, database: &Database, by: Duration) -> Result<(), BoxError> {
        shift(database, -i64::try_from(by.as_micros())?).await
    }

    async fn set_back(&self, database: &Database, by: Duration) -> Result<bool, BoxError> {
        shift(database, i64::try_from(by.as_micros())?).await?;
        Ok(true)
    }

    async fn finish_twin(&self, database: &Database, id: JobId) -> Result<bool, BoxError> {
        database.home.connection().await?.batch_execute(&format!(
            "INSERT INTO job_history (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch,
                 status_final, last_error, redrives, created_at, started_at, finished_at)
             SELECT id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch,
                 'dead_letter', 'null', redrives, created_at, first_leased_at, created_at + 1 FROM job_queue WHERE id = {id}"
        ))?;
        Ok(true)
    }

    async fn begin(&self, database: &Database) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        let mut conn = database.home.connection().await?;
        // It may have to wait for another transaction, which may be waiting for this thread.
        let begun = tokio::task::spawn_blocking(move || {
            AnsiTransactionManager::begin_transaction_sql(&mut conn, "BEGIN IMMEDIATE").map(|()| conn)
        });
        Ok(Some(Box::new(Session { store: database.home.clone(), conn: begun.await?? })))
    }

    /// At REPEATABLE READ a transaction that does not have the lock from its beginning.
    async fn begin_at(
        &self,
        database: &Database,
        level: Isolation,
    ) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        if level != Isolation::RepeatableRead {
            return self.begin(database).await;
        }
        let mut conn = database.home.connection().await?;
        AnsiTransactionManager::begin_transaction(&mut conn)?;
        Ok(Some(Box::new(Session { store: database.home.clone(), conn })))
    }

    async fn no_transaction(&self, database: &Database) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        let conn = database.home.connection().await?;
        Ok(Some(Box::new(Session { store: database.home.clone(), conn })))
    }

    async fn ledger(&self, database: &Database) -> Result<Vec<String>, BoxError> {
        entries(&mut database.home.connection().await?)
    }
}

fn entries(conn: &mut SqliteConnection) -> Result<Vec<String>, BoxError> {
    #[derive(diesel::QueryableByName)]
    struct Entry {
        #[diesel(sql_type = Text)]
        entry: String,
    }
    let entries: Vec<Entry> = diesel::sql_query("SELECT entry FROM ledger").load(conn)?;
    Ok(entries.into_iter().map(|entry| entry.entry).collect())
}

/// Moves every stored time by so many microseconds.
async fn shift(database: &Database, by: i64) -> Result<(), BoxError> {
    database.home.connection().await?.batch_execute(&format!(
        "BEGIN IMMEDIATE;
         UPDATE job_queue SET available_at = available_at + {by}, lease_until = lease_until + {by},
             first_leased_at = first_leased_at + {by}, created_at = created_at + {by}, updated_at = updated_at + {by};
         UPDATE job_history SET created_at = created_at + {by}, started_at = started_at + {by},
             finished_at = finished_at + {by};
         UPDATE job_queue_limit SET full_at = full_at + {by};
         UPDATE job_idempotency SET created_at = created_at + {by}, kept_until = kept_until + {by};
         COMMIT"
    ))?;
    Ok(())
}

/// A transaction of diesel's. Dropped before its end, its connection is closed, so that it is rolled back.
struct Session {
    store: SqliteStore,
    conn: SqliteConnection,
}

#[async_trait]
impl Transaction for Session {
    async fn enqueue_in(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.store.enqueue_in(&mut self.conn, jobs).await
    }

    async fn settle_in(&mut self, receipt: &Receipt, verdict: Verdict) -> Result<Settled> {
        self.store.settle_in(&mut self.conn, receipt, verdict).await
    }

    async fn lock_in(&mut self, receipt: Receipt) -> Result<()> {
        self.store.lock_in(&mut self.conn, receipt).await
    }

    async fn once_in(&mut self, key: &IdempotencyKey) -> Result<bool> {
        self.store.once_in(&mut self.conn, key).await
    }

    async fn write(&mut self, entry: &str) -> Result<(), BoxError> {
        diesel::sql_query("INSERT INTO ledger VALUES (?)").bind::<Text, _>(entry).execute(&mut self.conn)?;
        Ok(())
    }

    async fn read(&mut self) -> Result<Vec<String>, BoxError> {
        entries(&mut self.conn)
    }

    async fn end(&mut self, how: Ending) -> Result<bool, BoxError> {
        match how {
            Ending::Commit => self.conn.batch_execute("COMMIT")?,
            Ending::Rollback => self.conn.batch_execute("ROLLBACK")?,
            Ending::Failure => {
                let failed = diesel::sql_query("INSERT INTO rules VALUES (1)").execute(&mut self.conn);
                assert!(failed.is_err(), "the rule was broken, and nothing failed");
            }
            _ => return Ok(false), // What is defined is part of the transaction, and there is one writer at a time.
        }
        Ok(true)
    }

    async fn commit(mut self: Box<Self>) -> Result<(), BoxError> {
        Ok(AnsiTransactionManager::commit_transaction(&mut self.conn)?)
    }

    async fn rollback(mut self: Box<Self>) -> Result<(), BoxError> {
        Ok(AnsiTransactionManager::rollback_transaction(&mut self.conn)?)
    }
}
