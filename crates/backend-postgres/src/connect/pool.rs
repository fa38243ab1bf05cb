//! A pool of connections.

use std::time::Duration;

use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::deadpool::Pool;
use futures_util::FutureExt;
use leasehold_core::Result;
use leasehold_sql::Retirement;
use leasehold_sql::pool::{Checks, Size};

use super::Connector;

const CREATE: Duration = Duration::from_secs(10);
/// An empty query: the server answers, and has nothing to plan, run or count.
pub(super) const CHECKS: Checks = Checks::new("");

/// A pool of up to `size` connections, in which a caller waits for a free one for up to `wait`.
///
/// # Errors
/// [`Invalid`](leasehold_core::StoreError::Invalid) if `size` is nothing or more than a server takes.
pub(crate) fn pool(
    connector: &Connector,
    size: usize,
    wait: Duration,
    retirement: &Retirement,
) -> Result<Pool<AsyncPgConnection>> {
    pool_with(connector, size, wait, CHECKS, retirement)
}

pub(super) fn pool_with(
    connector: &Connector,
    connections: usize,
    wait: Duration,
    checks: Checks,
    retirement: &Retirement,
) -> Result<Pool<AsyncPgConnection>> {
    let connector = connector.clone();
    let create = CREATE.max(connector.patience());
    let open = move || {
        let connector = connector.clone();
        async move { connector.open().await }.boxed()
    };
    leasehold_sql::pool::pool(open, Size { connections, wait, create }, checks, retirement.clone())
}

/// A pool of up to `size` connections as those of another pool, which do not count there.
pub(crate) fn beside(
    pool: &Pool<AsyncPgConnection>,
    connections: usize,
    wait: Duration,
    retirement: &Retirement,
) -> Result<Pool<AsyncPgConnection>> {
    leasehold_sql::pool::beside(pool, Size { connections, wait, create: CREATE }, CHECKS, retirement.clone())
}
