//! A fresh prefix, for one side of one round.

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_core::{Queues, Store};
use leasehold_redis::{KeyPrefix, RedisStore};
use redis::aio::MultiplexedConnection;

use crate::Result;
use crate::bare::{Bare, connect};
use crate::load::job;

pub(crate) struct Ground {
    pub(crate) store: RedisStore,
    pub(crate) bare: Bare,
    connection: MultiplexedConnection,
}

impl Ground {
    /// An empty server, and a store and a bare queue on it.
    pub(crate) async fn new(url: &str) -> Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mut connection = connect(url).await?;
        redis::cmd("FLUSHALL").arg("SYNC").exec_async(&mut connection).await?;
        let name = format!("bench-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let store = RedisStore::builder().prefix(KeyPrefix::new(name.as_str())?).connect(url).await?;
        Ok(Self { store, bare: Bare::new(url, &name).await?, connection })
    }

    /// Puts so many jobs into the store's queue `bench`.
    pub(crate) async fn fill(&self, jobs: usize) -> Result {
        for _ in 0..jobs / 1000 {
            self.store.enqueue(&vec![job("bench", 0)?; 1000]).await?;
        }
        Ok(())
    }

    /// Sees that the store has so many live jobs.
    pub(crate) async fn expect(&self, live: usize) -> Result {
        let stats = self.store.stats(&Queues::all()).await?;
        match stats.iter().map(|queue| queue.live()).sum::<u64>() {
            found if found == live as u64 => Ok(()),
            found => Err(format!("there are {found} live jobs where {live} are right").into()),
        }
    }

    /// How many scripts the server was asked to run so far.
    pub(crate) async fn scripts(&self) -> Result<u64> {
        let mut command = redis::cmd("INFO");
        let info: String = command.arg("commandstats").query_async(&mut self.connection.clone()).await?;
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        let calls = line.and_then(|line| line.split(',').next()).ok_or("the server tells no calls")?;
        Ok(calls.parse()?)
    }
}
