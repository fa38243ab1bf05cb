//! The four connections on which a user's transaction may run, each used as its own documentation has it.

use async_trait::async_trait;
use diesel_async::pooled_connection::deadpool::Object;
use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
use leasehold_core::{NewJob, TxStore};
use leasehold_postgres::{PgStore, TxError};
use sqlx::{Connection, Executor, PgConnection};
use tokio_postgres::{NoTls, Transaction};

use super::world::World;

/// What is done in a transaction. It commits if that is well, and rolls back otherwise.
#[async_trait]
pub(crate) trait Work: Send + Sync {
    async fn run<C: Business>(&self, world: &World, conn: &mut C) -> Result<(), TxError>
    where
        PgStore: TxStore<C>;
}

/// What the user does on a connection without us.
#[async_trait]
pub(crate) trait Business: Send {
    /// Runs a statement of the user's.
    async fn statement(&mut self, text: &str) -> Result<(), TxError>;

    /// Enqueues in a savepoint, and rolls back to it.
    async fn enqueue_and_undo(&mut self, store: &PgStore, jobs: &[NewJob]) -> Result<(), TxError>;
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Driver {
    Diesel,
    PooledDiesel,
    TokioPostgres,
    Sqlx,
}

impl Driver {
    pub(crate) const ALL: [Self; 4] = [Self::Diesel, Self::PooledDiesel, Self::TokioPostgres, Self::Sqlx];

    /// Does `work` in a transaction.
    pub(crate) async fn transaction(self, world: &World, work: &impl Work) -> Result<(), TxError> {
        match self {
            Self::Diesel => diesel(world, work).await,
            Self::PooledDiesel => pooled_diesel(world, work).await,
            Self::TokioPostgres => tokio_postgres(world, work).await,
            Self::Sqlx => sqlx(world, work).await,
        }
    }

    /// Does `work` on a connection without a transaction. `None` if there is no such thing.
    pub(crate) async fn outside(self, world: &World, work: &impl Work) -> Option<Result<(), TxError>> {
        match self {
            Self::Diesel => Some(work.run(world, &mut Object::take(world.pooled().await)).await),
            Self::PooledDiesel => Some(work.run(world, &mut world.pooled().await).await),
            Self::TokioPostgres => None,
            Self::Sqlx => Some(work.run(world, &mut *world.sqlx.acquire().await.unwrap()).await),
        }
    }
}

async fn diesel(world: &World, work: &impl Work) -> Result<(), TxError> {
    let mut conn: AsyncPgConnection = Object::take(world.pooled().await);
    conn.transaction(async |conn| work.run(world, conn).await).await
}

async fn pooled_diesel(world: &World, work: &impl Work) -> Result<(), TxError> {
    let mut conn: Object<AsyncPgConnection> = world.pooled().await;
    conn.transaction(async |conn| work.run(world, conn).await).await
}

async fn tokio_postgres(world: &World, work: &impl Work) -> Result<(), TxError> {
    let (mut client, connection) = tokio_postgres::connect(&world.url, NoTls).await?;
    tokio::spawn(connection);
    let mut tx = client.transaction().await?;
    work.run(world, &mut tx).await?;
    Ok(tx.commit().await?)
}

async fn sqlx(world: &World, work: &impl Work) -> Result<(), TxError> {
    let mut tx = world.sqlx.begin().await?;
    work.run(world, &mut *tx).await?;
    Ok(tx.commit().await?)
}

#[async_trait]
impl Business for AsyncPgConnection {
    async fn statement(&mut self, text: &str) -> Result<(), TxError> {
        Ok(self.batch_execute(text).await?)
    }

    async fn enqueue_and_undo(&mut self, store: &PgStore, jobs: &[NewJob]) -> Result<(), TxError> {
        let undone = self.transaction(async |inner| enqueue_and_fail(store, inner, jobs).await).await;
        undone.or_else(rolled_back)
    }
}

#[async_trait]
impl Business for Object<AsyncPgConnection> {
    async fn statement(&mut self, text: &str) -> Result<(), TxError> {
        Ok(self.batch_execute(text).await?)
    }

    async fn enqueue_and_undo(&mut self, store: &PgStore, jobs: &[NewJob]) -> Result<(), TxError> {
        let undone = self.transaction(async |inner| enqueue_and_fail(store, inner, jobs).await).await;
        undone.or_else(rolled_back)
    }
}

async fn enqueue_and_fail<C: Send>(store: &PgStore, conn: &mut C, jobs: &[NewJob]) -> Result<(), TxError>
where
    PgStore: TxStore<C>,
{
    store.enqueue_in(conn, jobs).await?;
    Err(diesel::result::Error::RollbackTransaction.into())
}

fn rolled_back(error: TxError) -> Result<(), TxError> {
    match error {
        TxError::Database(diesel::result::Error::RollbackTransaction) => Ok(()),
        error => Err(error),
    }
}

#[async_trait]
impl Business for Transaction<'_> {
    async fn statement(&mut self, text: &str) -> Result<(), TxError> {
        Ok(self.batch_execute(text).await?)
    }

    async fn enqueue_and_undo(&mut self, store: &PgStore, jobs: &[NewJob]) -> Result<(), TxError> {
        let mut inner = self.transaction().await?;
        store.enqueue_in(&mut inner, jobs).await?;
        Ok(inner.rollback().await?)
    }
}

#[async_trait]
impl Business for PgConnection {
    async fn statement(&mut self, text: &str) -> Result<(), TxError> {
        Ok(self.execute(text).await.map(drop)?)
    }

    async fn enqueue_and_undo(&mut self, store: &PgStore, jobs: &[NewJob]) -> Result<(), TxError> {
        let mut inner = self.begin().await?;
        store.enqueue_in(&mut *inner, jobs).await?;
        Ok(inner.rollback().await?)
    }
}
