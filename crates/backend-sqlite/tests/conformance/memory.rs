//! The conformance suite on a database in memory, with a clock that the harness moves.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use leasehold_conformance::{BoxError, Harness};
use leasehold_core::{Result, Store, time};
use leasehold_sqlite::SqliteStore;

/// A database in memory.
pub(crate) struct Memory;

pub(crate) struct Database {
    store: SqliteStore,
    clock: Arc<Mutex<DateTime<Utc>>>,
}

#[async_trait]
impl Harness for Memory {
    type Database = Database;

    fn name(&self) -> &str {
        "sqlite in memory"
    }

    async fn create(&self) -> Result<Database, BoxError> {
        // Far from the host's clock, so that a look at the wrong one shows.
        let clock = Arc::new(Mutex::new("2001-09-09T01:46:40.123456789Z".parse()?));
        let shown = Arc::clone(&clock);
        let store = SqliteStore::builder().clock(move || *shown.lock().unwrap());
        let store = store.connect("sqlite::memory:").await?;
        store.migrate().await?;
        Ok(Database { store, clock })
    }

    async fn connect(&self, database: &Database) -> Result<Arc<dyn Store>, BoxError> {
        Ok(Arc::new(database.store.clone()))
    }

    async fn age(&self, database: &Database, by: Duration) -> Result<(), BoxError> {
        let mut now = database.clock.lock().unwrap();
        *now = time::later(*now, by);
        Ok(())
    }

    async fn set_back(&self, database: &Database, by: Duration) -> Result<bool, BoxError> {
        let mut now = database.clock.lock().unwrap();
        *now = time::earlier(*now, by);
        Ok(true)
    }
}
