//! The same work as bare Lua: the same fields and the same sorted sets, written by scripts in a loop through the same driver. It
//! keeps none of the promises: it knows no policies, no receipts, no schedules, no unique keys and no other queues.

use std::collections::HashMap;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Script};

use crate::Result;
use crate::load::{BATCH, payload};

/// A queue of bare Lua on one connection, as the store has one.
#[derive(Clone)]
pub(crate) struct Bare {
    connection: MultiplexedConnection,
    prefix: String,
    enqueue: Script,
    claim: Script,
    settle: Script,
}

/// A connection that waits for its answers.
pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

/// An id and the fields of a job.
type Job = (String, HashMap<String, Vec<u8>>);

impl Bare {
    pub(crate) async fn new(url: &str, prefix: &str) -> Result<Self> {
        let connection = connect(url).await?;
        Ok(Self {
            connection,
            prefix: format!("{{{prefix}}}"),
            enqueue: Script::new(include_str!("lua/enqueue.lua")),
            claim: Script::new(include_str!("lua/claim.lua")),
            settle: Script::new(include_str!("lua/settle.lua")),
        })
    }

    pub(crate) fn channel(&self) -> String {
        format!("{}:events", self.prefix)
    }

    /// Enqueues so many jobs.
    pub(crate) async fn enqueue(&self, jobs: usize) -> Result {
        let mut call = self.enqueue.key(&self.prefix);
        call.arg(jobs).arg(payload());
        call.invoke_async::<u64>(&mut self.connection.clone()).await?;
        Ok(())
    }

    /// Leases so many jobs.
    pub(crate) async fn claim(&self, limit: usize) -> Result<Vec<String>> {
        let mut call = self.claim.key(&self.prefix);
        let jobs: Vec<Job> = call.arg(limit).invoke_async(&mut self.connection.clone()).await?;
        if !jobs.iter().all(|(_, fields)| fields.contains_key("payload")) {
            return Err("a claim brought a job without a payload".into());
        }
        Ok(jobs.into_iter().map(|(id, _)| id).collect())
    }

    /// Moves jobs to the history.
    pub(crate) async fn settle(&self, ids: &[String]) -> Result {
        if ids.is_empty() {
            return Ok(());
        }
        let mut call = self.settle.key(&self.prefix);
        let settled: usize = call.arg(ids).invoke_async(&mut self.connection.clone()).await?;
        if settled == ids.len() { Ok(()) } else { Err("a job was settled twice".into()) }
    }

    /// Claims and settles batches until nothing is left: while one batch is settled, the next is claimed.
    pub(crate) async fn drain(self) -> Result<usize> {
        let (mut batch, mut sum) = (self.claim(BATCH).await?, 0);
        while !batch.is_empty() {
            let (settled, next) = tokio::join!(self.settle(&batch), self.claim(BATCH));
            settled?;
            sum += batch.len();
            batch = next?;
        }
        Ok(sum)
    }
}
