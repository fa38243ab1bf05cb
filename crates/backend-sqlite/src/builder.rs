//! How a store is set up.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use leasehold_core::{Capabilities, Invalid, Problem, Result, StoreError, limits};
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::connect::{Connector, Place, Synchronous};
use crate::ears::Watch;
use crate::files::{Files, beside, file};
use crate::gate::Gate;
use crate::log::Log;
use crate::migrate;
use crate::readers::Readers;
use crate::sql::Statements;
use crate::writer::{File, Kit, Writer};
use crate::{Shared, SqliteStore};
use leasehold_sql::Subscribers as Hub;
use leasehold_sql::TablePrefix;
use leasehold_sql::Turns;

/// The settings of a [`SqliteStore`]. What is not said is as [`SqliteStore::connect`] has it.
#[derive(Debug, Clone)]
#[must_use = "call connect()"]
pub struct SqliteStoreBuilder {
    prefix: TablePrefix,
    readers: usize,
    payload_limit: usize,
    busy_timeout: Duration,
    synchronous: Synchronous,
    watch: Watch,
    clock: Clock,
}

impl SqliteStoreBuilder {
    pub(crate) fn new() -> Self {
        Self {
            prefix: TablePrefix::default(),
            readers: 2,
            payload_limit: limits::PAYLOAD_BYTES,
            busy_timeout: Duration::from_secs(10),
            synchronous: Synchronous::default(),
            watch: Watch::default(),
            clock: Clock::default(),
        }
    }

    /// What the names of the tables begin with: nothing if nothing is said.
    pub fn prefix(self, prefix: TablePrefix) -> Self {
        Self { prefix, ..self }
    }

    /// How many threads read, each on a connection of its own: 2 if nothing is said, 1 at least. A database in memory has
    /// one connection, and none of these.
    pub fn readers(self, threads: usize) -> Self {
        Self { readers: threads.max(1), ..self }
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

    /// How long an operation waits while somebody else writes, before it gives up as
    /// [`Unavailable`](leasehold_core::StoreError::Unavailable): 10 seconds if nothing is said.
    pub fn busy_timeout(self, time: Duration) -> Self {
        Self { busy_timeout: time, ..self }
    }

    /// When a commit is on the disk: before anybody is told of it, if nothing is said.
    pub fn synchronous(self, synchronous: Synchronous) -> Self {
        Self { synchronous, ..self }
    }

    /// How the store hears of what other processes, and your own transactions, have committed. Default: [`Watch::Files`].
    pub fn watch(self, watch: Watch) -> Self {
        Self { watch, ..self }
    }

    /// Takes the time from elsewhere than the clock of the computer: for tests. Every handle on one database must have the same.
    pub fn clock(self, now: impl Fn() -> DateTime<Utc> + Send + Sync + 'static) -> Self {
        Self { clock: Clock::new(now), ..self }
    }

    /// Opens the database at `url`. See [`SqliteStore::connect`].
    ///
    /// # Errors
    /// As [`SqliteStore::connect`].
    pub async fn connect(self, url: &str) -> Result<SqliteStore> {
        let place = Place::parse(url)?.absolute()?;
        let connector = Connector { place, synchronous: self.synchronous, busy_timeout: self.busy_timeout };
        let shared = aside(move || self.build(connector)).await?;
        let store = SqliteStore { shared: Arc::new(shared) };
        let prefix = store.shared.prefix.clone();
        store.shared.read("connect", move |session| migrate::check_version(session, &prefix)).await?;
        Ok(store)
    }

    fn build(self, connector: Connector) -> Result<Shared> {
        let is_memory = connector.place == Place::Memory;
        let unstarted = |error| StoreError::unavailable("connect", error);
        let (sql, hub) = (Statements::new(&self.prefix), Arc::new(Hub::default()));
        let gate = Arc::new(Gate::default());
        let mut conn = connector.writer()?;
        let name = file(&mut conn);
        let files = Arc::new(Files::opened(&name));
        let file = (!is_memory).then(|| {
            let path = beside(&name, "-wal");
            let (log, files) = (Log::new(path.clone(), Arc::clone(&gate)), Arc::clone(&files));
            File { log, files, path, watch: self.watch }
        });
        let kit = Kit {
            sql: Arc::clone(&sql),
            clock: self.clock.clone(),
            hub: Arc::clone(&hub),
            patience: self.busy_timeout,
            file,
        };
        let writer = Writer::start(conn, kit);
        let mut readers = None;
        if !is_memory {
            let connections = (0..self.readers).map(|_| connector.reader()).collect::<Result<Vec<_>>>()?;
            readers = Some(Readers::start(connections, &sql, &self.clock, &gate, &files).map_err(unstarted)?);
        }
        Ok(Shared {
            writer: writer.map_err(unstarted)?,
            readers,
            files,
            sql,
            hub,
            turns: Arc::new(Turns::default()),
            clock: self.clock,
            capabilities: Capabilities {
                transactions: !is_memory,
                shared_wakeups: !is_memory && self.watch != Watch::Off,
                events: false,
                concurrent_writers: false,
                durable: !is_memory,
                payload_limit: self.payload_limit,
                ..Capabilities::full()
            },
            prefix: self.prefix,
            connector,
        })
    }
}

/// Does on a thread of its own what may have to wait for the file.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("leasehold-connect".to_owned());
    let spawned = thread.spawn(move || drop(sender.send(work())));
    spawned.map_err(|error| StoreError::unavailable("connect", error))?;
    receiver.await.map_err(|error| StoreError::unavailable("connect", error))?
}
