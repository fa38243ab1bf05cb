//! How a store is set up.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use leasehold_core::{Capabilities, Invalid, Problem, Result, StoreError, limits};
use redis::Client;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};

use crate::dequeue::Turns;
use crate::error::{Effect, failed};
use crate::keys::KeyPrefix;
use crate::link::Link;
use crate::wake::Hub;
use crate::{RedisStore, Shared};

/// The settings of a [`RedisStore`]. What is not said is as [`RedisStore::connect`] has it.
#[derive(Debug, Clone)]
#[must_use = "call connect()"]
pub struct RedisStoreBuilder {
    prefix: KeyPrefix,
    payload_limit: usize,
    connect_timeout: Duration,
    response_timeout: Duration,
    shift: Arc<AtomicU64>,
}

impl RedisStoreBuilder {
    pub(crate) fn new() -> Self {
        Self {
            prefix: KeyPrefix::default(),
            payload_limit: limits::PAYLOAD_BYTES,
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(10),
            shift: Arc::default(),
        }
    }

    /// What the names of all keys begin with: `leasehold` if nothing is said.
    pub fn prefix(self, prefix: KeyPrefix) -> Self {
        Self { prefix, ..self }
    }

    /// The largest document (payload, result, error or reason) in bytes: 1 MiB if nothing is said.
    ///
    /// # Errors
    /// [`Invalid`] with the field `payload_limit` for nothing or more than [`limits::JSON_BYTES`].
    pub fn payload_limit(self, bytes: usize) -> Result<Self, Invalid> {
        if bytes == 0 || bytes > limits::JSON_BYTES {
            let [value, min, max] = [bytes, 1, limits::JSON_BYTES].map(|bytes| bytes.to_string());
            return Err(Invalid::new("payload_limit", Problem::OutOfRange { value, min, max }));
        }
        Ok(Self { payload_limit: bytes, ..self })
    }

    /// How long a connection may take to be made: 5 seconds if nothing is said.
    pub fn connect_timeout(self, time: Duration) -> Self {
        Self { connect_timeout: time, ..self }
    }

    /// How long an answer may take: 10 seconds if nothing is said. What was asked for and not answered by then is
    /// [`Unknown`](leasehold_core::StoreError::Unknown) if it would have changed anything.
    pub fn response_timeout(self, time: Duration) -> Self {
        Self { response_timeout: time, ..self }
    }

    /// Lets the clock be so many microseconds ahead of the server's: for tests. Every handle on one prefix must have the same.
    pub fn clock_ahead(self, micros: Arc<AtomicU64>) -> Self {
        Self { shift: micros, ..self }
    }

    /// Connects to the server at `url`. See [`RedisStore::connect`].
    ///
    /// # Errors
    /// As [`RedisStore::connect`].
    pub async fn connect(self, url: &str) -> Result<RedisStore> {
        let expected = "redis://[user:password@]host[:port][/database]";
        let client = Client::open(url).map_err(|_| Invalid::new("url", Problem::Malformed { expected }))?;
        self.open(client).await
    }

    pub(crate) async fn open(self, client: Client) -> Result<RedisStore> {
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.response_timeout))
            .set_number_of_retries(1);
        let manager = ConnectionManager::new_with_config(client.clone(), config).await;
        let manager = manager.map_err(|error| failed("connect", Effect::Read, error))?;
        let appends = check(manager.clone()).await?;
        let link = Link::new(manager, self.prefix.clone(), Arc::clone(&self.shift));
        link.catch_up("connect").await?;
        let capabilities = Capabilities {
            transactions: false,
            durable: appends,
            payload_limit: self.payload_limit,
            ..Capabilities::full()
        };
        let shared = Shared {
            link,
            turns: Turns::default(),
            hub: Hub::default(),
            capabilities,
            client,
            builder: self,
        };
        Ok(RedisStore { shared: Arc::new(shared) })
    }
}

/// Whether the server appends what it is told to a file. One that evicts keys is refused: it would lose jobs. So is a
/// cluster: scripts still look at several slots.
async fn check(mut connection: ConnectionManager) -> Result<bool> {
    let info = redis::cmd("INFO")
        .arg("memory")
        .arg("persistence")
        .arg("server")
        .query_async::<String>(&mut connection)
        .await;
    let info = info.map_err(|error| failed("connect", Effect::Read, error))?;
    let facts: HashMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
    let fact = |name: &str| facts.get(name).copied().unwrap_or_default();
    let eviction = fact("maxmemory_policy");
    if eviction != "noeviction" {
        let reason = format!(
            "the server evicts keys and would lose jobs: its maxmemory-policy is {eviction}, not noeviction"
        );
        return Err(StoreError::conflict(reason));
    }
    if fact("redis_mode") == "cluster" {
        return Err(StoreError::unsupported("a Redis Cluster"));
    }
    let appends = fact("aof_enabled") == "1";
    let fsync = redis::cmd("CONFIG")
        .arg("GET")
        .arg("appendfsync")
        .query_async::<HashMap<String, String>>(&mut connection)
        .await;
    // Where CONFIG is forbidden, nobody knows.
    let fsync = fsync.ok().and_then(|mut settings| settings.remove("appendfsync"));
    let (appendonly, appendfsync) =
        (if appends { "yes" } else { "no" }, fsync.as_deref().unwrap_or("unknown"));
    tracing::info!(appendonly, appendfsync, version = fact("redis_version"), "connected to Redis");
    Ok(appends)
}
