//! The operations of a user's transaction.
//!
//! The user opens, owns and commits the transaction; here it is only spoken on. What the server gives up on, a deadlock above
//! all, may have undone the whole transaction: diesel is told that it is broken, so that it cannot be committed any more.

use async_trait::async_trait;
use diesel::sql_types::BigInt;
use diesel_async::pooled_connection::deadpool::Object;
use diesel_async::{AnsiTransactionManager, AsyncMysqlConnection, TransactionManager};
use futures_util::future::BoxFuture;
use leasehold_core::{
    Enqueued, IdempotencyKey, NewJob, Receipt, Result, SettleOutcome, Settled, StoreError, TxStore, Verdict,
    backend,
};
use leasehold_sql::micros;

use crate::error::Failure;
use crate::session::Session;
use crate::{MysqlStore, Shared, enqueue, settle};

#[async_trait]
impl TxStore<AsyncMysqlConnection> for MysqlStore {
    async fn enqueue_in(&self, conn: &mut AsyncMysqlConnection, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        backend::check_enqueue(jobs, &self.shared.capabilities)?;
        self.shared
            .within(conn, "enqueue_in", &jobs, |session, jobs| Box::pin(enqueue::enqueue(session, jobs)))
            .await
    }

    async fn settle_in(
        &self,
        conn: &mut AsyncMysqlConnection,
        receipt: &Receipt,
        verdict: Verdict,
    ) -> Result<Settled> {
        backend::check_verdict(&verdict, &self.shared.capabilities)?;
        let items = [(*receipt, verdict)];
        let work = self
            .shared
            .within(conn, "settle_in", &items, |session, items| Box::pin(settle::settle(session, items)));
        match work.await?.into_iter().next() {
            Some(SettleOutcome::Settled(settled)) => Ok(settled),
            _ => Err(StoreError::lease_lost("settle_in", *receipt)), // T3
        }
    }

    async fn lock_in(&self, conn: &mut AsyncMysqlConnection, receipt: Receipt) -> Result<()> {
        let work = self
            .shared
            .within(conn, "lock_in", &receipt, |session, receipt| Box::pin(lock(session, receipt)));
        match work.await? {
            true => Ok(()),
            false => Err(StoreError::lease_lost("lock_in", receipt)), // T3
        }
    }

    async fn once_in(&self, conn: &mut AsyncMysqlConnection, key: &IdempotencyKey) -> Result<bool> {
        self.shared.within(conn, "once_in", key, |session, key| Box::pin(once(session, key))).await
    }
}

/// The pooled connection, too: diesel-async's `transaction` hands that on.
#[async_trait]
impl TxStore<Object<AsyncMysqlConnection>> for MysqlStore {
    async fn enqueue_in(
        &self,
        conn: &mut Object<AsyncMysqlConnection>,
        jobs: &[NewJob],
    ) -> Result<Vec<Enqueued>> {
        self.enqueue_in(&mut **conn, jobs).await
    }

    async fn settle_in(
        &self,
        conn: &mut Object<AsyncMysqlConnection>,
        receipt: &Receipt,
        verdict: Verdict,
    ) -> Result<Settled> {
        self.settle_in(&mut **conn, receipt, verdict).await
    }

    async fn lock_in(&self, conn: &mut Object<AsyncMysqlConnection>, receipt: Receipt) -> Result<()> {
        self.lock_in(&mut **conn, receipt).await
    }

    async fn once_in(&self, conn: &mut Object<AsyncMysqlConnection>, key: &IdempotencyKey) -> Result<bool> {
        self.once_in(&mut **conn, key).await
    }
}

/// Whether the receipt is good; its job is locked then (T10).
async fn lock(session: &mut Session<'_>, receipt: &Receipt) -> Result<bool, Failure> {
    let sql = session.sql;
    let params = vec![receipt.job.get().into(), receipt.epoch.get().into()];
    Ok(session.row::<BigInt, i64>(&sql.lock_in, params).await?.is_some())
}

async fn once(session: &mut Session<'_>, key: &IdempotencyKey) -> Result<bool, Failure> {
    let sql = session.sql;
    let params = vec![key.as_str().into(), micros(key.kept_for()).into()];
    Ok(session.count(&sql.once, params).await? == 1) // T5
}

impl Shared {
    /// Does `work` on the user's connection.
    async fn within<I: ?Sized, T>(
        &self,
        conn: &mut AsyncMysqlConnection,
        operation: &'static str,
        input: &I,
        work: for<'s, 'c> fn(&'s mut Session<'c>, &'s I) -> BoxFuture<'s, Result<T, Failure>>,
    ) -> Result<T> {
        in_transaction(conn, operation)?;
        let packet = self.packet(conn).await.map_err(|failure| failure.told(operation))?;
        let mut session = Session::users(conn, &self.sql, packet);
        let done = work(&mut session, input).await;
        if done.as_ref().is_err_and(Failure::is_read_only) {
            self.connections.retire_all();
        }
        if done.as_ref().is_err_and(Failure::breaks_transaction) {
            // The server may have undone all of it, and what is said next would be a transaction of its own.
            AnsiTransactionManager::transaction_manager_status_mut(conn).set_in_error();
        }
        done.map_err(|failure| failure.told(operation))
    }
}

/// Refuses a connection on which diesel has opened no transaction (T4).
fn in_transaction(conn: &mut AsyncMysqlConnection, operation: &'static str) -> Result<()> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(conn);
    match status.transaction_depth() {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(StoreError::no_transaction(operation)),
        Err(error) => Err(Failure::Lost(error.into()).told(operation)),
    }
}
