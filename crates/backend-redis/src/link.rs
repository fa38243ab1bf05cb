//! The connection, and what every call has in common.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use chrono::{DateTime, Utc};
use leasehold_core::{JobId, QueueName, Queues, Result, StoreError, time};
use redis::aio::ConnectionManager;
use redis::{FromRedisValue, Pipeline};
use tokio::sync::Mutex;

use crate::directory::Directory;
use crate::error::{Effect, failed};
use crate::keys::KeyPrefix;
use crate::row::{self, Row};
use crate::script::{Call, scripts};
use crate::{id, script};

/// Policies that change so often during one call are somebody's mistake.
pub(crate) const TRIES: usize = 100;

/// How many queues one script may look at.
pub(crate) const QUEUES_PER_SCRIPT: usize = 500;

/// How many rows are asked for at once.
const ROWS: usize = 500;

/// A connection to the server and what is known about its queues.
pub(crate) struct Link {
    manager: ConnectionManager,
    pub(crate) prefix: KeyPrefix,
    directory: RwLock<Directory>,
    learning: Mutex<()>,
    /// By how many microseconds the clock is ahead of the server's: nothing, but in tests.
    pub(crate) shift: Arc<AtomicU64>,
}

impl Link {
    pub(crate) fn new(manager: ConnectionManager, prefix: KeyPrefix, shift: Arc<AtomicU64>) -> Self {
        Self { manager, prefix, directory: RwLock::default(), learning: Mutex::default(), shift }
    }

    /// The server's time.
    pub(crate) async fn now(&self, operation: &'static str) -> Result<DateTime<Utc>> {
        let mut connection = self.manager.clone();
        let answer = redis::cmd("TIME").query_async::<(i64, i64)>(&mut connection).await;
        let (seconds, micros) = answer.map_err(|error| failed(operation, Effect::Read, error))?;
        let now = DateTime::from_timestamp_micros(seconds * 1_000_000 + micros).unwrap_or_default();
        Ok(time::later(now, std::time::Duration::from_micros(self.shift.load(Ordering::Relaxed))))
    }

