//! On a connection of sqlx's.

use async_trait::async_trait;
use leasehold_core::{
    Enqueued, IdempotencyKey, NewJob, Receipt, Result, Settled, StoreError, TxStore, Verdict,
};
use sqlx::{Connection, PgConnection};

use crate::PgStore;
use crate::session::Asking;

/// With the feature `sqlx`. Of a `sqlx::Transaction` give `&mut *tx`.
#[async_trait]
impl TxStore<PgConnection> for PgStore {
    async fn enqueue_in(&self, conn: &mut PgConnection, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        in_transaction(conn, "enqueue_in")?;
        self.shared.enqueue_in(&mut Asking::new(conn), jobs).await
    }

    async fn settle_in(
        &self,
        conn: &mut PgConnection,
        receipt: &Receipt,
        verdict: Verdict,
    ) -> Result<Settled> {
        in_transaction(conn, "settle_in")?;
        self.shared.settle_in(&mut Asking::new(conn), receipt, verdict).await
    }

    async fn lock_in(&self, conn: &mut PgConnection, receipt: Receipt) -> Result<()> {
        in_transaction(conn, "lock_in")?;
        self.shared.lock_in(&mut Asking::new(conn), receipt).await
    }

    async fn once_in(&self, conn: &mut PgConnection, key: &IdempotencyKey) -> Result<bool> {
        in_transaction(conn, "once_in")?;
        self.shared.once_in(&mut Asking::new(conn), key).await
    }
}

/// Refuses a connection on which sqlx has begun no transaction (T4). Whether it is still open, the server is [asked](Asking).
fn in_transaction(conn: &PgConnection, operation: &'static str) -> Result<()> {
    if conn.is_in_transaction() { Ok(()) } else { Err(StoreError::no_transaction(operation)) }
}
