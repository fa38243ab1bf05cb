//! How a store is set up.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use diesel::sql_types::{BigInt, Text};
use diesel_async::AsyncMysqlConnection;
use diesel_async::pooled_connection::deadpool::Pool;
use leasehold_core::{Capabilities, Invalid, Problem, Result, StoreError, limits};
use leasehold_gather::Gatherer;
use leasehold_sql::{Lender, Retirement, Subscribers, TablePrefix};

use crate::connect::{Connector, beside};
use crate::dequeue::Memory;
use crate::error::{Failure, STATEMENT_LOG};
use crate::keys::Swept;
use crate::migrate;
use crate::sql::Statements;
use crate::statement::Statement;
use crate::{MysqlStore, Shared};

/// What else is in a packet beside a document.
const PACKET_REST: usize = 1 << 16;

/// So many single jobs are on their way, each in its own statement, before others wait and go together.
const FLIGHTS: usize = 2;

/// The settings of a [`MysqlStore`]. What is not said is as [`MysqlStore::connect`] has it.
#[derive(Debug, Clone)]
#[must_use = "call connect() or from_pool()"]
pub struct MysqlStoreBuilder {
    prefix: TablePrefix,
    pool_size: usize,
    pool_wait: Duration,
    payload_limit: usize,
    polling: bool,
}

impl MysqlStoreBuilder {
    pub(crate) fn new() -> Self {
        Self {
            prefix: TablePrefix::default(),
            pool_size: 10,
            pool_wait: Duration::from_secs(10),
            payload_limit: limits::PAYLOAD_BYTES,
            polling: true,
        }
    }

    /// What the names of the tables begin with: nothing if nothing is said.
    pub fn prefix(self, prefix: TablePrefix) -> Self {
        Self { prefix, ..self }
    }

    /// How many connections there may be at once: 10 if nothing is said, 1 at least. [`MysqlStore::pool`] has as many of its
    /// own.
    pub fn pool_size(self, connections: usize) -> Self {
        Self { pool_size: connections.max(1), ..self }
    }

    /// How long an operation waits for a connection before it gives up as
    /// [`Unavailable`](leasehold_core::StoreError::Unavailable): 10 seconds if nothing is said.
    pub fn pool_wait(self, time: Duration) -> Self {
        Self { pool_wait: time, ..self }
    }

    /// The largest document (payload, result, error or reason) in bytes: 1 MiB if nothing is said. The server's
    /// `max_allowed_packet` must have room for it twice over.
    ///
    /// # Errors
    /// [`Invalid`] with the field `payload_limit` for nothing or more than [`limits::JSON_BYTES`].
    pub fn payload_limit(self, bytes: usize) -> Result<Self, Invalid> {
        if bytes == 0 || bytes > limits::JSON_BYTES {
            return Err(out_of_range(bytes, limits::JSON_BYTES));
        }
        Ok(Self { payload_limit: bytes, ..self })
    }

    /// Whether the store looks for jobs that others have enqueued, and wakes those who wait for them: it does if nothing is
    /// said. It asks one small question for all of them, often while there is something to do and seldom while there is not.
    pub fn polling(self, polling: bool) -> Self {
        Self { polling, ..self }
    }

    /// Connects to the server at `url`. See [`MysqlStore::connect`].
    ///
    /// # Errors
    /// As [`MysqlStore::connect`], and [`Invalid`](leasehold_core::StoreError::Invalid) with the field `payload_limit` if the
    /// server takes no packets of that size.
    pub async fn connect(self, url: &str) -> Result<MysqlStore> {
        let connector = Connector::parse(url)?;
        let (size, wait, retirement) = (self.pool_size, self.pool_wait, Retirement::default());
        let own = connector.own().pool(size, wait, &retirement)?;
        let lent = own.get().await;
        let mut conn = lent.map_err(|error| StoreError::unavailable("connect", error))?;
        let server = self.look_at(&mut conn).await?;
        drop(conn);
        let pool = connector.pool(size, wait, &retirement)?;
        Ok(self.build(Some(connector), Lender::new(own, pool, retirement), server))
    }

