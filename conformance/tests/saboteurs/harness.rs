//! How the suite gets at the naive store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_conformance::{BoxError, Ending, Harness, Isolation, Transaction};
use leasehold_core::{
    Enqueued, IdempotencyKey, JobId, NewJob, Receipt, Result, Settled, Store, TxStore, Verdict,
};

use crate::fault::Fault;
use crate::naive::{Database, Naive, NaiveConnection};
use crate::overridden::Overridden;

/// The naive store, right or with one fault.
#[derive(Clone)]
pub(crate) struct Saboteur {
    pub(crate) fault: Option<Fault>,
    pub(crate) model_cases: u32,
    /// How long each race goes on.
    pub(crate) race_budget: Duration,
    /// Whether open transactions lock what they settle. Some faults have them in any case.
    pub(crate) row_locks: bool,
}

#[async_trait]
impl Harness for Saboteur {
    type Database = Arc<Database>;

    fn name(&self) -> &str {
        "naive"
    }

    async fn create(&self) -> Result<Arc<Database>, BoxError> {
        let row_locks = self.row_locks || self.fault.is_some_and(Fault::is_of_row_locks);
        Ok(Arc::new(Database::new(self.fault, row_locks)))
    }

    async fn connect(&self, database: &Arc<Database>) -> Result<Arc<dyn Store>, BoxError> {
        let naive = Arc::new(database.connect());
        Ok(match self.fault {
            Some(fault) => Arc::new(Overridden { inner: naive, fault }),
            None => naive,
        })
    }

    async fn age(&self, database: &Arc<Database>, by: Duration) -> Result<(), BoxError> {
        database.age(by);
        Ok(())
    }

    async fn set_back(&self, database: &Arc<Database>, by: Duration) -> Result<bool, BoxError> {
        database.set_back(by);
        Ok(true)
    }

    async fn save(&self, database: &Arc<Database>) -> Result<bool, BoxError> {
        database.save();
        Ok(true)
    }

    async fn lose(&self, database: &Arc<Database>) -> Result<(), BoxError> {
        database.lose();
        Ok(())
    }

    async fn finish_twin(&self, database: &Arc<Database>, id: JobId) -> Result<bool, BoxError> {
        database.finish_twin(id);
        Ok(true)
    }

    async fn begin(&self, database: &Arc<Database>) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        self.begin_at(database, Isolation::Serializable).await
    }

    async fn begin_at(
        &self,
        database: &Arc<Database>,
        level: Isolation,
    ) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        let mut conn = NaiveConnection::new(database);
        conn.begin(level);
        Ok(Some(Box::new(Open { store: database.connect(), conn })))
    }

    async fn no_transaction(
        &self,
        database: &Arc<Database>,
    ) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        Ok(Some(Box::new(Open { store: database.connect(), conn: NaiveConnection::new(database) })))
    }

    async fn ledger(&self, database: &Arc<Database>) -> Result<Vec<String>, BoxError> {
        Ok(database.ledger())
    }

    fn model_cases(&self) -> u32 {
        self.model_cases
    }

    fn race_budget(&self) -> Duration {
        self.race_budget
    }
}

struct Open {
    store: Naive,
    conn: NaiveConnection,
}

#[async_trait]
impl Transaction for Open {
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
        Ok(self.conn.write(entry)?)
    }

    async fn read(&mut self) -> Result<Vec<String>, BoxError> {
        Ok(self.conn.read())
    }

    async fn end(&mut self, how: Ending) -> Result<bool, BoxError> {
        Ok(self.conn.end(how)?)
    }

    async fn commit(mut self: Box<Self>) -> Result<(), BoxError> {
        Ok(self.conn.commit()?)
    }

    async fn rollback(mut self: Box<Self>) -> Result<(), BoxError> {
        self.conn.rollback();
        Ok(())
    }
}
