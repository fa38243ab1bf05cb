//! A connection lent by the pool.

use std::ops::{Deref, DerefMut};

use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::deadpool::Object;
use leasehold_core::{Result, StoreError};

use crate::Shared;
use crate::error::{Effect, Failure};

/// A connection for one operation. If it turns out to be dead it does not go back to the pool.
///
/// If it is dropped while its statement is on the way, the server does the statement to its end, and whoever gets the
/// connection next waits for that. No operation opens a transaction on it, so none can be left open.
pub(crate) struct Lent {
    object: Object<AsyncPgConnection>,
    operation: &'static str,
}

impl Shared {
    /// A connection for `operation`.
    pub(crate) async fn connection(&self, operation: &'static str) -> Result<Lent> {
        Ok(Lent { object: self.lend(operation).await?, operation })
    }

    /// The same, as the pool has it.
    pub(crate) async fn lend(&self, operation: &'static str) -> Result<Object<AsyncPgConnection>> {
        self.own.get().await.map_err(|error| StoreError::unavailable(operation, error))
    }
}

impl Lent {
    /// Gives the connection back, or up, and tells the caller what a failure means.
    pub(crate) fn judge<T>(self, answer: Result<T, Failure>, effect: Effect) -> Result<T> {
        let operation = self.operation;
        if answer.as_ref().is_err_and(Failure::is_lost) {
            drop(Object::take(self.object));
        }
        answer.map_err(|failure| failure.told(operation, effect))
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
