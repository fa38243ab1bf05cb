//! The connection: to one server, or to the masters of a cluster.
//!
//! Nothing whose answer was lost is sent again, but for what only looks. What was refused was not done: while a cluster moves
//! slots or chooses another master, it is asked again, a few times.
//!
//! While a slot is moved its keys are on two nodes. The one that had it answers `ASK` for every key that it does not have, and the
//! keys that scripts name never exist: so no script runs there. The other one would run it if it were told `ASKING`, on whatever part of the
//! shard has arrived. It is never told so: the slot is asked for again until it is in one place.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Pipeline, RedisError};

use crate::cluster::{self, Cluster};
use crate::error::{Effect, is_refusal};
use crate::single::Single;

/// How often a cluster is asked, and how long to wait in between: doubled each time.
const TRIES: u32 = 8;
const WAIT: Duration = Duration::from_millis(5);

/// A connection. Clones are the same one.
#[derive(Clone)]
pub(crate) enum Wire {
    Single(Arc<Single>),
    Cluster(Arc<Cluster>),
}

impl Wire {
    /// Sends a command: in a cluster to the master that has its first key.
    pub(crate) async fn command<T: FromRedisValue>(
        &self,
        command: &Cmd,
        effect: Effect,
    ) -> Result<T, RedisError> {
        match self {
            Self::Single(single) => {
                let (mut connection, generation) = single.connection().await?;
                let answer = command.query_async(&mut connection).await;
                single.judge(generation, &answer);
                answer
            }
            Self::Cluster(cluster) => {
                let send = || async { command.query_async(&mut cluster.connection()).await };
                with_key(cluster, effect, cluster::key(command), patiently(effect, send)).await
            }
        }
    }

    /// Sends commands whose keys are in one slot, all at once.
    pub(crate) async fn pipeline<T: FromRedisValue>(
        &self,
        pipeline: &Pipeline,
        effect: Effect,
    ) -> Result<T, RedisError> {
        match self {
            Self::Single(single) => {
                let (mut connection, generation) = single.connection().await?;
                let answer = pipeline.query_async(&mut connection).await;
                single.judge(generation, &answer);
                answer
            }
            Self::Cluster(cluster) => {
                let key = pipeline.cmd_iter().next().and_then(cluster::key);
                let send = || async { pipeline.query_async(&mut cluster.connection()).await };
                with_key(cluster, effect, key, patiently(effect, send)).await
            }
        }
    }
}

/// Sends something to the master that has this key, once it is sure that a write gets there.
async fn with_key<T>(
    cluster: &Cluster,
    effect: Effect,
    key: Option<&[u8]>,
    send: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let Some(key) = key else { return send.await };
    if effect == Effect::Write {
        cluster.try_out(key).await?;
    }
    let answer = send.await;
    cluster.judge(key, &answer);
    answer
}

async fn patiently<T, F: Future<Output = Result<T, RedisError>>>(
    effect: Effect,
    send: impl Fn() -> F,
) -> Result<T, RedisError> {
    let mut wait = WAIT;
    for _ in 1..TRIES {
        match send().await {
            Err(error) if may_be_repeated(&error, effect) => tokio::time::sleep(wait).await,
            answer => return answer,
        }
        wait *= 2;
    }
    send().await
}

/// Whether nothing was done, and the cluster may be of another opinion soon.
fn may_be_repeated(error: &RedisError, effect: Effect) -> bool {
    let settles = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"];
    let refused = error.code().is_some_and(|code| settles.contains(&code));
    refused
        || (error.code().is_none() && is_refusal(error))
        || (effect == Effect::Read && error.is_io_error())
}
