//! The operations of a user's transaction.
//!
//! The user opens, owns and commits the transaction; here it is only spoken on. An expected outcome is an answer, and one
//! that fails leaves nothing of itself, so that the transaction can go on.

pub(crate) mod lock;

use async_trait::async_trait;
use diesel::connection::{AnsiTransactionManager, TransactionManager};
use diesel::sqlite::SqliteConnection;
use leasehold_core::{
    Enqueued, IdempotencyKey, NewJob, Receipt, Result, SettleOutcome, Settled, StoreError, TxStore, Verdict,
    backend,
};

use crate::connect::Place;
use crate::error::Failure;
use crate::session::Session;
use crate::{Shared, SqliteStore, enqueue, settle};

/// Runs `work` in a transaction on `conn`: committed if it succeeds, rolled back if it fails or if the future is dropped.
///
/// It is diesel's `immediate_transaction` for work that is written `async`, as the operations of a
/// [`TxStore`] are. It takes the lock at once, and blocks the thread until it has it, for as long as the connection's
/// `busy_timeout` says; the writers of this process's stores make way for it. While it is open nobody else writes: do
/// nothing slow inside.
///
/// # Errors
/// What `work` fails with, or diesel's error of the `BEGIN` or the `COMMIT`.
pub async fn transaction<T, E>(
    conn: &mut SqliteConnection,
    work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, E>,
) -> Result<T, E>
where
    E: From<diesel::result::Error>,
{
    lock::begin(conn)?;
    let mut open = Open { conn, ended: false };
    let done = work(open.conn).await?;
    open.ended = true;
    AnsiTransactionManager::commit_transaction(open.conn)?;
    Ok(done)
}

/// A transaction that is rolled back if nobody ends it.
struct Open<'c> {
    conn: &'c mut SqliteConnection,
    ended: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.ended {
            drop(AnsiTransactionManager::rollback_transaction(self.conn));
        }
    }
}

/// On diesel's own connection, whose statements block the thread: they are short, and the lock is waited for by the first
/// one that writes, or by `immediate_transaction`.
#[async_trait]
impl TxStore<SqliteConnection> for SqliteStore {
    async fn enqueue_in(&self, conn: &mut SqliteConnection, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        backend::check_enqueue(jobs, &self.shared.capabilities)?;
        self.shared.within(conn, "enqueue_in", |session| enqueue::enqueue(session, jobs))
    }

    async fn settle_in(
        &self,
        conn: &mut SqliteConnection,
        receipt: &Receipt,
        verdict: Verdict,
    ) -> Result<Settled> {
        backend::check_verdict(&verdict, &self.shared.capabilities)?;
        let items = [(*receipt, verdict)];
        let outcomes = self.shared.within(conn, "settle_in", |session| settle::settle(session, &items))?;
        match outcomes.into_iter().next() {
            Some(SettleOutcome::Settled(settled)) => Ok(settled),
            _ => Err(StoreError::lease_lost("settle_in", *receipt)), // T3
        }
    }

    async fn once_in(&self, conn: &mut SqliteConnection, key: &IdempotencyKey) -> Result<bool> {
        self.shared.within(conn, "once_in", |session| {
            let sql = session.sql;
            Ok(session.count(&sql.once, vec![key.as_str().into(), session.now.into()])? == 1) // T5
        })
    }
}

impl Shared {
    /// Does `work` on the user's connection, as a whole or not at all.
    fn within<T>(
        &self,
        conn: &mut SqliteConnection,
        operation: &'static str,
        work: impl FnOnce(&mut Session<'_>) -> Result<T, Failure>,
    ) -> Result<T> {
        if self.connector.place == Place::Memory {
            return Err(StoreError::unsupported("transactions on a database in memory"));
        }
        in_transaction(conn, operation)?;
        let done = Session::new(conn, &self.sql, &self.clock).whole(work);
        done.map_err(|failure| failure.told(operation))
    }
}

/// Refuses a connection on which diesel has opened no transaction (T4).
fn in_transaction(conn: &mut SqliteConnection, operation: &'static str) -> Result<()> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(conn);
    match status.transaction_depth() {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(StoreError::no_transaction(operation)),
        Err(error) => Err(Failure::from(error).told(operation)),
    }
}
