//! The conformance suite on [`RedbStore`]: `cargo test -p leasehold-example-redb --test conformance`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_conformance::{BoxError, Harness, Transaction};
use leasehold_core::{
    Enqueued, IdempotencyKey, NewJob, Receipt, Result, Settled, Store, TxStore, Verdict, time,
};
use leasehold_example_redb::RedbStore;
use redb::{ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction};

/// The user's own table: entries by number.
const LEDGER: TableDefinition<u64, &str> = TableDefinition::new("ledger");

fn main() {
    leasehold_conformance::main(Redb);
}

#[derive(Clone)]
struct Redb;

/// A file, and a clock that stands still but for `age`.
struct Database {
    path: PathBuf,
    clock: Arc<Mutex<DateTime<Utc>>>,
    /// redb gives a file to one opener at a time, so handles share it. Weak, so that the last handle closes the file.
    open: Mutex<std::sync::Weak<RedbStore>>,
}

impl Database {
    /// A handle: one more on the file if it is open, else the first.
    fn handle(&self) -> Result<Arc<RedbStore>, BoxError> {
        let mut open = lock(&self.open);
        if let Some(store) = open.upgrade() {
            return Ok(store);
        }
        let clock = Arc::clone(&self.clock);
        let store = Arc::new(RedbStore::with_clock(&self.path, Arc::new(move || *lock(&clock)))?);
        *open = Arc::downgrade(&store);
        Ok(store)
    }
}

#[async_trait]
impl Harness for Redb {
    type Database = Database;

    fn name(&self) -> &str {
        "redb"
    }

    async fn create(&self) -> Result<Database, BoxError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("leasehold-{}-{count}.redb", std::process::id()));
        // Far from now and with odd nanoseconds: a store that looks at the wrong clock, or keeps too much, is caught.
        let clock = Arc::new(Mutex::new("2031-01-01T00:00:00.123456789Z".parse()?));
        Ok(Database { path, clock, open: Mutex::default() })
    }

    async fn destroy(&self, database: &Database) -> Result<(), BoxError> {
        Ok(std::fs::remove_file(&database.path)?)
    }

    async fn connect(&self, database: &Database) -> Result<Arc<dyn Store>, BoxError> {
        Ok(database.handle()?)
    }

    async fn age(&self, database: &Database, by: Duration) -> Result<(), BoxError> {
        let mut now = lock(&database.clock);
        *now = time::later(*now, by);
        Ok(())
    }

    async fn begin(&self, database: &Database) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        let store = database.handle()?;
        let tx = store.begin().await?;
        Ok(Some(Box::new(Session { store, tx })))
    }

    async fn ledger(&self, database: &Database) -> Result<Vec<String>, BoxError> {
        let tx = database.handle()?.database().begin_read()?;
        let table = match tx.open_table(LEDGER) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            table => table?,
        };
        table.iter()?.map(|row| Ok(row?.1.value().to_owned())).collect()
    }
}

/// A transaction of redb's. Dropped before its end, it is rolled back.
struct Session {
    store: Arc<RedbStore>,
    tx: WriteTransaction,
}

#[async_trait]
impl Transaction for Session {
    async fn enqueue_in(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.store.enqueue_in(&mut self.tx, jobs).await
    }

    async fn settle_in(&mut self, receipt: &Receipt, verdict: Verdict) -> Result<Settled> {
        self.store.settle_in(&mut self.tx, receipt, verdict).await
    }

    async fn lock_in(&mut self, receipt: Receipt) -> Result<()> {
        self.store.lock_in(&mut self.tx, receipt).await
    }

    async fn once_in(&mut self, key: &IdempotencyKey) -> Result<bool> {
        self.store.once_in(&mut self.tx, key).await
    }

    async fn write(&mut self, entry: &str) -> Result<(), BoxError> {
        let mut table = self.tx.open_table(LEDGER)?;
        let number = table.len()?;
        table.insert(number, entry)?;
        Ok(())
    }

    async fn read(&mut self) -> Result<Vec<String>, BoxError> {
        let table = self.tx.open_table(LEDGER)?;
        table.iter()?.map(|row| Ok(row?.1.value().to_owned())).collect()
    }

    async fn commit(self: Box<Self>) -> Result<(), BoxError> {
        Ok(self.tx.commit()?)
    }

    async fn rollback(self: Box<Self>) -> Result<(), BoxError> {
        Ok(self.tx.abort()?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
