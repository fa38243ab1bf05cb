//! Connections: what transactions run on.

use std::fmt;
use std::sync::Arc;

use leasehold_core::{Json, Result, StoreError};

use crate::Shared;
use crate::tx::Transaction;

/// A connection to one [`MemoryStore`](crate::MemoryStore), on which transactions run.
///
/// Dropping it rolls an open transaction back. Besides jobs, a transaction can write small documents with
/// [`put`](Self::put): they stand for the business tables of the code under test.
///
/// ```
/// # use leasehold_core::{Json, NewJob, Result, TxStore};
/// # use leasehold_memory::MemoryStore;
/// # async fn example(store: MemoryStore) -> Result<()> {
/// let mut tx = store.begin();
/// store.enqueue_in(&mut tx, &[NewJob::builder("mail", "welcome").build()?]).await?;
/// tx.put("user:1", Json::new("ada")?)?;
/// tx.commit()?; // Both, or neither.
/// # Ok(()) }
/// ```
pub struct MemoryConnection {
    store: Arc<Shared>,
    transaction: Option<Transaction>,
}

impl MemoryConnection {
    pub(crate) fn new(store: Arc<Shared>, transaction: Option<Transaction>) -> Self {
        Self { store, transaction }
    }

    /// Opens a transaction.
    ///
    /// # Errors
    /// [`Conflict`](StoreError::Conflict) if one is open.
    pub fn begin(&mut self) -> Result<()> {
        if self.transaction.is_some() {
            return Err(StoreError::conflict("a transaction is open on this connection"));
        }
        self.transaction = Some(Transaction::default());
        Ok(())
    }

    /// Whether a transaction is open.
    pub fn in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// Writes a document under `key`, to be read with [`MemoryStore::value`](crate::MemoryStore::value) after the
    /// commit. Of two transactions that write one key, the one that commits later counts.
    ///
    /// # Errors
    /// [`NoTransaction`](StoreError::NoTransaction).
    pub fn put(&mut self, key: impl Into<String>, value: Json) -> Result<()> {
        self.open("put")?.values.insert(key.into(), value);
        Ok(())
    }

    /// Does what the transaction holds, all of it or nothing. It is over in either case.
    ///
    /// # Errors
    /// * [`LeaseLost`](StoreError::LeaseLost): a job that it settled was meanwhile settled, reclaimed or taken.
    /// * [`Unavailable`](StoreError::Unavailable): another transaction has meanwhile locked a job that it settled.
    /// * [`Conflict`](StoreError::Conflict): another has meanwhile taken a unique key or a once-key of it.
    /// * [`NoTransaction`](StoreError::NoTransaction).
    pub fn commit(&mut self) -> Result<()> {
        let transaction = self.transaction.take().ok_or(StoreError::NoTransaction { operation: "commit" })?;
        self.store.run(|state| transaction.commit(state))
    }

    /// Forgets what the transaction holds. Without one, nothing happens.
    pub fn rollback(&mut self) {
        self.transaction = None;
    }

    /// The open transaction, if the connection belongs to `store`.
    pub(crate) fn on(&mut self, store: &Arc<Shared>, operation: &'static str) -> Result<&mut Transaction> {
        if !Arc::ptr_eq(&self.store, store) {
            return Err(StoreError::conflict("the connection belongs to another store"));
        }
        self.open(operation)
    }

    fn open(&mut self, operation: &'static str) -> Result<&mut Transaction> {
        self.transaction.as_mut().ok_or(StoreError::NoTransaction { operation }) // T4
    }
}

impl fmt::Debug for MemoryConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.in_transaction();
        f.debug_struct("MemoryConnection").field("in_transaction", &open).finish_non_exhaustive()
    }
}
