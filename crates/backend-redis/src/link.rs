//! What every call has in common: keys, the stamp of the shard, and catching up when it is another.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use leasehold_core::{JobId, QueueName, Queues, Result, StoreError, time};
use redis::{Cmd, FromRedisValue, Pipeline, RedisError};
use tokio::sync::Mutex;

use crate::clock::{Clocks, late};
use crate::directory::Directory;
use crate::error::{Effect, failed};
use crate::id;
use crate::keys::{Layout, Shard};
use crate::row;
use crate::script::{Call, Script, scripts};
use crate::wire::Wire;

/// Policies that change so often during one call are somebody's mistake.
pub(crate) const TRIES: usize = 100;

/// How many queues one script may look at.
pub(crate) const QUEUES_PER_SCRIPT: usize = 500;

/// How many jobs one script may change, and about how many bytes of documents it may move: it keeps everybody else waiting. What is more takes several
/// scripts.
pub(crate) const JOBS_PER_SCRIPT: usize = 250;
pub(crate) const BYTES_PER_SCRIPT: usize = 2 << 20;

/// How many names of queues are asked for at once.
const NAMES: usize = 10_000;

/// A connection and what is known about the queues.
pub(crate) struct Link {
    wire: Wire,
    pub(crate) layout: Layout,
    directory: RwLock<Directory>,
    learning: Mutex<()>,
    /// No sequence of a shard is behind this for whoever enqueues here, so that ids rise from call to call (E10).
    sequence: AtomicI64,
    /// By how many microseconds the clock is ahead of the server's: nothing, but in tests.
    shift: Arc<AtomicU64>,
    clocks: Clocks,
}

impl Link {
    /// `patience`: how long a caller waits for an answer.
    pub(crate) fn new(wire: Wire, layout: Layout, shift: Arc<AtomicU64>, patience: Duration) -> Self {
        let (directory, learning, clocks) = (RwLock::default(), Mutex::default(), Clocks::new(patience));
        Self { wire, layout, directory, learning, sequence: AtomicI64::new(0), shift, clocks }
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.wire
    }

    /// The server's time.
    pub(crate) async fn now(&self, operation: &'static str) -> Result<DateTime<Utc>> {
        let (seconds, micros) = self.send::<(i64, i64)>(operation, Effect::Read, &redis::cmd("TIME")).await?;
        let now = DateTime::from_timestamp_micros(seconds * 1_000_000 + micros).unwrap_or_default();
        Ok(time::later(now, std::time::Duration::from_micros(self.shift.load(Ordering::Relaxed))))
    }

    /// The last number that was given to a job enqueued here.
    pub(crate) fn last_number(&self) -> i64 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// A job enqueued here has got this number.
    pub(crate) fn has_given(&self, number: i64) {
        self.sequence.fetch_max(number, Ordering::Relaxed);
    }

