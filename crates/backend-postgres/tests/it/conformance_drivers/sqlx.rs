//! Transactions of sqlx's.

use async_trait::async_trait;
use leasehold_conformance::{BoxError, Ending, Isolation, Transaction};
use leasehold_core::{Enqueued, IdempotencyKey, NewJob, Receipt, Result, Settled, TxStore, Verdict};
use leasehold_postgres::{PgStore, Schema};
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};

use crate::support::{Database, end, set_level};

/// A pool for one database.
pub(crate) struct Driver(PgPool);

#[async_trait]
impl super::Driver for Driver {
    fn open(url: &str) -> Result<Self, BoxError> {
        Ok(Self(PgPool::connect_lazy(url)?))
    }

    async fn begin(&self, database: &Database) -> Result<Box<dyn Transaction>, BoxError> {
        Ok(session(database, Connection::Open(self.0.begin().await?)))
    }

    async fn begin_at(
        &self,
        database: &Database,
        level: Isolation,
    ) -> Result<Box<dyn Transaction>, BoxError> {
        let mut transaction = self.0.begin().await?;
        sqlx::query(&set_level(level)).execute(&mut *transaction).await?;
        Ok(session(database, Connection::Open(transaction)))
    }

    async fn no_transaction(&self, database: &Database) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        Ok(Some(session(database, Connection::Idle(self.0.acquire().await?))))
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

enum Connection {
    Open(sqlx::Transaction<'static, Postgres>),
    Idle(PoolConnection<Postgres>),
}

struct Session {
    store: PgStore,
    schema: Schema,
    connection: Connection,
}

fn session(database: &Database, connection: Connection) -> Box<dyn Transaction> {
    Box::new(Session { store: database.home.clone(), schema: database.schema.clone(), connection })
}

impl Session {
    fn conn(&mut self) -> &mut PgConnection {
        match &mut self.connection {
            Connection::Open(transaction) => transaction,
            Connection::Idle(connection) => connection,
        }
    }
}

#[async_trait]
impl Transaction for Session {
    async fn enqueue_in(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        let store = self.store.clone();
        store.enqueue_in(self.conn(), jobs).await
    }

    async fn settle_in(&mut self, receipt: &Receipt, verdict: Verdict) -> Result<Settled> {
        let store = self.store.clone();
        store.settle_in(self.conn(), receipt, verdict).await
    }

    async fn lock_in(&mut self, receipt: Receipt) -> Result<()> {
        let store = self.store.clone();
        store.lock_in(self.conn(), receipt).await
    }

    async fn once_in(&mut self, key: &IdempotencyKey) -> Result<bool> {
        let store = self.store.clone();
        store.once_in(self.conn(), key).await
    }

    async fn write(&mut self, entry: &str) -> Result<(), BoxError> {
        let insert = format!("INSERT INTO {}.ledger VALUES ($1)", self.schema);
        sqlx::query(&insert).bind(entry).execute(self.conn()).await?;
        Ok(())
    }

    async fn read(&mut self) -> Result<Vec<String>, BoxError> {
        let select = format!("SELECT entry FROM {}.ledger", self.schema);
        Ok(sqlx::query_scalar(&select).fetch_all(self.conn()).await?)
    }

    async fn end(&mut self, how: Ending) -> Result<bool, BoxError> {
        let (store, schema) = (self.store.clone(), self.schema.clone());
        end!(how, store, schema, |text| sqlx::query(text).execute(self.conn()))
    }

    async fn commit(self: Box<Self>) -> Result<(), BoxError> {
        match self.connection {
            Connection::Open(transaction) => Ok(transaction.commit().await?),
            Connection::Idle(_) => Err("there is nothing to commit".into()),
        }
    }

    async fn rollback(self: Box<Self>) -> Result<(), BoxError> {
        match self.connection {
            Connection::Open(transaction) => Ok(transaction.rollback().await?),
            Connection::Idle(_) => Err("there is nothing to roll back".into()),
        }
    }
}
