//! On a transaction of tokio-postgres's. It was opened; whether it still is, the server is [asked](Asking).

use async_trait::async_trait;
use leasehold_core::{Enqueued, IdempotencyKey, NewJob, Receipt, Result, Settled, TxStore, Verdict};
use tokio_postgres::Transaction;

use crate::PgStore;
use crate::session::Asking;

/// With the feature `tokio-postgres`.
#[async_trait]
impl<'t> TxStore<Transaction<'t>> for PgStore {
    async fn enqueue_in(&self, tx: &mut Transaction<'t>, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        self.shared.enqueue_in(&mut Asking::new(tx), jobs).await
    }

    async fn settle_in(
        &self,
        tx: &mut Transaction<'t>,
        receipt: &Receipt,
        verdict: Verdict,
    ) -> Result<Settled> {
        self.shared.settle_in(&mut Asking::new(tx), receipt, verdict).await
    }

    async fn lock_in(&self, tx: &mut Transaction<'t>, receipt: Receipt) -> Result<()> {
        self.shared.lock_in(&mut Asking::new(tx), receipt).await
    }

    async fn once_in(&self, tx: &mut Transaction<'t>, key: &IdempotencyKey) -> Result<bool> {
        self.shared.once_in(&mut Asking::new(tx), key).await
    }
}
