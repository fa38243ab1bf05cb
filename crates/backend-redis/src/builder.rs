//! How a store is set up.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use leasehold_core::{Capabilities, Invalid, Problem, Result, StoreError, limits};
use leasehold_gather::Gatherer;

use crate::connect::Address;
use crate::error::Effect;
use crate::keys::{KeyPrefix, Layout, MOST_SHARDS};
use crate::link::{Link, News, check_keys, directory_call};
use crate::single::REST;
use crate::turns::Turns;
use crate::wake::Hub;
use crate::wire::Wire;
use crate::{RedisStore, Shared};

/// How many shards a prefix has in a cluster, if nothing is said.
const SHARDS_IN_CLUSTER: u32 = 16;

/// So many single jobs are on their way, each in its own script, before others wait and go together.
const FLIGHTS: usize = 2;

/// The settings of a [`RedisStore`]. What is not said is as [`RedisStore::connect`] has it.
#[derive(Debug, Clone)]
#[must_use = "call connect()"]
pub struct RedisStoreBuilder {
    prefix: KeyPrefix,
    shards: Option<u32>,
    authority: Option<Vec<u8>>,
    payload_limit: usize,
    connect_timeout: Duration,
    response_timeout: Duration,
    rest: Duration,
    shift: Arc<AtomicU64>,
}

impl RedisStoreBuilder {
    pub(crate) fn new() -> Self {
        Self {
            prefix: KeyPrefix::default(),
            shards: None,
            authority: None,
            payload_limit: limits::PAYLOAD_BYTES,
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(10),
            rest: REST,
            shift: Arc::default(),
        }
    }

    /// What the names of all keys begin with: `leasehold` if nothing is said.
    pub fn prefix(self, prefix: KeyPrefix) -> Self {
        Self { prefix, ..self }
    }

    /// How many shards the queues are spread over, from 1 to 256: in a cluster each is on one of the masters. If nothing is
    /// said, a prefix gets 16 in a cluster and 1 elsewhere when it is first used, and keeps them for ever.
    ///
    /// # Errors
    /// [`Invalid`] with the field `shards`.
    pub fn shards(self, shards: u32) -> Result<Self, Invalid> {
        if !(1..=MOST_SHARDS).contains(&shards) {
            let [value, min, max] = [shards, 1, MOST_SHARDS].map(|count| count.to_string());
            return Err(Invalid::new("shards", Problem::OutOfRange { value, min, max }));
        }
        Ok(Self { shards: Some(shards), ..self })
    }

    /// Certificates, as PEM, of those who may vouch for a server that is reached by `rediss://`, instead of those that the machine
    /// trusts.
    pub fn root_certificate(self, pem: impl Into<Vec<u8>>) -> Self {
        Self { authority: Some(pem.into()), ..self }
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
    /// [`Unknown`](leasehold_core::StoreError::Unknown) if it would have changed anything; and if the server has not done it by then, it does not do it later.
    pub fn response_timeout(self, time: Duration) -> Self {
        Self { response_timeout: time, ..self }
    }

    /// After so long a rest the connection to a single server is tried out by a `PING` before it is used: 500 ms if nothing is said. What closes connections that
    /// lie idle, a firewall or the server's `timeout`, then costs a round trip and no error.
    pub fn try_out_after(self, rest: Duration) -> Self {
        Self { rest, ..self }
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
        let mut address =
            Address::new(url, self.authority.clone(), [self.connect_timeout, self.response_timeout])?;
        address.rest = self.rest;
        self.open(address).await
    }

    pub(crate) async fn open(self, address: Address) -> Result<RedisStore> {
        let (wire, appends) = address.open().await?;
        let link = self.link(wire).await?;
        let capabilities = Capabilities {
            transactions: false,
            durable: appends,
            atomic_batches: link.layout.count() == 1,
            payload_limit: self.payload_limit,
            ..Capabilities::full()
        };
        let (turns, gatherer, hub) = (Turns::default(), Gatherer::new(FLIGHTS), Hub::default());
        let shared = Shared { link, turns, gatherer, hub, capabilities, address, builder: self };
        Ok(RedisStore { shared: Arc::new(shared) })
    }

    /// Opens the prefix, with as many shards as it has.
    async fn link(&self, wire: Wire) -> Result<Link> {
        let usual = if matches!(wire, Wire::Cluster(_)) { SHARDS_IN_CLUSTER } else { 1 };
        let layout = Layout::new(self.prefix.clone(), self.shards.unwrap_or(usual));
        let link = Link::new(wire.clone(), layout, Arc::clone(&self.shift), self.response_timeout);
        let call = directory_call(&link.layout, "", "");
        let (.., shards, keys) = link.call::<News>("connect", Effect::Read, &call).await?;
        check_keys(keys)?;
        match self.shards {
            Some(asked) if asked != shards => {
                let prefix = &self.prefix;
                Err(StoreError::conflict(format!("the prefix {prefix} has {shards} shards, not {asked}")))
            }
            _ => {
                let layout = Layout::new(self.prefix.clone(), shards);
                Ok(Link::new(wire, layout, Arc::clone(&self.shift), self.response_timeout))
            }
        }
    }
}