    /// Looks at what is known of queues and policies. Not to be held over an `await`.
    pub(crate) fn known<T>(&self, look: impl FnOnce(&Directory) -> T) -> T {
        look(&self.directory.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Directory) -> T) -> T {
        change(&mut self.directory.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls a script of a shard, as often as it takes until what it goes by is true there.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        operation: &'static str,
        effect: Effect,
        (script, shard): (&'static Script, Shard),
        fill: impl Fn(&Directory, &mut Call) + Send + Sync,
    ) -> Result<T> {
        for _ in 0..TRIES {
            if let Some(answer) = self.try_run(operation, effect, (script, shard), &fill).await? {
                return Ok(answer);
            }
        }
        Err(self.behind(operation))
    }

    /// The same, once. `None`: nothing was done, since something else is true there; now it is known.
    pub(crate) async fn try_run<T: FromRedisValue>(
        &self,
        operation: &'static str,
        effect: Effect,
        (script, shard): (&'static Script, Shard),
        fill: impl Fn(&Directory, &mut Call) + Send + Sync,
    ) -> Result<Option<T>> {
        let begun = Instant::now();
        loop {
            let call = self.known(|directory| {
                let mut call = Call::new(script);
                call.key(self.layout.base(shard));
                call.arg(self.layout.prefix.events()).arg(self.shift.load(Ordering::Relaxed));
                match effect {
                    Effect::Read => call.arg(""),
                    Effect::Write => call.arg(self.clocks.deadline(shard)),
                };
                call.arg(directory.stamp(shard));
                fill(directory, &mut call);
                call
            });
            match self.answer::<Option<T>>(effect, &call).await {
                Ok(None) => {
                    self.catch_up(operation, Some(shard)).await?;
                    return Ok(None);
                }
                Ok(answer) => return Ok(answer),
                Err(error) => match late(&error) {
                    None => return Err(failed(operation, effect, error)),
                    Some(_) if begun.elapsed() > self.clocks.patience() => {
                        return Err(StoreError::unavailable(
                            operation,
                            "the server came to it too late, and did nothing",
                        ));
                    }
                    Some(time) => self.clocks.learn(shard, time),
                },
            }
        }
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
        self.answer(effect, call).await.map_err(|error| failed(operation, effect, error))
    }

    async fn answer<T: FromRedisValue>(&self, effect: Effect, call: &Call) -> Result<T, RedisError> {
        match self.wire.command(&call.by_hash(), effect).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                self.wire.command(&call.by_text(), effect).await
            }
            answer => answer,
        }
    }

    /// Sends one command.
    pub(crate) async fn send<T: FromRedisValue>(
        &self,
        operation: &'static str,
        effect: Effect,
        command: &Cmd,
    ) -> Result<T> {
        self.wire.command(command, effect).await.map_err(|error| failed(operation, effect, error))
    }

    /// Sends commands for one shard, all at once.
    pub(crate) async fn send_all<T: FromRedisValue>(
        &self,
        operation: &'static str,
        effect: Effect,
        pipeline: &Pipeline,
    ) -> Result<T> {
        self.wire.pipeline(pipeline, effect).await.map_err(|error| failed(operation, effect, error))
    }

    /// Learns the policies, and sees that a shard goes by them.
    pub(crate) async fn catch_up(&self, operation: &'static str, shard: Option<Shard>) -> Result<()> {
        // One at a time, or an old answer might come last.
        let _turn = self.learning.lock().await;
        for _ in 0..TRIES {
            self.learn(operation).await?;
            let Some(shard) = shard else { return Ok(()) };
            if self.stamp(operation, shard).await? {
                return Ok(());
            }
        }
        Err(self.behind(operation))
    }

    /// Learns the policies. The shards were counted when the prefix was opened, and are no longer asked for.
    async fn learn(&self, operation: &'static str) -> Result<()> {
        let (instance, version) =
            self.known(|directory| (directory.instance.clone(), directory.version.clone()));
        let call = directory_call(&self.layout, &instance, &version);
        let (instance, version, policies, shards, keys) =
            self.call::<News>(operation, Effect::Read, &call).await?;
        check_keys(keys)?;
        if shards != self.layout.count() {
            let here = self.layout.count();
            return Err(StoreError::conflict(format!(
                "the prefix has {shards} shards now, no longer {here}"
            )));
        }
        if let Some(policies) = policies {
            self.change(|directory| directory.adopt(instance, version, &policies));
        }
        Ok(())
    }

    /// Sees that a shard goes by the policies that are known here. If not, it knows newer ones.
    async fn stamp(&self, operation: &'static str, shard: Shard) -> Result<bool> {
        let mut call = Call::new(&scripts::stamp);
        call.key(format!("{}:stamp", self.layout.base(shard)));
        self.known(|directory| {
            call.arg(&directory.instance).arg(&directory.version).arg(fastrand::u32(1..));
        });
        // To be told twice is as good as once.
        let stamp = self.call::<String>(operation, Effect::Read, &call).await?;
        Ok(self.change(|directory| directory.stamped(&self.layout, shard, stamp)))
    }

    /// Sees that all shards go by the policies of now.
    pub(crate) async fn stamp_all(&self, operation: &'static str) -> Result<()> {
        let stamped = self.layout.shards().map(|shard| self.catch_up(operation, Some(shard)));
        join_all(stamped).await.into_iter().collect()
    }

    /// The queues that are asked for: those that were named, known or not, or all that match and have jobs or a history.
    pub(crate) async fn select(&self, operation: &'static str, queues: &Queues) -> Result<Vec<QueueName>> {
        let prefix = match queues {
            Queues::Named(names) => return Ok(names.to_vec()),
            Queues::Matching(prefix) => prefix.as_str(),
        };
        let listed = join_all(self.layout.shards().map(|shard| self.list(operation, shard, prefix))).await;
        let mut names = listed.into_iter().collect::<Result<Vec<_>>>()?.concat();
        names.sort_unstable();
        Ok(names)
    }

    pub(crate) async fn list(
        &self,
        operation: &'static str,
        shard: Shard,
        prefix: &str,
    ) -> Result<Vec<QueueName>> {
        let mut names: Vec<QueueName> = Vec::new();
        loop {
            let from = names.last().map_or_else(|| format!("[{prefix}"), |last| format!("({last}"));
            let to = if prefix.is_empty() { "+".to_owned() } else { format!("({prefix}\u{7f}") };
            let mut command = redis::cmd("ZRANGEBYLEX");
            command.arg(format!("{}:queues", self.layout.base(shard))).arg(from).arg(to);
            command.arg("LIMIT").arg(0).arg(NAMES);
            let page = self.send::<Vec<String>>(operation, Effect::Read, &command).await?;
            let full = page.len() == NAMES;
            names.extend(page.into_iter().filter_map(queue_name));
            if !full {
                return Ok(names);
            }
        }
    }

    /// The places of these jobs in their list, by shard; without those that no job has.
    pub(crate) fn by_shard(&self, jobs: impl Iterator<Item = JobId>) -> BTreeMap<Shard, Vec<usize>> {
        grouped(jobs.enumerate().filter_map(|(place, job)| Some((self.layout.place(job)?.0, place))))
    }

    /// The queue of each job; none for ids that no job has. What is known may be a name that is forgotten by now: the
    /// stamp tells a script so, and who only looks must ask.
    pub(crate) async fn locate(
        &self,
        operation: &'static str,
        jobs: impl Iterator<Item = JobId> + Clone,
    ) -> Result<Vec<Option<QueueName>>> {
        let place = |job| self.layout.place(job);
        let missing: Vec<(Shard, u32)> = self.known(|directory| {
            jobs.clone().filter_map(place).filter(|(_, number)| directory.name(*number).is_none()).collect()
        });
        let asked = self.names(operation, &missing).await?;
        Ok(self.known(|directory| {
            let name = |number| directory.name(number).or_else(|| asked.get(&number)).cloned();
            jobs.map(|job| place(job).and_then(|(_, number)| name(number))).collect()
        }))
    }

    /// The same, by what the server says now.
    pub(crate) async fn locate_anew(
        &self,
        operation: &'static str,
        jobs: impl Iterator<Item = JobId> + Clone,
    ) -> Result<Vec<Option<QueueName>>> {
        let place = |job| self.layout.place(job);
        let names = self.names(operation, &jobs.clone().filter_map(place).collect::<Vec<_>>()).await?;
        Ok(jobs.map(|job| place(job).and_then(|(_, number)| names.get(&number).cloned())).collect())
    }

    async fn names(
        &self,
        operation: &'static str,
        numbers: &[(Shard, u32)],
    ) -> Result<HashMap<u32, QueueName>> {
        let groups = grouped(numbers.iter().map(|(shard, number)| (*shard, *number)));
        let asked = groups.into_iter().map(|(shard, mut numbers)| async move {
            numbers.sort_unstable();
            numbers.dedup();
            let mut command = redis::cmd("HMGET");
            command.arg(format!("{}:names", self.layout.base(shard))).arg(&numbers);
            let names = self.send::<Vec<Option<String>>>(operation, Effect::Read, &command).await?;
            Ok((numbers, names))
        });
        let mut found = HashMap::new();
        for (numbers, names) in join_all(asked).await.into_iter().collect::<Result<Vec<_>>>()? {
            let named = numbers.into_iter().zip(names);
            found.extend(named.filter_map(|(number, name)| Some((number, queue_name(name?)?))));
        }
        self.change(|directory| found.iter().for_each(|(number, name)| directory.learn(*number, name)));
        Ok(found)
    }

    /// Remembers the queues of jobs that are likely to be asked for soon.
    pub(crate) fn learn_from<'a>(&self, jobs: impl Iterator<Item = (JobId, &'a QueueName)>) {
        let numbers: HashMap<u32, &QueueName> =
            jobs.filter_map(|(job, queue)| Some((id::queue(job)?, queue))).collect();
        let known = self
            .known(|directory| numbers.iter().all(|(number, name)| directory.name(*number) == Some(name)));
        if !known {
            self.change(|directory| numbers.iter().for_each(|(number, name)| directory.learn(*number, name)));
        }
    }
}

