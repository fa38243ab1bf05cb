//! A pool of connections.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool::Runtime;
use deadpool::managed::{Manager, Metrics, QueueMode};
use diesel::{ConnectionError, ConnectionResult};
use diesel_async::pooled_connection::deadpool::{Hook, HookError, Pool};
use diesel_async::pooled_connection::{
    AsyncDieselConnectionManager, ManagerConfig, PoolError, RecyclingMethod,
};
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use leasehold_core::{Invalid, Problem, Result, StoreError};

use super::Connector;

/// No server of Postgres takes more connections.
const MAX_SIZE: usize = 262_143;
const CREATE: Duration = Duration::from_secs(10);
const RECYCLE: Duration = Duration::from_secs(5);
const CHECKS: Checks = Checks { idle: Duration::from_millis(500), answer: RECYCLE };

/// When a connection is checked before it is handed out.
#[derive(Clone, Copy)]
pub(super) struct Checks {
    /// A connection that was handed out longer ago than this is pinged.
    pub(super) idle: Duration,
    /// For how long the answer is awaited.
    pub(super) answer: Duration,
}

/// A pool of up to `size` connections, in which a caller waits for a free one for up to `wait`.
///
/// A connection that died while it lay idle is replaced before anything is sent on it.
///
/// # Errors
/// [`Invalid`](StoreError::Invalid) if `size` is nothing or more than a server takes.
pub(crate) fn pool(connector: &Connector, size: usize, wait: Duration) -> Result<Pool<AsyncPgConnection>> {
    pool_with(connector, size, wait, CHECKS)
}

pub(super) fn pool_with(
    connector: &Connector,
    size: usize,
    wait: Duration,
    checks: Checks,
) -> Result<Pool<AsyncPgConnection>> {
    check_size(size)?;
    let connector = connector.clone();
    let patience = CREATE.max(connector.patience());
    let manager = manager(move || {
        let connector = connector.clone();
        async move { connector.open().await }.boxed()
    });
    build(manager, size, wait, patience, checks)
}

/// A pool of up to `size` connections as those of another pool, which do not count there.
pub(crate) fn beside(
    pool: &Pool<AsyncPgConnection>,
    size: usize,
    wait: Duration,
) -> Result<Pool<AsyncPgConnection>> {
    let pool = pool.clone();
    let manager = manager(move || {
        let pool = pool.clone();
        async move { pool.manager().create().await.map_err(refused) }.boxed()
    });
    build(manager, size, wait, CREATE, CHECKS)
}

fn refused(error: PoolError) -> ConnectionError {
    match error {
        PoolError::ConnectionError(error) => error,
        error => ConnectionError::BadConnection(error.to_string()),
    }
}

fn build(
    manager: AsyncDieselConnectionManager<AsyncPgConnection>,
    size: usize,
    wait: Duration,
    patience: Duration,
    checks: Checks,
) -> Result<Pool<AsyncPgConnection>> {
    Pool::builder(manager)
        .max_size(size)
        .wait_timeout(Some(wait))
        .create_timeout(Some(patience))
        .recycle_timeout(Some(RECYCLE))
        .runtime(Runtime::Tokio1)
        // The warmest first: it is the least likely to need a ping.
        .queue_mode(QueueMode::Lifo)
        .pre_recycle(ping_if_idle(checks))
        .build()
        .map_err(|error| StoreError::backend("connect", error))
}

fn check_size(size: usize) -> Result<(), Invalid> {
    if (1..=MAX_SIZE).contains(&size) {
        return Ok(());
    }
    let (value, min, max) = (size.to_string(), 1.to_string(), MAX_SIZE.to_string());
    Err(Invalid::new("pool_size", Problem::OutOfRange { value, min, max }))
}

/// The manager's URL stays empty, so that no password lies there.
fn manager(
    open: impl Fn() -> BoxFuture<'static, ConnectionResult<AsyncPgConnection>> + Send + Sync + 'static,
) -> AsyncDieselConnectionManager<AsyncPgConnection> {
    let mut config = ManagerConfig::default();
    config.recycling_method = RecyclingMethod::Fast;
    config.custom_setup = Box::new(move |_| open());
    AsyncDieselConnectionManager::new_with_config("", config)
}

/// Pings connections that lay idle. When one stays silent, those that lay idle as long are given up unasked: after
/// a partition of the network the caller would otherwise wait for each in turn.
fn ping_if_idle(checks: Checks) -> Hook<AsyncPgConnection> {
    let silence = Arc::new(Mutex::new(None));
    Hook::async_fn(move |connection: &mut AsyncPgConnection, metrics: &Metrics| {
        let (silence, used) = (Arc::clone(&silence), metrics.recycled.unwrap_or(metrics.created));
        async move {
            if used.elapsed() <= checks.idle {
                return Ok(());
            }
            if lock(&silence).is_some_and(|fell: Instant| used < fell) {
                return Err(HookError::message("idle since before a connection fell silent"));
            }
            // An empty query: the server answers, and has nothing to plan, run or count.
            match tokio::time::timeout(checks.answer, connection.batch_execute("")).await {
                Ok(answer) => answer.map_err(PoolError::QueryError).map_err(HookError::Backend),
                Err(_) => {
                    *lock(&silence) = Some(Instant::now());
                    Err(HookError::message("no answer to a ping"))
                }
            }
        }
        .boxed()
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