    /// Works on connections of a pool that is there already, and looks at nothing before it is used: neither how large a packet
    /// may be nor of which version the tables are. Give the pool `RecyclingMethod::Fast`. `autocommit` must be on, as diesel needs it too. Sessions may be
    /// at any isolation level: the store's own transactions are at READ COMMITTED, and the session is left as it was.
    pub fn from_pool(self, pool: Pool<AsyncMysqlConnection>) -> MysqlStore {
        let connections = Lender::new(pool.clone(), pool, Retirement::default());
        self.build(None, connections, Server { has_returning: false })
    }

    /// What the server can do, and whether that is enough.
    async fn look_at(&self, conn: &mut AsyncMysqlConnection) -> Result<Server> {
        let told = |failure: Failure| failure.told("connect");
        let text = "SELECT CAST(@@max_allowed_packet AS SIGNED), VERSION() LIKE '%MariaDB%'";
        let found = Statement::<(BigInt, BigInt)>::new(text, Vec::new()).rows(conn).await;
        let found: Vec<(i64, i64)> = found.map_err(told)?;
        let (packet, is_mariadb) = found.first().copied().unwrap_or_default();
        let most = usize::try_from(packet).unwrap_or_default().saturating_sub(PACKET_REST) / 2;
        if self.payload_limit > most {
            return Err(out_of_range(self.payload_limit, most).into());
        }
        if logs_statements(conn).await.map_err(told)? {
            return Err(StoreError::conflict(STATEMENT_LOG));
        }
        migrate::check_version(conn, &self.prefix).await.map_err(told)?;
        Ok(Server { has_returning: is_mariadb != 0 })
    }

    fn build(
        self,
        connector: Option<Connector>,
        connections: Lender<AsyncMysqlConnection>,
        server: Server,
    ) -> MysqlStore {
        let capabilities = Capabilities {
            shared_wakeups: false,
            events: false,
            payload_limit: self.payload_limit,
            ..Capabilities::full()
        };
        let shared = Shared {
            connections,
            sql: Statements::new(&self.prefix, server.has_returning),
            hub: Arc::new(Subscribers::default()),
            poller: std::sync::Once::new(),
            memory: Memory::default(),
            swept: Swept::default(),
            gatherer: Gatherer::new(FLIGHTS),
            deadlocks: AtomicU64::new(0),
            capabilities,
            prefix: self.prefix.clone(),
            polling: self.polling,
            settings: self,
            connector,
            server,
            packet: std::sync::OnceLock::new(),
        };
        MysqlStore { shared: Arc::new(shared) }
    }

    /// One more store like this one, with two connections of its own: opened as we know how, or else as `pool` does. They are
    /// retired together with those that are there.
    pub(crate) fn small(&self, shared: &Shared) -> Result<MysqlStore> {
        let settings = Self { pool_size: 2, polling: false, ..self.clone() };
        let (size, wait, retirement) =
            (settings.pool_size, settings.pool_wait, shared.connections.retirement().clone());
        let Some(connector) = &shared.connector else {
            let pool = beside(shared.connections.users(), size, wait, &retirement)?;
            return Ok(settings.build(None, Lender::new(pool.clone(), pool, retirement), shared.server));
        };
        let own = connector.own().pool(size, wait, &retirement)?;
        let pool = connector.pool(size, wait, &retirement)?;
        Ok(settings.build(Some(connector.clone()), Lender::new(own, pool, retirement), shared.server))
    }
}

/// What the server can do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Server {
    /// `INSERT … RETURNING`: MariaDB.
    pub(crate) has_returning: bool,
}

/// Whether the server writes statements into a binary log, and so refuses every write at READ COMMITTED. Another format can be set for a
/// session, but only with rights that a worker should not have, and it is the administrator's choice.
async fn logs_statements(conn: &mut AsyncMysqlConnection) -> Result<bool, Failure> {
    // A variable that the server does not have is no error here.
    let text = "SHOW SESSION VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format')";
    let found: Vec<(String, String)> = Statement::<(Text, Text)>::new(text, Vec::new()).rows(conn).await?;
    let has = |name: &str, value: &str| found.iter().any(|row| row.0 == name && row.1 == value);
    Ok(has("log_bin", "ON") && has("binlog_format", "STATEMENT"))
}

fn out_of_range(bytes: usize, most: usize) -> Invalid {
    let [value, min, max] = [bytes, 1, most].map(|bytes| bytes.to_string());
    Invalid::new("payload_limit", Problem::OutOfRange { value, min, max })
}