/// Instance, version, policies if they are news, shards, and the layout of the keys.
pub(crate) type News = (String, String, Option<HashMap<String, String>>, u32, u32);

/// How keys are named and what is in them. A version that changes it so that others would go wrong takes the next number.
const KEYS: u32 = 1;

/// Refuses a prefix in which a newer version has written.
pub(crate) fn check_keys(keys: u32) -> Result<()> {
    if keys <= KEYS {
        return Ok(());
    }
    Err(StoreError::conflict(format!(
        "a newer version of this program has written here: the keys have layout {keys}, and this version knows {KEYS}"
    )))
}

/// Asks what everybody must know, and says how many shards a new prefix is to have.
pub(crate) fn directory_call(layout: &Layout, instance: &str, version: &str) -> Call {
    let mut call = Call::new(&scripts::directory);
    for name in ["instance", "version", "policies", "shards", "layout"] {
        call.key(layout.prefix.common(name));
    }
    call.arg(instance).arg(version).arg(fastrand::u32(1..)).arg(layout.count()).arg(KEYS);
    call
}

/// Things by their shard, in order.
pub(crate) fn grouped<T>(things: impl Iterator<Item = (Shard, T)>) -> BTreeMap<Shard, Vec<T>> {
    let mut groups = BTreeMap::<_, Vec<T>>::new();
    for (shard, thing) in things {
        groups.entry(shard).or_default().push(thing);
    }
    groups
}

/// A queue that the server has named.
pub(crate) fn queue_name(name: String) -> Option<QueueName> {
    QueueName::new(name).inspect_err(|error| tracing::error!(%error, "a stored queue was passed over")).ok()
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
    pub(crate) fn keys(&self, layout: &Layout, call: &mut Call) {
        for queue in &self.names {
            call.key(layout.queue(queue));
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
