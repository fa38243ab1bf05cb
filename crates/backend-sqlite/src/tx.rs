//! The operations of a user's transaction.
//!
//! The user opens, owns and commits the transaction; here it is only spoken on. An expected outcome is an answer, and one
//! that fails leaves nothing of itself, so that the transaction can go on.

pub(crate) mod lane;
mod lock;
mod timer;

use std::time::{Duration, Instant};

use async_trait::async_trait;
use diesel::connection::{AnsiTransactionManager, SimpleConnection, TransactionManager};
use diesel::sqlite::SqliteConnection;
use leasehold_core::{
    Enqueued, IdempotencyKey, NewJob, Receipt, Result, SettleOutcome, Settled, StoreError, TxStore, Verdict,
    backend, time,
};

use crate::connect::Place;
use crate::error::Failure;
use crate::hints::hint;
use crate::session::Session;
use crate::{Shared, SqliteStore, enqueue, settle};
use lock::{Impatient, Pauses};

/// Runs `work` in a transaction on `conn`: committed if it succeeds, rolled back if it fails or if the future is dropped.
///
/// It is diesel's `immediate_transaction` for work that is written `async`, as the operations of a
/// [`TxStore`] are. It takes the lock first. If another connection has it, this future waits, for as long as the
/// connection's `busy_timeout` says, and blocks no thread. Transactions of one process get the lock in the order in which they
/// asked for it, and the stores of this process give way to them. `work` may await other futures. While the transaction is
/// open no other connection can write, so keep it short.
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
    lock::begin(conn).await?;
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

/// On diesel's own connection. [`transaction`] and diesel's `immediate_transaction` have the lock before the first of these
/// calls. In another transaction the first call that writes waits for the lock for 250 ms at most, without blocking the
/// thread: if another connection has written since the transaction began to read, waiting longer cannot help.
#[async_trait]
impl TxStore<SqliteConnection> for SqliteStore {
    async fn enqueue_in(&self, conn: &mut SqliteConnection, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        backend::check_enqueue(jobs, &self.shared.capabilities)?;
        self.shared.within(conn, "enqueue_in", |session| enqueue::enqueue(session, jobs)).await
    }

    async fn settle_in(
        &self,
        conn: &mut SqliteConnection,
        receipt: &Receipt,
        verdict: Verdict,
    ) -> Result<Settled> {
        backend::check_verdict(&verdict, &self.shared.capabilities)?;
        let items = [(*receipt, verdict)];
        let settle = |session: &mut Session<'_>| match settle::settle(session, &items)?.pop() {
            Some(SettleOutcome::Settled(settled)) => Ok(Some(settled)),
            // A transaction that has only read may see the file as it was before the lease. Then it cannot write, and this fails.
            _ => lock(session, *receipt).map(|_| None),
        };
        let settled = self.shared.within(conn, "settle_in", settle).await?;
        settled.ok_or_else(|| StoreError::lease_lost("settle_in", *receipt)) // T3
    }

    async fn lock_in(&self, conn: &mut SqliteConnection, receipt: Receipt) -> Result<()> {
        match self.shared.within(conn, "lock_in", |session| lock(session, receipt)).await? {
            true => Ok(()),
            false => Err(StoreError::lease_lost("lock_in", receipt)), // T3
        }
    }

    async fn once_in(&self, conn: &mut SqliteConnection, key: &IdempotencyKey) -> Result<bool> {
        self.shared
            .within(conn, "once_in", |session| {
                let (sql, now) = (session.sql, session.now);
                let kept_until = time::later(now, key.kept_for());
                Ok(session.count(&sql.once, vec![key.as_str().into(), now.into(), kept_until.into()])? == 1) // T5
            })
            .await
    }
}

/// Whether the receipt is good. Takes the lock of the file in any case.
fn lock(session: &mut Session<'_>, receipt: Receipt) -> Result<bool, Failure> {
    let params = vec![receipt.job.get().into(), receipt.epoch.get().into()];
    Ok(session.count(&session.sql.lock_in, params)? > 0)
}

/// How long a call waits for the lock in a transaction that does not have it yet.
const SHORT: Duration = Duration::from_millis(250);

impl Shared {
    /// Does `work` on the user's connection, as a whole or not at all.
    async fn within<T>(
        &self,
        conn: &mut SqliteConnection,
        operation: &'static str,
        work: impl Fn(&mut Session<'_>) -> Result<T, Failure>,
    ) -> Result<T> {
        if self.connector.place == Place::Memory {
            return Err(StoreError::unsupported("transactions on a database in memory"));
        }
        self.files.check().map_err(|moved| moved.told(operation))?;
        in_transaction(conn, operation)?;
        let impatient = Impatient::new(conn).map_err(|error| Failure::from(error).told(operation));
        let mut conn = impatient?;
        let mut pauses = Pauses::until(conn.deadline().min(Instant::now() + SHORT));
        let work_and_hint = |session: &mut Session<'_>| {
            let done = work(session)?;
            hint(session.conn, session.sql, &session.wake)?;
            Ok(done)
        };
        loop {
            match Session::new(&mut conn, &self.sql, &self.clock).whole(work_and_hint) {
                Err(Failure::Busy(_)) if pauses.pause().await => {}
                done => return done.map_err(|failure| failure.told(operation)),
            }
        }
    }
}

/// Refuses a connection on which no transaction is open (T4). diesel counts what it was told to open and to end. SQLite can have ended
/// it since: by a `COMMIT` in the user's own text, by a conflict clause or a trigger that rolls back, or when the disk is full.
fn in_transaction(conn: &mut SqliteConnection, operation: &'static str) -> Result<()> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(conn);
    match status.transaction_depth() {
        Ok(Some(_)) => {}
        Ok(None) => return Err(StoreError::no_transaction(operation)),
        Err(error) => return Err(Failure::from(error).told(operation)),
    }
    if conn.batch_execute("BEGIN").is_err() {
        return Ok(()); // There is one already.
    }
    let undone = conn.batch_execute("ROLLBACK").map_err(|error| Failure::from(error).told(operation));
    // Nothing must be committed any more as if it were the transaction that was lost.
    AnsiTransactionManager::transaction_manager_status_mut(conn).set_in_error();
    undone.and(Err(StoreError::no_transaction(operation)))
}
