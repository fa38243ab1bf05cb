//! A pool of diesel-async's connections.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool::Runtime;
use deadpool::managed::{Manager, Metrics, QueueMode};
use diesel::{ConnectionError, ConnectionResult};
use diesel_async::SimpleAsyncConnection;
use diesel_async::pooled_connection::deadpool::{Hook, HookError, Pool};
use diesel_async::pooled_connection::{
    AsyncDieselConnectionManager, ManagerConfig, PoolError, PoolableConnection, RecyclingMethod,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use leasehold_core::{Invalid, Problem, Result, StoreError};

use crate::lender::Retirement;

/// No server of Postgres takes more connections, nor does any other.
const MAX_SIZE: usize = 262_143;
const RECYCLE: Duration = Duration::from_secs(5);

/// When a connection is checked before it is handed out.
#[derive(Debug, Clone, Copy)]
pub struct Checks {
    /// A connection that was handed out longer ago than this is pinged.
    pub idle: Duration,
    /// For how long the answer is awaited.
    pub answer: Duration,
    /// What is said: the server is to answer, and to have as little to do as can be.
    pub ping: &'static str,
}

impl Checks {
    /// The usual times.
    pub const fn new(ping: &'static str) -> Self {
        Self { idle: Duration::from_millis(500), answer: RECYCLE, ping }
    }
}

/// How large a pool is, and how long one waits for it.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// At most so many connections.
    pub connections: usize,
    /// For so long a caller waits for a free one.
    pub wait: Duration,
    /// For so long one may take to be opened.
    pub create: Duration,
}

/// A pool of connections that `open` opens.
///
/// A connection that died while it lay idle, or is of before the `retirement`, is replaced before anything is sent on it.
///
/// # Errors
/// [`Invalid`](StoreError::Invalid) with the field `pool_size` for none or more than a server takes.
pub fn pool<C>(
    open: impl Fn() -> BoxFuture<'static, ConnectionResult<C>> + Send + Sync + 'static,
    size: Size,
    checks: Checks,
    retirement: Retirement,
) -> Result<Pool<C>>
where
    C: PoolableConnection + SimpleAsyncConnection + 'static,
    AsyncDieselConnectionManager<C>: Manager<Type = C, Error = PoolError>,
{
    check_size(size.connections)?;
    let mut config = ManagerConfig::default();
    config.recycling_method = RecyclingMethod::Fast;
    config.custom_setup = Box::new(move |_| open());
    // The manager's URL stays empty, so that no password lies there.
    Pool::builder(AsyncDieselConnectionManager::new_with_config("", config))
        .max_size(size.connections)
        .wait_timeout(Some(size.wait))
        .create_timeout(Some(size.create))
        .recycle_timeout(Some(RECYCLE))
        .runtime(Runtime::Tokio1)
        // The warmest first: it is the least likely to need a ping.
        .queue_mode(QueueMode::Lifo)
        .pre_recycle(unless_retired(retirement))
        .pre_recycle(ping_if_idle(checks))
        .build()
        .map_err(|error| StoreError::backend("connect", error))
}

/// A pool of connections as those of another pool, which do not count there.
///
/// # Errors
/// As [`pool`].
pub fn beside<C>(other: &Pool<C>, size: Size, checks: Checks, retirement: Retirement) -> Result<Pool<C>>
where
    C: PoolableConnection + SimpleAsyncConnection + 'static,
    AsyncDieselConnectionManager<C>: Manager<Type = C, Error = PoolError>,
{
    let other = other.clone();
    let open = move || {
        let other = other.clone();
        async move { other.manager().create().await.map_err(refused) }.boxed()
    };
    pool(open, size, checks, retirement)
}

fn refused(error: PoolError) -> ConnectionError {
    match error {
        PoolError::ConnectionError(error) => error,
        error => ConnectionError::BadConnection(error.to_string()),
    }
}

fn check_size(size: usize) -> Result<(), Invalid> {
    if (1..=MAX_SIZE).contains(&size) {
        return Ok(());
    }
    let (value, min, max) = (size.to_string(), 1.to_string(), MAX_SIZE.to_string());
    Err(Invalid::new("pool_size", Problem::OutOfRange { value, min, max }))
}

fn unless_retired<C>(retirement: Retirement) -> Hook<C>
where
    C: PoolableConnection + SimpleAsyncConnection + 'static,
    AsyncDieselConnectionManager<C>: Manager<Type = C, Error = PoolError>,
{
    Hook::sync_fn(move |_, metrics| match retirement.is_past(metrics) {
        true => Err(HookError::message("opened before the server became read-only")),
        false => Ok(()),
    })
}

/// Pings connections that lay idle. When one stays silent, those that lay idle as long are given up unasked: after
/// a partition of the network the caller would otherwise wait for each in turn.
fn ping_if_idle<C>(checks: Checks) -> Hook<C>
where
    C: PoolableConnection + SimpleAsyncConnection + 'static,
    AsyncDieselConnectionManager<C>: Manager<Type = C, Error = PoolError>,
{
    let silence = Arc::new(Mutex::new(None));
    Hook::async_fn(move |connection: &mut C, metrics: &Metrics| {
        let (silence, used) = (Arc::clone(&silence), metrics.recycled.unwrap_or(metrics.created));
        async move {
            if connection.is_broken() {
                return Err(HookError::message("given up by the last borrower"));
            }
            if used.elapsed() <= checks.idle {
                return Ok(());
            }
            if lock(&silence).is_some_and(|fell: Instant| used < fell) {
                return Err(HookError::message("idle since before a connection fell silent"));
            }
            match tokio::time::timeout(checks.answer, connection.batch_execute(checks.ping)).await {
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
