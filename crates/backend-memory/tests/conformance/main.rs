//! The conformance suite on the memory backend.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_conformance::{BoxError, Harness, Transaction};
use leasehold_core::{
    Enqueued, IdempotencyKey, Json, NewJob, Receipt, Result, Settled, Store, TxStore, Verdict,
};
use leasehold_memory::{ManualClock, MemoryConnection, MemoryStore};

fn main() {
    leasehold_conformance::main(Memory);
}

struct Memory;

struct Database {
    store: MemoryStore,
    clock: ManualClock,
}

#[async_trait]
impl Harness for Memory {
    type Database = Database;

    fn name(&self) -> &str {
        "memory"
    }

    async fn create(&self) -> Result<Database, BoxError> {
        // Far from the host's clock, so that a look at the wrong one shows.
        let clock = ManualClock::new("2001-09-09T01:46:40.123456789Z".parse()?);
        Ok(Database { store: MemoryStore::with_clock(clock.clone()), clock })
    }

    async fn connect(&self, database: &Database) -> Result<Arc<dyn Store>, BoxError> {
        Ok(Arc::new(database.store.clone()))
    }

    async fn age(&self, database: &Database, by: Duration) -> Result<(), BoxError> {
        database.clock.advance(by);
        Ok(())
    }

    async fn begin(&self, database: &Database) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        Ok(Some(Box::new(Session { store: database.store.clone(), connection: database.store.begin() })))
    }

    async fn no_transaction(&self, database: &Database) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        Ok(Some(Box::new(Session { store: database.store.clone(), connection: database.store.connection() })))
    }

    async fn ledger(&self, database: &Database) -> Result<Vec<String>, BoxError> {
        let rows = database.store.values().into_values();
        Ok(rows.map(|entry| entry.to::<String>()).collect::<Result<_, _>>()?)
    }

    fn model_cases(&self) -> u32 {
        if std::env::var_os("LEASEHOLD_TEST_LONG").is_some() { 10_000 } else { 1_000 }
    }
}

struct Session {
    store: MemoryStore,
    connection: MemoryConnection,
}

#[async_trait]
impl Transaction for Session {
    async fn enqueue_in(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.store.enqueue_in(&mut self.connection, jobs).await
    }

    async fn settle_in(&mut self, receipt: &Receipt, verdict: Verdict) -> Result<Settled> {
        self.store.settle_in(&mut self.connection, receipt, verdict).await
    }

    async fn lock_in(&mut self, receipt: Receipt) -> Result<()> {
        self.store.lock_in(&mut self.connection, receipt).await
    }

    async fn once_in(&mut self, key: &IdempotencyKey) -> Result<bool> {
        self.store.once_in(&mut self.connection, key).await
    }

    async fn write(&mut self, entry: &str) -> Result<(), BoxError> {
        // The store keeps values by key; a ledger keeps every row, so each gets a key of its own.
        static ROWS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let row = ROWS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(self.connection.put(row.to_string(), Json::new(entry)?)?)
    }

    async fn read(&mut self) -> Result<Vec<String>, BoxError> {
        let rows = self.store.values().into_values();
        Ok(rows.map(|entry| entry.to::<String>()).collect::<Result<_, _>>()?)
    }

    async fn commit(mut self: Box<Self>) -> Result<(), BoxError> {
        Ok(self.connection.commit()?)
    }

    async fn rollback(mut self: Box<Self>) -> Result<(), BoxError> {
        self.connection.rollback();
        Ok(())
    }
}
