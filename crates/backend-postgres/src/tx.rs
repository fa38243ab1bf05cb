//! The operations of a user's transaction.
//!
//! The user opens, owns and commits the transaction; here it is only spoken on. An expected outcome is an answer of the
//! statement, never an error of the server's, which would end the transaction.

mod error;
#[cfg(feature = "sqlx")]
mod sqlx;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

use async_trait::async_trait;
use diesel_async::pooled_connection::deadpool::Object;
use diesel_async::{AnsiTransactionManager, AsyncPgConnection, TransactionManager};
use leasehold_core::{
    Enqueued, IdempotencyKey, NewJob, Receipt, ReceiptStatus, Result, SettleOutcome, Settled, StoreError,
    TxStore, Verdict, backend,
};
use leasehold_sql::micros;

use crate::error::{Effect, Failure};
use crate::events::News;
use crate::session::{Asking, Session};
use crate::sql::Statements;
pub use crate::tx::error::TxError;
use crate::{PgStore, Shared, enqueue, inspect, settle};

#[async_trait]
impl TxStore<AsyncPgConnection> for PgStore {
    async fn enqueue_in(&self, conn: &mut AsyncPgConnection, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        in_transaction(conn, "enqueue_in")?;
        self.shared.enqueue_in(&mut Asking::new(conn), jobs).await
    }

    async fn settle_in(
        &self,
        conn: &mut AsyncPgConnection,
        receipt: &Receipt,
        verdict: Verdict,
    ) -> Result<Settled> {
        in_transaction(conn, "settle_in")?;
        self.shared.settle_in(&mut Asking::new(conn), receipt, verdict).await
    }

    async fn lock_in(&self, conn: &mut AsyncPgConnection, receipt: Receipt) -> Result<()> {
        in_transaction(conn, "lock_in")?;
        self.shared.lock_in(&mut Asking::new(conn), receipt).await
    }

    async fn once_in(&self, conn: &mut AsyncPgConnection, key: &IdempotencyKey) -> Result<bool> {
        in_transaction(conn, "once_in")?;
        self.shared.once_in(&mut Asking::new(conn), key).await
    }
}

/// The pooled connection, too: diesel-async's `transaction` hands that on.
#[async_trait]
impl TxStore<Object<AsyncPgConnection>> for PgStore {
    async fn enqueue_in(
        &self,
        conn: &mut Object<AsyncPgConnection>,
        jobs: &[NewJob],
    ) -> Result<Vec<Enqueued>> {
        self.enqueue_in(&mut **conn, jobs).await
    }

    async fn settle_in(
        &self,
        conn: &mut Object<AsyncPgConnection>,
        receipt: &Receipt,
        verdict: Verdict,
    ) -> Result<Settled> {
        self.settle_in(&mut **conn, receipt, verdict).await
    }

    async fn lock_in(&self, conn: &mut Object<AsyncPgConnection>, receipt: Receipt) -> Result<()> {
        self.lock_in(&mut **conn, receipt).await
    }

    async fn once_in(&self, conn: &mut Object<AsyncPgConnection>, key: &IdempotencyKey) -> Result<bool> {
        self.once_in(&mut **conn, key).await
    }
}

/// Refuses a connection on which diesel has opened no transaction (T4). Whether it is still open, the server is [asked](Asking).
fn in_transaction(conn: &mut AsyncPgConnection, operation: &'static str) -> Result<()> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(conn);
    match status.transaction_depth() {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(StoreError::no_transaction(operation)),
        Err(error) => Err(Failure::from(error).told(operation, Effect::Read)),
    }
}

impl Shared {
    pub(crate) async fn enqueue_in<S: Session>(
        &self,
        session: &mut S,
        jobs: &[NewJob],
    ) -> Result<Vec<Enqueued>> {
        backend::check_enqueue(jobs, &self.capabilities)?;
        if jobs.is_empty() {
            return Ok(Vec::new()); // I2
        }
        let enqueued = self.enqueue_on(session, jobs).await;
        match enqueued {
            Err(failure) => Err(self.undone(session, "enqueue_in", self.make_room_for(failure).await)),
            Ok(enqueued) => Ok(enqueued),
        }
    }

    async fn enqueue_on<S: Session>(
        &self,
        session: &mut S,
        jobs: &[NewJob],
    ) -> Result<Vec<Enqueued>, Failure> {
        let answers = enqueue::enqueue_in(session, &self.sql, jobs, self.chunks).await?;
        let queues = jobs.iter().map(|job| job.queue().as_str());
        self.hub.wake_in(session, &self.sql, queues).await?;
        self.hub.tell_in(session, &self.sql, News::enqueued(jobs, &answers, None)).await?;
        Ok(answers)
    }

