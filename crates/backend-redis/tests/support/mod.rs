//! A harness for the conformance suite on a server: a prefix for each check.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_conformance::{BoxError, Harness};
use leasehold_core::Store;
use leasehold_redis::{KeyPrefix, RedisStore};
use redis::aio::MultiplexedConnection;

/// A server, found by a variable.
pub(crate) struct Server {
    name: &'static str,
    url: String,
    /// The nodes, as their administrator sees them.
    nodes: Vec<String>,
}

impl Server {
    /// A missing server is an error, never a skip.
    pub(crate) fn new(name: &'static str, variable: &str) -> Self {
        let url = std::env::var(variable).ok().filter(|url| !url.is_empty());
        let url =
            url.unwrap_or_else(|| panic!("{variable} is not set; run `cargo xtask test -p leasehold-redis`"));
        let nodes = url.split(',').map(str::to_owned).collect();
        Self { name, url: url.split(',').map(restricted).collect::<Vec<_>>().join(","), nodes }
    }
}

/// The node as a user who may do no more than the guide says.
fn restricted(url: &str) -> String {
    let guide = include_str!("../../../../docs/redis.md");
    let rights =
        guide.split("ACL SETUSER leasehold on >secret").nth(1).and_then(|rest| rest.split("```").next());
    let rights = rights.unwrap().replace("{shop:*", "{suite-*").replace("{shop}", "{suite-*}");
    let mut conn = redis::Client::open(url).unwrap().get_connection().unwrap();
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg("suite").arg("on").arg(">word");
    command.arg(rights.split_whitespace().collect::<Vec<_>>());
    command.query::<()>(&mut conn).unwrap();
    url.replacen("://", "://suite:word@", 1)
}

/// A prefix that nobody else has, with a clock that runs ahead of the server's.
pub(crate) struct Database {
    prefix: KeyPrefix,
    ahead: Arc<AtomicU64>,
    /// What was saved: keys with their contents and the milliseconds that they live, by node.
    saved: Mutex<Vec<Vec<Saved>>>,
}

type Saved = (Vec<u8>, Vec<u8>, i64);

impl Database {
    /// The keys of the prefix on one node.
    async fn keys(&self, conn: &mut MultiplexedConnection) -> Result<Vec<Vec<u8>>, BoxError> {
        Ok(redis::cmd("KEYS").arg(format!("{{{}:*", self.prefix)).query_async(conn).await?)
    }
}

async fn connection(node: &str) -> Result<MultiplexedConnection, BoxError> {
    // The driver's own patience, half a second, is not enough for a busy machine.
    let patience = Some(Duration::from_secs(30));
    let config = redis::AsyncConnectionConfig::new();
    let config = config.set_response_timeout(patience).set_connection_timeout(patience);
    Ok(redis::Client::open(node)?.get_multiplexed_async_connection_with_config(&config).await?)
}

#[async_trait]
impl Harness for Server {
    type Database = Database;

    fn name(&self) -> &str {
        self.name
    }

    async fn create(&self) -> Result<Database, BoxError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let prefix = KeyPrefix::new(format!("suite-{}-{count}", std::process::id()))?;
        // Far from the clock of this machine.
        Ok(Database { prefix, ahead: Arc::new(AtomicU64::new(86_400_000_123)), saved: Mutex::default() })
    }

    async fn connect(&self, database: &Database) -> Result<Arc<dyn Store>, BoxError> {
        let builder = RedisStore::builder().prefix(database.prefix.clone());
        Ok(Arc::new(builder.clock_ahead(Arc::clone(&database.ahead)).connect(&self.url).await?))
    }

    async fn age(&self, database: &Database, by: Duration) -> Result<(), BoxError> {
        database.ahead.fetch_add(u64::try_from(by.as_micros())?, Ordering::Relaxed);
        Ok(())
    }

    async fn save(&self, database: &Database) -> Result<bool, BoxError> {
        let mut saved = Vec::new();
        for node in &self.nodes {
            let mut conn = connection(node).await?;
            let mut keys = Vec::new();
            for key in database.keys(&mut conn).await? {
                let content = redis::cmd("DUMP").arg(&key).query_async(&mut conn).await?;
                let lives: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut conn).await?;
                keys.push((key, content, lives.max(0)));
            }
            saved.push(keys);
        }
        *database.saved.lock().unwrap() = saved;
        Ok(true)
    }

    async fn lose(&self, database: &Database) -> Result<(), BoxError> {
        let saved = std::mem::take(&mut *database.saved.lock().unwrap());
        for (node, keys) in self.nodes.iter().zip(saved) {
            let mut conn = connection(node).await?;
            for key in database.keys(&mut conn).await? {
                redis::cmd("DEL").arg(key).query_async::<()>(&mut conn).await?;
            }
            for (key, content, lives) in keys {
                redis::cmd("RESTORE").arg(key).arg(lives).arg(content).query_async::<()>(&mut conn).await?;
            }
        }
        Ok(())
    }

    async fn set_back(&self, database: &Database, by: Duration) -> Result<bool, BoxError> {
        database.ahead.fetch_sub(u64::try_from(by.as_micros())?, Ordering::Relaxed);
        Ok(true)
    }
}
