//! A connection lent by the pool.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::Metrics;
use diesel_async::pooled_connection::deadpool::Object;
use diesel_async::{AnsiTransactionManager, AsyncPgConnection, TransactionManager};
use leasehold_core::{Result, StoreError};
use leasehold_sql::Lender;
use tokio_postgres::CancelToken;

use crate::Shared;
use crate::connect::Connector;
use crate::error::{Effect, Failure};

/// How long a statement whose future was dropped may take to be cancelled.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pools: one for the store's own statements, one for the transactions of users.
pub(crate) type Connections = Lender<AsyncPgConnection>;

/// A connection for one operation. If it turns out to be dead, or its server to be read-only, the pool does not lend it again.
///
/// If it is dropped before it was [judged](Self::judge), its statement is on the way. On a connection that the store has opened,
/// the statement is then cancelled on the server, so that no server process goes on waiting for a lock; and the pool does not lend
/// the connection again, since the cancellation might hit the next statement. A connection of a user's pool is lent again: the
/// server does the statement to its end, and the next borrower waits for that. No operation opens a transaction on it, so
/// none can be left open: a batch of several statements runs on a connection that is [`Apart`].
pub(crate) struct Lent {
    object: Object<AsyncPgConnection>,
    connections: Arc<Connections>,
    operation: &'static str,
    /// How the connection was opened, if the store did it. Taken when the answer is there.
    connector: Option<Connector>,
}

impl Shared {
    /// A connection for `operation`.
    pub(crate) async fn connection(&self, operation: &'static str) -> Result<Lent> {
        let object = self.lend(operation).await?;
        Ok(Lent {
            object,
            connections: Arc::clone(&self.connections),
            operation,
            connector: self.connector.clone(),
        })
    }

    /// The same, as the pool has it.
    pub(crate) async fn lend(&self, operation: &'static str) -> Result<Object<AsyncPgConnection>> {
        self.connections.get().await.map_err(|error| StoreError::unavailable(operation, error))
    }
}

impl Lent {
    /// Gives the connection back, or up, and tells the caller what a failure means.
    pub(crate) fn judge<T>(mut self, answer: Result<T, Failure>, effect: Effect) -> Result<T> {
        self.connector = None;
        if let Err(failure) = &answer {
            give_up_after(&self.connections, &mut self.object, failure);
        }
        answer.map_err(|failure| failure.told(self.operation, effect))
    }

    /// Gives the connection back when it has answered all that it was asked.
    pub(crate) fn give_back(mut self) {
        self.connector = None;
    }
}

/// A connection for a batch of several statements in one transaction. It is no longer part of its pool: when it is dropped it is closed, and
/// the server undoes what was not committed. Sending a chunk takes much longer than opening another connection.
pub(crate) struct Apart {
    conn: AsyncPgConnection,
    metrics: Metrics,
    connections: Arc<Connections>,
    operation: &'static str,
    /// As that of [`Lent`].
    connector: Option<Connector>,
}

impl Shared {
    /// A connection for the transaction of `operation`.
    pub(crate) async fn apart(&self, operation: &'static str) -> Result<Apart> {
        let object = self.lend(operation).await?;
        let metrics = *Object::metrics(&object);
        Ok(Apart {
            conn: Object::take(object),
            metrics,
            connections: Arc::clone(&self.connections),
            operation,
            connector: self.connector.clone(),
        })
    }
}

impl Apart {
    /// Closes the connection, and tells the caller what a failure means.
    pub(crate) fn judge<T>(mut self, answer: Result<T, Failure>) -> Result<T> {
        self.connector = None;
        if answer.as_ref().is_err_and(Failure::is_read_only) {
            self.connections.retire(&self.metrics);
        }
        answer.map_err(|failure| failure.told(self.operation, Effect::Write))
    }
}

impl Deref for Apart {
    type Target = AsyncPgConnection;
    fn deref(&self) -> &AsyncPgConnection {
        &self.conn
    }
}

impl DerefMut for Apart {
    fn deref_mut(&mut self) -> &mut AsyncPgConnection {
        &mut self.conn
    }
}

/// Gives a connection up if it is dead, and with all of its age if its server is read-only.
pub(crate) fn give_up_after(
    connections: &Connections,
    object: &mut Object<AsyncPgConnection>,
    failure: &Failure,
) {
    if failure.is_read_only() {
        connections.retire(Object::metrics(object));
    }
    if failure.is_read_only() || failure.is_lost() {
        give_up(object);
    }
}

/// The pool closes what is marked so when it is about to lend it.
pub(crate) fn give_up(conn: &mut AsyncPgConnection) {
    AnsiTransactionManager::transaction_manager_status_mut(conn).set_in_error();
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(connector) = self.connector.take() else { return };
        give_up(&mut self.object);
        cancel_soon(self.object.cancel_token(), connector, self.operation);
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some(connector) = self.connector.take() {
            cancel_soon(self.conn.cancel_token(), connector, self.operation);
        }
    }
}

/// Without a runtime, or with one that is shutting down, nothing is cancelled: the timeout for locks ends the wait.
fn cancel_soon(statement: CancelToken, connector: Connector, operation: &'static str) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        drop(runtime.spawn(cancel(statement, connector, operation)));
    }
}

async fn cancel(statement: CancelToken, connector: Connector, operation: &'static str) {
    match tokio::time::timeout(PATIENCE, connector.cancel(&statement)).await {
        Ok(Ok(())) => tracing::debug!(operation, "the future was dropped and its statement cancelled"),
        Ok(Err(error)) => tracing::warn!(operation, %error, "a statement could not be cancelled"),
        Err(_) => tracing::warn!(operation, "a statement could not be cancelled: no answer from the server"),
    }
}

impl Deref for Lent {
    type Target = AsyncPgConnection;
    fn deref(&self) -> &AsyncPgConnection {
        &self.object
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut AsyncPgConnection {
        &mut self.object
    }
}
