//! Transactions of tokio-postgres's.

use async_trait::async_trait;
use leasehold_conformance::{BoxError, Ending, Isolation, Transaction};
use leasehold_core::{Enqueued, IdempotencyKey, NewJob, Receipt, Result, Settled, TxStore, Verdict};
use leasehold_postgres::{PgStore, Schema};
use tokio::task::JoinHandle;
use tokio_postgres::NoTls;

use crate::support::{Database, end, set_level};

/// Opens a connection for each transaction.
pub(crate) struct Driver {
    url: String,
}

#[async_trait]
impl super::Driver for Driver {
    fn open(url: &str) -> Result<Self, BoxError> {
        Ok(Self { url: url.to_owned() })
    }

    async fn begin(&self, database: &Database) -> Result<Box<dyn Transaction>, BoxError> {
        Ok(Box::new(self.session(database).await?))
    }

    async fn begin_at(
        &self,
        database: &Database,
        level: Isolation,
    ) -> Result<Box<dyn Transaction>, BoxError> {
        let session = self.session(database).await?;
        session.transaction.batch_execute(&set_level(level)).await?;
        Ok(Box::new(session))
    }
}

impl Driver {
    async fn session(&self, database: &Database) -> Result<Session, BoxError> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        let connection = Closing(tokio::spawn(async { drop(connection.await) }));
        // The transaction borrows its client, and both have to go into one box: so the client is never freed.
        let transaction = Box::leak(Box::new(client)).transaction().await?;
        let (store, schema) = (database.home.clone(), database.schema.clone());
        Ok(Session { store, schema, transaction, connection })
    }
}

struct Session {
    store: PgStore,
    schema: Schema,
    transaction: tokio_postgres::Transaction<'static>,
    connection: Closing,
}

/// Closes the connection when it is dropped, so that the server rolls back.
struct Closing(JoinHandle<()>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[async_trait]
impl Transaction for Session {
    async fn enqueue_in(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.store.enqueue_in(&mut self.transaction, jobs).await
    }

    async fn settle_in(&mut self, receipt: &Receipt, verdict: Verdict) -> Result<Settled> {
        self.store.settle_in(&mut self.transaction, receipt, verdict).await
    }

    async fn lock_in(&mut self, receipt: Receipt) -> Result<()> {
        self.store.lock_in(&mut self.transaction, receipt).await
    }

    async fn once_in(&mut self, key: &IdempotencyKey) -> Result<bool> {
        self.store.once_in(&mut self.transaction, key).await
    }

    async fn write(&mut self, entry: &str) -> Result<(), BoxError> {
        let insert = format!("INSERT INTO {}.ledger VALUES ($1)", self.schema);
        self.transaction.execute(&insert, &[&entry]).await?;
        Ok(())
    }

    async fn read(&mut self) -> Result<Vec<String>, BoxError> {
        let select = format!("SELECT entry FROM {}.ledger", self.schema);
        Ok(self.transaction.query(&select, &[]).await?.iter().map(|row| row.get(0)).collect())
    }

    async fn end(&mut self, how: Ending) -> Result<bool, BoxError> {
        end!(how, self.store, self.schema, |text| self.transaction.batch_execute(text))
    }

    async fn commit(self: Box<Self>) -> Result<(), BoxError> {
        let Self { transaction, connection: _open, .. } = *self;
        Ok(transaction.commit().await?)
    }

    async fn rollback(self: Box<Self>) -> Result<(), BoxError> {
        let Self { transaction, connection: _open, .. } = *self;
        Ok(transaction.rollback().await?)
    }
}
