//! The operations of a user's transaction.
//!
//! The user opens, owns and commits the transaction. The server can end it without diesel's knowledge: by a deadlock, a raw `COMMIT`, or a
//! statement that commits by itself. So each call asks the server first. When the transaction has ended, or the server has given up on a
//! statement of the store's, diesel is told that the transaction is broken: it cannot be committed any more.

use async_trait::async_trait;
use diesel::sql_types::BigInt;
use diesel_async::pooled_connection::deadpool::Object;
use diesel_async::{AnsiTransactionManager, AsyncMysqlConnection, SimpleAsyncConnection, TransactionManager};
use futures_util::future::BoxFuture;
use leasehold_core::{
    Enqueued, IdempotencyKey, NewJob, Receipt, Result, SettleOutcome, Settled, StoreError, TxStore, Verdict,
    backend,
};
use leasehold_sql::micros;

use crate::error::Failure;
use crate::packet::Packet;
use crate::session::Session;
use crate::statement::Statement;
use crate::{MysqlStore, Shared, enqueue, settle};

#[async_trait]
impl TxStore<AsyncMysqlConnection> for MysqlStore {
    async fn enqueue_in(&self, conn: &mut AsyncMysqlConnection, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        backend::check_enqueue(jobs, &self.shared.capabilities)?;
        self.shared
            .within(conn, "enqueue_in", &self.shared.sql.is_open, &jobs, |session, jobs| {
                Box::pin(enqueue::enqueue(session, jobs))
            })
            .await
    }

    async fn settle_in(
        &self,
        conn: &mut AsyncMysqlConnection,
        receipt: &Receipt,
        verdict: Verdict,
    ) -> Result<Settled> {
        backend::check_verdict(&verdict, &self.shared.capabilities)?;
        let is_open = match verdict {
            Verdict::Done(_) => &self.shared.sql.is_open_policies,
            _ => &self.shared.sql.is_open,
        };
        let items = [(*receipt, verdict)];
        let work = self.shared.within(conn, "settle_in", is_open, &items, |session, items| {
            Box::pin(settle::settle(session, items))
        });
        match work.await?.into_iter().next() {
            Some(SettleOutcome::Settled(settled)) => Ok(settled),
            _ => Err(StoreError::lease_lost("settle_in", *receipt)), // T3
        }
    }

    async fn lock_in(&self, conn: &mut AsyncMysqlConnection, receipt: Receipt) -> Result<()> {
        let work =
            self.shared.within(conn, "lock_in", &self.shared.sql.is_open, &receipt, |session, receipt| {
                Box::pin(lock(session, receipt))
            });
        match work.await? {
            true => Ok(()),
            false => Err(StoreError::lease_lost("lock_in", receipt)), // T3
        }
    }

    async fn once_in(&self, conn: &mut AsyncMysqlConnection, key: &IdempotencyKey) -> Result<bool> {
        self.shared
            .within(conn, "once_in", &self.shared.sql.is_open, key, |session, key| {
                Box::pin(once(session, key))
            })
            .await
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
    /// Does `work` on the user's connection, if its transaction is open. `is_open` asks the server that.
    async fn within<I: ?Sized, T>(
        &self,
        conn: &mut AsyncMysqlConnection,
        operation: &'static str,
        is_open: &str,
        input: &I,
        work: for<'s, 'c> fn(&'s mut Session<'c>, &'s I) -> BoxFuture<'s, Result<T, Failure>>,
    ) -> Result<T> {
        in_transaction(conn, operation)?;
        let done = match self.ask(conn, is_open).await {
            Ok(packet) => work(&mut Session::users(conn, &self.sql, packet), input).await,
            Err(failure) => Err(failure),
        };
        if done.as_ref().is_err_and(Failure::is_read_only) {
            self.connections.retire_all();
        }
        if done.as_ref().is_err_and(Failure::breaks_transaction) {
            // The server may have undone all of it, and what is said next would be a transaction of its own.
            AnsiTransactionManager::transaction_manager_status_mut(conn).set_in_error();
        }
        done.map_err(|failure| failure.told(operation))
    }

    /// Refuses a session whose transaction the server has ended (T4), or that changes text (E9). Tells how much may be sent at once.
    async fn ask(&self, conn: &mut AsyncMysqlConnection, is_open: &str) -> Result<Packet, Failure> {
        if let Err(error) = conn.batch_execute(is_open).await {
            match Failure::unless(&[NO_SAVEPOINT, NOT_FIT], conn, error).await? {
                NOT_FIT => self.ask_again(conn).await?,
                _ => return Err(Failure::Ended),
            }
        }
        self.packet(conn).await
    }

    /// The same for a session that changes text, or whose `autocommit` is 0.
    async fn ask_again(&self, conn: &mut AsyncMysqlConnection) -> Result<(), Failure> {
        let keeps_text: Vec<i64> =
            Statement::<BigInt>::new(&self.sql.keeps_text, Vec::new()).rows(conn).await?;
        if keeps_text != [1] {
            return Err(StoreError::conflict(CHARACTER_SET).into());
        }
        // Refused within a transaction. Outside it succeeds and does no harm: the connection is given up.
        match conn.batch_execute("SET TRANSACTION READ WRITE").await {
            Ok(()) => Err(Failure::Ended),
            Err(error) => Failure::unless(&[IN_TRANSACTION], conn, error).await.map(drop),
        }
    }
}

/// Answers to `is_open.sql`: there is no such savepoint, and a subquery returns more than one row.
const NO_SAVEPOINT: i64 = 1305;
const NOT_FIT: i64 = 1242;
/// The characteristics of a transaction cannot be changed while it is in progress.
const IN_TRANSACTION: i64 = 1568;

const CHARACTER_SET: &str = "the character set of the session is not utf8mb4, and the server would store other text than was given: \
    run SET NAMES utf8mb4 on this connection, then call again";

/// Refuses a connection on which diesel has opened no transaction (T4).
fn in_transaction(conn: &mut AsyncMysqlConnection, operation: &'static str) -> Result<()> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(conn);
    match status.transaction_depth() {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(StoreError::no_transaction(operation)),
        Err(error) => Err(Failure::Lost(error.into()).told(operation)),
    }
}
