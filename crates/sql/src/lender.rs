//! Lending the connections of a store, until their server takes no more writes.

use std::time::Instant;

use deadpool::managed::{Manager, Metrics};
use diesel_async::pooled_connection::deadpool::{Object, Pool, PoolError};
use diesel_async::pooled_connection::{
    AsyncDieselConnectionManager, PoolError as ManagerError, PoolableConnection,
};
use tokio::sync::watch;

/// Lends the connections of a store.
///
/// After a failover the old primary may live on as a read-only node and keep its sessions. Such a connection answers every ping and
/// refuses every write, so it would stay in its pool for ever. When one is refused, it is retired, and so is every connection that
/// was opened before that moment: the next ones are opened anew, and reach the new primary.
#[derive(Debug)]
pub struct Lender<C>
where
    C: PoolableConnection + 'static,
    AsyncDieselConnectionManager<C>: Manager<Type = C>,
{
    own: Pool<C>,
    users: Pool<C>,
    /// Connections that were opened before this moment are not lent any more.
    retired: watch::Sender<Option<Instant>>,
}

impl<C> Lender<C>
where
    C: PoolableConnection + 'static,
    AsyncDieselConnectionManager<C>: Manager<Type = C, Error = ManagerError>,
{
    /// `own` is the pool that is lent from. `users` is the pool for the transactions of users, or the same one.
    pub fn new(own: Pool<C>, users: Pool<C>) -> Self {
        Self { own, users, retired: watch::Sender::new(None) }
    }

    /// The pool that is lent from.
    pub fn own(&self) -> &Pool<C> {
        &self.own
    }

    /// The pool for the transactions of users.
    pub fn users(&self) -> &Pool<C> {
        &self.users
    }

    /// A connection that is not retired.
    ///
    /// # Errors
    /// Those of [`Pool::get`].
    pub async fn get(&self) -> Result<Object<C>, PoolError> {
        loop {
            let object = self.own.get().await?;
            if !self.is_retired(Object::metrics(&object)) {
                return Ok(object);
            }
            // It was in use when the others of its age were closed. Each turn of the loop closes one of those.
            drop(Object::take(object));
        }
    }

    /// A connection with these metrics was refused a write because its server is read-only. If it was retired before, this is no news.
    pub fn retire(&self, metrics: &Metrics) {
        if !self.is_retired(metrics) {
            self.retire_all();
        }
    }

    /// The same for a connection of which it is not known when it was opened.
    pub fn retire_all(&self) {
        let now = Instant::now();
        self.retired.send_replace(Some(now));
        for pool in [&self.own, &self.users] {
            drop(pool.retain(|_, metrics| metrics.created >= now));
        }
        tracing::warn!("the server is read-only: its connections are closed, and the next ones opened anew");
    }

    /// Changes whenever connections are retired, for those that are no part of a pool.
    pub fn retirements(&self) -> watch::Receiver<Option<Instant>> {
        self.retired.subscribe()
    }

    fn is_retired(&self, metrics: &Metrics) -> bool {
        self.retired.borrow().is_some_and(|moment| metrics.created < moment)
    }
}
