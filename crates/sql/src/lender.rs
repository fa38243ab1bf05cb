//! Lending the connections of a store, until their server takes no more writes.

use std::sync::Arc;
use std::time::Instant;

use deadpool::managed::{Manager, Metrics};
use diesel_async::pooled_connection::deadpool::{Object, Pool, PoolError};
use diesel_async::pooled_connection::{
    AsyncDieselConnectionManager, PoolError as ManagerError, PoolableConnection,
};
use tokio::sync::watch;

/// The moment before which connections were opened that are not used any more. Clones are handles on the same moment.
#[derive(Debug, Clone)]
pub struct Retirement(Arc<watch::Sender<Option<Instant>>>);

impl Default for Retirement {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Retirement {
    /// Whether the connection with these metrics is not to be used any more.
    pub fn is_past(&self, metrics: &Metrics) -> bool {
        self.0.borrow().is_some_and(|moment| metrics.created < moment)
    }

    /// Changes whenever connections are retired, for those that are no part of a pool.
    pub fn changes(&self) -> watch::Receiver<Option<Instant>> {
        self.0.subscribe()
    }
}

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
    retirement: Retirement,
}

impl<C> Lender<C>
where
    C: PoolableConnection + 'static,
    AsyncDieselConnectionManager<C>: Manager<Type = C, Error = ManagerError>,
{
    /// `own` is the pool that is lent from. `users` is the pool for the transactions of users, or the same one. `retirement` is what they
    /// were [made with](crate::pool::pool), or a new one if they were made elsewhere.
    pub fn new(own: Pool<C>, users: Pool<C>, retirement: Retirement) -> Self {
        Self { own, users, retirement }
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
            if !self.retirement.is_past(Object::metrics(&object)) {
                return Ok(object);
            }
            // A pool that was made elsewhere: the connection was in use when the others of its age were closed.
            drop(Object::take(object));
        }
    }

    /// A connection with these metrics was refused a write because its server is read-only. If it was retired before, this is no news.
    pub fn retire(&self, metrics: &Metrics) {
        if !self.retirement.is_past(metrics) {
            self.retire_all();
        }
    }

    /// The same for a connection of which it is not known when it was opened.
    pub fn retire_all(&self) {
        let now = Instant::now();
        self.retirement.0.send_replace(Some(now));
        for pool in [&self.own, &self.users] {
            drop(pool.retain(|_, metrics| metrics.created >= now));
        }
        tracing::warn!("the server is read-only: its connections are closed, and the next ones opened anew");
    }

    /// When connections were last retired.
    pub fn retirement(&self) -> &Retirement {
        &self.retirement
    }
}
