//! A fresh place on a server, which several processes can open.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use diesel_async::{AsyncConnection, AsyncMysqlConnection, SimpleAsyncConnection};
use leasehold_core::Store;
use leasehold_memory::MemoryStore;
use leasehold_mysql::MysqlStore;
use leasehold_postgres::{PgStore, Schema};
use leasehold_redis::{KeyPrefix, RedisStore};
use leasehold_sqlite::SqliteStore;

use crate::{Error, Result};

/// Where the queues are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// In the process itself.
    Memory,
    /// A file.
    Sqlite,
    /// A Postgres server.
    Postgres,
    /// A MySQL server.
    Mysql,
    /// A MariaDB server.
    Mariadb,
    /// A Redis server.
    Redis,
    /// A Valkey server.
    Valkey,
    /// A cluster of Redis servers.
    Cluster,
}

impl Backend {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Memory,
        Self::Sqlite,
        Self::Postgres,
        Self::Mysql,
        Self::Mariadb,
        Self::Redis,
        Self::Valkey,
        Self::Cluster,
    ];

    /// The name, in small letters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
            Self::Mariadb => "mariadb",
            Self::Redis => "redis",
            Self::Valkey => "valkey",
            Self::Cluster => "redis_cluster",
        }
    }

    /// The URL of its server, which `cargo xtask test` starts.
    fn url(self) -> Result<String> {
        let variable = format!("LEASEHOLD_TEST_{}_URL", self.name().to_uppercase());
        std::env::var(&variable).map_err(|_| {
            format!("{variable} is not set: run `cargo xtask test -p leasehold-scenarios`, or `cargo xtask servers` and set what it prints").into()
        })
    }
}

impl FromStr for Backend {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|backend| backend.name() == name);
        found.ok_or_else(|| format!("{name} is no backend").into())
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A schema, database, file or prefix of its own.
pub struct Ground {
    /// On which backend.
    pub backend: Backend,
    /// The name by which another process finds it.
    pub place: String,
    memory: MemoryStore,
    _directory: Option<Directory>,
}

impl Ground {
    /// A new one.
    pub async fn new(backend: Backend) -> Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mut place = format!("scene_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = (backend == Backend::Sqlite).then(|| Directory::new(&place)).transpose()?;
        if let Some(directory) = &directory {
            place = directory.0.join("queue.db").display().to_string();
        }
        if matches!(backend, Backend::Mysql | Backend::Mariadb) {
            let url = backend.url()?.replacen("mariadb:", "mysql:", 1);
            let mut conn = AsyncMysqlConnection::establish(&url).await?;
            conn.batch_execute(&format!("DROP DATABASE IF EXISTS {place}")).await?;
            conn.batch_execute(&format!("CREATE DATABASE {place}")).await?;
        }
        let ground = Self { backend, place, memory: MemoryStore::new(), _directory: directory };
        ground.migrated().await?;
        Ok(ground)
    }

    /// One that another process has made.
    pub fn existing(backend: Backend, place: String) -> Self {
        Self { backend, place, memory: MemoryStore::new(), _directory: None }
    }

    /// One more handle on it, with connections of its own.
    pub async fn open(&self) -> Result<Arc<dyn Store>> {
        Ok(match self.backend {
            Backend::Memory => Arc::new(self.memory.clone()),
            Backend::Sqlite => Arc::new(SqliteStore::connect(&self.place).await?),
            Backend::Postgres => Arc::new(self.postgres().await?),
            Backend::Mysql | Backend::Mariadb => Arc::new(self.mysql().await?),
            Backend::Redis | Backend::Valkey | Backend::Cluster => Arc::new(self.redis().await?),
        })
    }

    async fn migrated(&self) -> Result {
        match self.backend {
            Backend::Memory | Backend::Redis | Backend::Valkey | Backend::Cluster => Ok(()),
            Backend::Sqlite => Ok(SqliteStore::connect(&self.place).await?.migrate().await?),
            Backend::Postgres => Ok(self.postgres().await?.migrate().await?),
            Backend::Mysql | Backend::Mariadb => Ok(self.mysql().await?.migrate().await?),
        }
    }

    async fn postgres(&self) -> Result<PgStore> {
        let schema = Schema::new(self.place.as_str())?;
        Ok(PgStore::builder().schema(schema).events(true).connect(&self.backend.url()?).await?)
    }

    async fn mysql(&self) -> Result<MysqlStore> {
        let url = self.backend.url()?;
        let (server, _) = url.rsplit_once('/').ok_or("the URL names no database")?;
        Ok(MysqlStore::connect(&format!("{server}/{}", self.place)).await?)
    }

    async fn redis(&self) -> Result<RedisStore> {
        let prefix = KeyPrefix::new(self.place.as_str())?;
        Ok(RedisStore::builder().prefix(prefix).connect(&self.backend.url()?).await?)
    }
}

/// A directory that is removed with this.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What cannot be removed is in the directory for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