    pub(crate) async fn settle_in<S: Session>(
        &self,
        session: &mut S,
        receipt: &Receipt,
        verdict: Verdict,
    ) -> Result<Settled> {
        backend::check_verdict(&verdict, &self.capabilities)?;
        let settled = self.settle_on(session, &(*receipt, verdict)).await;
        let settled = match settled {
            Err(failure) => Err(self.undone(session, "settle_in", self.make_room_for(failure).await)),
            Ok(settled) => Ok(settled),
        }?;
        match settled {
            Some(settled) => Ok(settled),
            None => Err(self.lost(session, "settle_in", *receipt).await),
        }
    }

    /// The lease is lost (T3), unless the transaction is too old to see it: above READ COMMITTED it may have begun before the lease.
    async fn lost<S: Session>(
        &self,
        session: &mut S,
        operation: &'static str,
        receipt: Receipt,
    ) -> StoreError {
        let params = vec![receipt.job.get().into(), receipt.epoch.get().into()];
        match session.numbers(&self.sql.sees_no_lease, params).await {
            Ok(rows) if rows.is_empty() => StoreError::lease_lost(operation, receipt),
            Ok(_) => match self.is_held(operation, receipt).await {
                Ok(false) => StoreError::lease_lost(operation, receipt),
                Ok(true) => StoreError::old_snapshot(operation, "the transaction began before the lease"),
                Err(error) => error,
            },
            Err(failure) => self.undone(session, operation, failure),
        }
    }

    /// Whether the receipt is good, as another session sees it.
    async fn is_held(&self, operation: &'static str, receipt: Receipt) -> Result<bool> {
        let mut conn = self.connection(operation).await?;
        let looked = inspect::receipts(&mut conn, &self.sql, &[receipt]).await;
        let status = conn.judge(looked, Effect::Read)?;
        Ok(matches!(status[..], [ReceiptStatus::Held { .. }]))
    }

    async fn settle_on<S: Session>(
        &self,
        session: &mut S,
        item: &(Receipt, Verdict),
    ) -> Result<Option<Settled>, Failure> {
        let (receipt, _) = item;
        let places = self.places(session, std::iter::once(receipt)).await?;
        let Some((settled, wake)) = settle::settle_in(session, &self.sql, item).await? else {
            return Ok(None);
        };
        self.hub.wake_in(session, &self.sql, wake.iter().map(String::as_str)).await?;
        let outcome = SettleOutcome::Settled(settled.clone());
        self.hub.tell_in(session, &self.sql, News::settled([(receipt, &outcome)], &places)).await?;
        Ok(Some(settled))
    }

    pub(crate) async fn lock_in<S: Session>(&self, session: &mut S, receipt: Receipt) -> Result<()> {
        let locked = lock(session, &self.sql, receipt).await;
        match locked.map_err(|failure| self.undone(session, "lock_in", failure))? {
            true => Ok(()),
            false => Err(self.lost(session, "lock_in", receipt).await),
        }
    }

    pub(crate) async fn once_in<S: Session>(&self, session: &mut S, key: &IdempotencyKey) -> Result<bool> {
        let params = vec![key.as_str().into(), micros(key.kept_for()).into()];
        let taken = session.count(&self.sql.once, params).await;
        Ok(taken.map_err(|failure| self.undone(session, "once_in", failure))? == 1) // T5
    }

    /// What the caller is told. In a transaction that cannot commit any more, nothing was done, whatever happened.
    fn undone<S: Session>(&self, session: &mut S, operation: &'static str, failure: Failure) -> StoreError {
        if failure.is_read_only() || failure.has_no_transaction() {
            session.give_up(); // It must not commit, as if nothing had happened.
        }
        if failure.is_read_only() {
            self.connections.retire_all();
        }
        failure.told(operation, Effect::Read)
    }
}

/// Whether the receipt is good; its job is locked then (T10).
async fn lock<S: Session>(session: &mut S, sql: &Statements, receipt: Receipt) -> Result<bool, Failure> {
    let before = session.numbers(&sql.by_index, Vec::new()).await?;
    let setting = if before.contains(&1) { "on" } else { "off" };
    let params = vec![receipt.job.get().into(), receipt.epoch.get().into(), setting.into()];
    Ok(session.numbers(&sql.lock_in, params).await?.contains(&1))
}