    /// Looks at what is known of queues and policies. Not to be held over an `await`.
    pub(crate) fn known<T>(&self, look: impl FnOnce(&Directory) -> T) -> T {
        look(&self.directory.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls a script that goes by the policies, as often as it takes until they are those of the server.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        operation: &'static str,
        effect: Effect,
        script: &'static redis::Script,
        fill: impl Fn(&Directory, &mut Call) + Send + Sync,
    ) -> Result<T> {
        for _ in 0..TRIES {
            if let Some(answer) = self.try_run(operation, effect, script, &fill).await? {
                return Ok(answer);
            }
        }
        Err(self.behind(operation))
    }

    /// The same, once. `None`: nothing was done, since something was not known; now it is.
    pub(crate) async fn try_run<T: FromRedisValue>(
        &self,
        operation: &'static str,
        effect: Effect,
        script: &'static redis::Script,
        fill: impl Fn(&Directory, &mut Call) + Send + Sync,
    ) -> Result<Option<T>> {
        let call = self.known(|directory| {
            let mut call = Call::new(script);
            call.arg(self.prefix.events()).arg(self.shift.load(Ordering::Relaxed));
            call.arg(directory.version()).key(self.prefix.version());
            fill(directory, &mut call);
            call
        });
        let answer = self.call::<Option<T>>(operation, effect, &call).await?;
        if answer.is_none() {
            self.catch_up(operation).await?;
        }
        Ok(answer)
    }

    /// The error of somebody who never catches up.
    pub(crate) fn behind(&self, operation: &'static str) -> StoreError {
        StoreError::unavailable(operation, "the policies change all the time")
    }

    /// Calls a script as it is.
    pub(crate) async fn call<T: FromRedisValue>(
        &self,
        operation: &'static str,
        effect: Effect,
        call: &Call,
    ) -> Result<T> {
        let mut connection = self.manager.clone();
        let answer = call.invocation().invoke_async(&mut connection).await;
        answer.map_err(|error| failed(operation, effect, error))
    }

    /// Sends commands, all at once.
    pub(crate) async fn send<T: FromRedisValue>(
        &self,
        operation: &'static str,
        effect: Effect,
        pipeline: &Pipeline,
    ) -> Result<T> {
        let mut connection = self.manager.clone();
        let answer = pipeline.query_async(&mut connection).await;
        answer.map_err(|error| failed(operation, effect, error))
    }

    /// Learns the queues and policies that are new.
    pub(crate) async fn catch_up(&self, operation: &'static str) -> Result<()> {
        type News = (String, String, Option<HashMap<String, String>>, usize, Vec<String>);
        // One at a time, or an old answer might come last.
        let _turn = self.learning.lock().await;
        loop {
            let (version, known) = self.known(|directory| (directory.version().to_owned(), directory.len()));
            let mut call = Call::new(&scripts::directory);
            call.key(self.prefix.version()).key(self.prefix.policies()).key(self.prefix.queues());
            call.key(self.prefix.instance()).arg(version).arg(known).arg(fastrand::u32(1..));
            let (instance, version, policies, count, names) =
                self.call::<News>(operation, Effect::Read, &call).await?;
            let mut directory = self.directory.write().unwrap_or_else(PoisonError::into_inner);
            if directory.is_of_another(&instance) || count < known {
                tracing::error!(known, count, "the server has lost queues");
                *directory = Directory::default();
                continue;
            }
            directory.instance = instance;
            directory.learn(known, names);
            if let Some(policies) = policies {
                directory.adopt(version, policies);
            }
            if directory.len() >= count {
                return Ok(());
            }
        }
    }

    /// The queues that are asked for, up to date.
    pub(crate) async fn select(&self, operation: &'static str, queues: &Queues) -> Result<Vec<QueueName>> {
        if let Queues::Matching(_) = queues {
            self.catch_up(operation).await?;
        }
        Ok(self.known(|directory| directory.select(queues)))
    }

    /// The queue of each job; none for ids that no job has.
    pub(crate) async fn locate(
        &self,
        operation: &'static str,
        jobs: impl Iterator<Item = JobId> + Clone,
    ) -> Result<Vec<Option<QueueName>>> {
        let find = |directory: &Directory| jobs.clone().map(|job| directory.queue_of(job).cloned()).collect();
        let found: Vec<Option<QueueName>> = self.known(find);
        let missing =
            found.iter().zip(jobs.clone()).any(|(name, job)| name.is_none() && id::queue(job).is_some());
        if !missing {
            return Ok(found);
        }
        self.catch_up(operation).await?;
        Ok(self.known(find))
    }

    /// The numbers of queues that are about to get jobs.
    pub(crate) async fn register(&self, operation: &'static str, queues: &[QueueName]) -> Result<()> {
        if self.known(|directory| queues.iter().all(|queue| directory.number(queue).is_some())) {
            return Ok(());
        }
        let mut call = Call::new(&scripts::register);
        call.key(self.prefix.queues()).key(self.prefix.numbers());
        for queue in queues {
            call.arg(queue.as_str());
        }
        // To register a queue that then gets no job does no harm.
        self.call::<Vec<u32>>(operation, Effect::Read, &call).await?;
        self.catch_up(operation).await
    }

    /// The rows of these jobs; none for those that are not there.
    pub(crate) async fn rows(
        &self,
        operation: &'static str,
        jobs: &[(QueueName, JobId)],
    ) -> Result<Vec<Option<Row>>> {
        let mut rows = Vec::with_capacity(jobs.len());
        for chunk in jobs.chunks(ROWS) {
            let mut pipeline = redis::pipe();
            for (queue, job) in chunk {
                pipeline.hgetall(format!("{}:{}", self.prefix.queue(queue), id::text(*job)));
            }
            type Fields = Vec<HashMap<String, Vec<u8>>>;
            let fields = self.send::<Fields>(operation, Effect::Read, &pipeline).await?;
            let pairs = chunk.iter().zip(fields);
            rows.extend(pairs.map(|((queue, job), fields)| Row::new(*job, queue.clone(), fields)));
        }
        Ok(rows)
    }
}

/// The queues of one call of a script, and the place of each among its keys.
#[derive(Default)]
pub(crate) struct Places<'a> {
    names: Vec<&'a QueueName>,
    places: HashMap<&'a QueueName, usize>,
}

impl<'a> Places<'a> {
    pub(crate) fn new(queues: impl IntoIterator<Item = &'a QueueName>) -> Self {
        let mut places = Self::default();
        for queue in queues {
            let next = places.names.len() + 1;
            if *places.places.entry(queue).or_insert(next) == next {
                places.names.push(queue);
            }
        }
        places
    }

    /// The place of a queue, from 1 on.
    pub(crate) fn of(&self, queue: &QueueName) -> usize {
        self.places.get(queue).copied().unwrap_or_default()
    }

    /// Gives the queues to a script as keys.
    pub(crate) fn keys(&self, prefix: &KeyPrefix, call: &mut script::Call) {
        for queue in &self.names {
            call.key(prefix.queue(queue));
        }
    }
}

/// An id that a script has answered.
pub(crate) fn answered_id(text: &str) -> Result<JobId> {
    id::parse(text).ok_or_else(|| StoreError::corrupt(format!("a script answered the job {text:?}")))
}

/// A time that a script has answered.
pub(crate) fn answered_time(text: &str) -> Result<DateTime<Utc>> {
    row::answered_time(text)
}
