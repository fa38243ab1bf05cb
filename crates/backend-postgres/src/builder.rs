//! How a store is set up.

use std::sync::Arc;
use std::time::Duration;

use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::deadpool::Pool;
use leasehold_core::{Capabilities, Invalid, Problem, Result, limits};
use leasehold_gather::Gatherer;
use leasehold_sql::Retirement;

use crate::chunk::Chunks;
use crate::connect::{self, Connector};
use crate::dequeue::{FirstTry, Memory};
use crate::language;
use crate::lent::Connections;
use crate::migrate;
use crate::schema::Schema;
use crate::sql::Statements;
use crate::upkeep::Upkeep;
use crate::wake::{Hub, WakeupMode};
use crate::{PgStore, Shared};

/// So many single jobs are on their way, each in its own statement, before others wait and go together.
const FLIGHTS: usize = 2;

/// The settings of a [`PgStore`]. What is not said is as [`PgStore::connect`] has it.
#[derive(Debug, Clone)]
#[must_use = "call connect() or from_pool()"]
pub struct PgStoreBuilder {
    schema: Schema,
    pool_size: usize,
    pool_wait: Duration,
    payload_limit: usize,
    wakeups: WakeupMode,
    events: bool,
    chunks: Chunks,
    first_try: FirstTry,
}

impl PgStoreBuilder {
    pub(crate) fn new() -> Self {
        Self {
            schema: Schema::default(),
            pool_size: 10,
            pool_wait: Duration::from_secs(10),
            payload_limit: limits::PAYLOAD_BYTES,
            wakeups: WakeupMode::default(),
            events: false,
            chunks: Chunks::default(),
            first_try: FirstTry::default(),
        }
    }

    /// The schema that the tables are in: `leasehold` if nothing is said.
    pub fn schema(self, schema: Schema) -> Self {
        Self { schema, ..self }
    }

    /// How many connections there may be at once: 10 if nothing is said, 1 at least. Whoever listens for wake-ups has one
    /// more, and [`PgStore::pool`] has as many of its own.
    pub fn pool_size(self, connections: usize) -> Self {
        Self { pool_size: connections.max(1), ..self }
    }

    /// How long an operation waits for a connection before it gives up as
    /// [`Unavailable`](leasehold_core::StoreError::Unavailable): 10 seconds if nothing is said.
    pub fn pool_wait(self, time: Duration) -> Self {
        Self { pool_wait: time, ..self }
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

    /// How hints get to other processes.
    pub fn wakeups(self, mode: WakeupMode) -> Self {
        Self { wakeups: mode, ..self }
    }

    /// Whether to tell what happens to jobs, by NOTIFY, to those who [subscribe](leasehold_core::Store::subscribe), and to hear
    /// it: no, if nothing is said. Each store that changes anything must have said so, or it tells nothing of it.
    ///
    /// It costs one more small read for each call that enqueues, settles or reclaims, and messages that are sent
    /// afterwards. Not with [`WakeupMode::Local`], where nobody can listen.
    pub fn events(self, told: bool) -> Self {
        Self { events: told, ..self }
    }

    /// For tests: claims that try one statement first, whatever was learned before.
    #[doc(hidden)]
    pub fn first_try(self, first_try: FirstTry) -> Self {
        Self { first_try, ..self }
    }

    /// For tests: smaller chunks, so that a small batch is several statements.
    #[cfg(test)]
    pub(crate) fn chunks(self, chunks: Chunks) -> Self {
        Self { chunks, ..self }
    }

    /// Connects to the server at `url`. See [`PgStore::connect`].
    ///
    /// # Errors
    /// As [`PgStore::connect`].
    pub async fn connect(self, url: &str) -> Result<PgStore> {
        let connector = Connector::parse(url)?;
        let store = self.clone().open(&connector, self.pool_size, Retirement::default())?;
        let mut conn = store.shared.connection("connect").await?;
        let checked = migrate::check_version(&mut conn, &store.shared.schema).await;
        if checked.is_ok() {
            language::check(&mut conn).await;
        }
        conn.give_back();
        checked?;
        Ok(store)
    }

    /// Works on connections of a pool that is there already. Give it `RecyclingMethod::Fast`: a ping before each statement
    /// would double the cost of small ones. If nobody else works on it, say [`PgStore::SETTINGS`] on each connection.
    pub fn from_pool(self, pool: Pool<AsyncPgConnection>) -> PgStore {
        self.build(Connections::new(pool.clone(), pool, Retirement::default()), None)
    }

    /// A store with pools of its own. Behind PgBouncer nothing is set on a connection: it would come to others there.
    fn open(self, connector: &Connector, size: usize, retirement: Retirement) -> Result<PgStore> {
        let pool = |connector: &Connector| connect::pool(connector, size, self.pool_wait, &retirement);
        let own = match self.wakeups {
            WakeupMode::Notify => pool(&connector.tuned()),
            WakeupMode::Local => pool(connector),
        };
        let connections = Connections::new(own?, pool(connector)?, retirement);
        Ok(self.build(connections, Some(connector.clone())))
    }

    fn build(self, connections: Connections, connector: Option<Connector>) -> PgStore {
        let can_listen = self.wakeups == WakeupMode::Notify;
        let capabilities = Capabilities {
            shared_wakeups: can_listen,
            events: can_listen && self.events,
            payload_limit: self.payload_limit,
            ..Capabilities::full()
        };
        PgStore {
            shared: Arc::new(Shared {
                connections: Arc::new(connections),
                sql: Statements::new(&self.schema),
                hub: Hub::new(&self.schema, self.wakeups, capabilities.events),
                memory: Memory::new(can_listen && connector.is_some(), self.first_try),
                upkeep: Upkeep::new(),
                gatherer: Gatherer::new(FLIGHTS),
                chunks: self.chunks,
                capabilities,
                settings: self.clone(),
                schema: self.schema,
                connector,
            }),
        }
    }

    /// One more store like this one, with two connections of its own: opened as we know how, or else as the pool that is there does. They
    /// are retired together with those that are there.
    pub(crate) fn small(&self, connector: Option<&Connector>, beside: &Connections) -> Result<PgStore> {
        let retirement = beside.retirement().clone();
        let Some(connector) = connector else {
            let pool = connect::beside(beside.own(), 2, self.pool_wait, &retirement)?;
            return Ok(self.clone().build(Connections::new(pool.clone(), pool, retirement), None));
        };
        self.clone().open(connector, 2, retirement)
    }
}
