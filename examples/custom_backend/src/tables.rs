//! What is kept, and the only two functions that change a live job: [`Tables::put`] and [`Tables::take`].
//!
//! A job is one row of JSON. Beside it stands one row in *one* of two indexes: `WAITING` if it may be leased some day,
//! `RECLAIMABLE` if it is reclaim that must see to it. No status is kept: which index it is follows from the job.

use chrono::{DateTime, Utc};
use leasehold_core::{
    BoxError, Direction, FinishedJob, HistoryFilter, IdempotencyKey, Job, JobFilter, JobId, Page, Policies,
    QueueName, Receipt, Record, Result, StoreError, UniqueKey, backend, time,
};
use redb::{
    Database, ReadOnlyTable, ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

type Row = &'static [u8];

/// Queue, priority with the sign turned, `available_at`, id: the order in which jobs are leased (D6).
pub(crate) type Rank = (&'static str, i64, i64, i64);

/// Live jobs by id.
const JOBS: TableDefinition<i64, Row> = TableDefinition::new("leasehold_jobs");
/// Finished jobs by id.
const HISTORY: TableDefinition<i64, Row> = TableDefinition::new("leasehold_history");
/// Live jobs without a lease that have attempts left.
const WAITING: TableDefinition<Rank, ()> = TableDefinition::new("leasehold_waiting");
/// All other live jobs, by the time from which reclaim may take them, and id.
const RECLAIMABLE: TableDefinition<(i64, i64), ()> = TableDefinition::new("leasehold_reclaimable");
/// Which live job has a unique key of a queue.
const UNIQUE: TableDefinition<(&str, &str), i64> = TableDefinition::new("leasehold_unique");
/// Which queue of a prefix was served last.
const TURNS: TableDefinition<&str, &str> = TableDefinition::new("leasehold_turns");
/// Keys of `once_in`, each with the end of its retention.
const ONCE: TableDefinition<&str, i64> = TableDefinition::new("leasehold_once");
/// The same keys by the end of their retention.
const ONCE_BY_END: TableDefinition<(i64, &str), ()> = TableDefinition::new("leasehold_once_by_end");
/// The policies, and the last id.
const SETTINGS: TableDefinition<&str, Row> = TableDefinition::new("leasehold_settings");

/// Everything, in a transaction that may write.
pub(crate) struct Tables<'t> {
    jobs: Table<'t, i64, Row>,
    history: Table<'t, i64, Row>,
    pub(crate) waiting: Table<'t, Rank, ()>,
    reclaimable: Table<'t, (i64, i64), ()>,
    unique: Table<'t, (&'static str, &'static str), i64>,
    pub(crate) turns: Table<'t, &'static str, &'static str>,
    once: Table<'t, &'static str, i64>,
    once_by_end: Table<'t, (i64, &'static str), ()>,
    settings: Table<'t, &'static str, Row>,
}

impl<'t> Tables<'t> {
    pub(crate) fn open(tx: &'t WriteTransaction) -> Result<Self> {
        Ok(Self {
            jobs: tx.open_table(JOBS).map_err(failed)?,
            history: tx.open_table(HISTORY).map_err(failed)?,
            waiting: tx.open_table(WAITING).map_err(failed)?,
            reclaimable: tx.open_table(RECLAIMABLE).map_err(failed)?,
            unique: tx.open_table(UNIQUE).map_err(failed)?,
            turns: tx.open_table(TURNS).map_err(failed)?,
            once: tx.open_table(ONCE).map_err(failed)?,
            once_by_end: tx.open_table(ONCE_BY_END).map_err(failed)?,
            settings: tx.open_table(SETTINGS).map_err(failed)?,
        })
    }

    /// Puts a job into its queue.
    pub(crate) fn put(&mut self, job: &Job) -> Result<()> {
        let id = job.id.get();
        self.jobs.insert(id, encoded(job)?.as_slice()).map_err(failed)?;
        match Place::of(job) {
            Place::Waiting(rank) => self.waiting.insert(rank, ()).map_err(failed)?,
            Place::Reclaimable(from) => self.reclaimable.insert((from, id), ()).map_err(failed)?,
        };
        if let Some(key) = &job.unique_key {
            self.unique.insert((job.queue.as_str(), key.as_str()), id).map_err(failed)?;
        }
        Ok(())
    }

    /// Takes a job out of its queue: to be put back changed, or to be finished.
    pub(crate) fn take(&mut self, id: JobId) -> Result<Option<Job>> {
        let Some(job) = self.job(id)? else { return Ok(None) };
        self.jobs.remove(id.get()).map_err(failed)?;
        match Place::of(&job) {
            Place::Waiting(rank) => self.waiting.remove(rank).map_err(failed)?,
            Place::Reclaimable(from) => self.reclaimable.remove((from, id.get())).map_err(failed)?,
        };
        if let Some(key) = &job.unique_key {
            self.unique.remove((job.queue.as_str(), key.as_str())).map_err(failed)?; // E6
        }
        Ok(Some(job))
    }

    /// A live job, as it is.
    pub(crate) fn job(&self, id: JobId) -> Result<Option<Job>> {
        let row = self.jobs.get(id.get()).map_err(failed)?;
        row.map(|row| decoded(row.value())).transpose()
    }

    /// The job of a good receipt, as it is.
    pub(crate) fn held(&self, receipt: &Receipt) -> Result<Option<Job>> {
        Ok(self.job(receipt.job)?.filter(|job| backend::is_held(job, receipt)))
    }

    /// The live job with this unique key.
    pub(crate) fn holder(&self, queue: &QueueName, key: Option<&UniqueKey>) -> Result<Option<JobId>> {
        let Some(key) = key else { return Ok(None) };
        let id = self.unique.get((queue.as_str(), key.as_str())).map_err(failed)?;
        Ok(id.map(|id| JobId::new(id.value())))
    }

    /// Up to `limit` jobs that reclaim may take, those that have waited for it the longest first.
    pub(crate) fn reclaimable(&self, limit: usize, now: DateTime<Utc>) -> Result<Vec<JobId>> {
        let due = self.reclaimable.range(..=(now.timestamp_micros(), i64::MAX)).map_err(failed)?;
        due.take(limit).map(|row| Ok(JobId::new(row.map_err(failed)?.0.value().1))).collect()
    }

    /// Keeps a finished job.
    pub(crate) fn archive(&mut self, job: &FinishedJob) -> Result<()> {
        self.history.insert(job.id.get(), encoded(job)?.as_slice()).map_err(failed).map(drop)
    }

    /// A finished job.
    pub(crate) fn finished(&self, id: JobId) -> Result<Option<FinishedJob>> {
        let row = self.history.get(id.get()).map_err(failed)?;
        row.map(|row| decoded(row.value())).transpose()
    }

    /// Forgets a finished job.
    pub(crate) fn forget(&mut self, id: JobId) -> Result<()> {
        self.history.remove(id.get()).map_err(failed).map(drop)
    }

    /// The ids of finished jobs, from the smallest: those given, or all.
    pub(crate) fn finished_ids(&self, asked: Option<&[JobId]>) -> Result<Vec<JobId>> {
        if let Some(asked) = asked {
            let mut ids = asked.to_vec();
            ids.sort_unstable();
            ids.dedup();
            return Ok(ids);
        }
        let rows = self.history.iter().map_err(failed)?;
        rows.map(|row| Ok(JobId::new(row.map_err(failed)?.0.value()))).collect()
    }

    /// An id that nobody has had (E10).
    pub(crate) fn next_id(&mut self) -> Result<JobId> {
        let last: Option<i64> = self.setting("last_id")?;
        let id = last.unwrap_or(0) + 1;
        self.set("last_id", &id)?;
        Ok(JobId::new(id))
    }

    pub(crate) fn policies(&self) -> Result<Policies> {
        Ok(self.setting("policies")?.unwrap_or_default())
    }

    pub(crate) fn set_policies(&mut self, policies: &Policies) -> Result<()> {
        self.set("policies", policies)
    }

    /// Whether `key` is new. It no longer is, for as long as it is kept.
    pub(crate) fn once(&mut self, key: &IdempotencyKey, now: DateTime<Utc>) -> Result<bool> {
        if self.once.get(key.as_str()).map_err(failed)?.is_some() {
            return Ok(false);
        }
        let until = time::later(now, key.kept_for()).timestamp_micros();
        self.once.insert(key.as_str(), until).map_err(failed)?;
        self.once_by_end.insert((until, key.as_str()), ()).map_err(failed)?;
        Ok(true)
    }

    /// Forgets up to `limit` keys whose retention has passed, and says how many.
    pub(crate) fn forget_keys(&mut self, now: DateTime<Utc>, limit: u64) -> Result<u64> {
        let mut forgotten = 0;
        while forgotten < limit {
            let Some(first) = self.once_by_end.first().map_err(failed)? else { break };
            let (until, key) = first.0.value();
            if until > now.timestamp_micros() {
                break;
            }
            let key = key.to_owned();
            drop(first);
            self.once_by_end.remove((until, key.as_str())).map_err(failed)?;
            self.once.remove(key.as_str()).map_err(failed)?;
            forgotten += 1;
        }
        Ok(forgotten)
    }

    fn setting<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let row = self.settings.get(name).map_err(failed)?;
        row.map(|row| decoded(row.value())).transpose()
    }

    fn set<T: Serialize>(&mut self, name: &str, value: &T) -> Result<()> {
        self.settings.insert(name, encoded(value)?.as_slice()).map_err(failed).map(drop)
    }
}

/// Everything that was committed at one moment, to be read.
pub(crate) struct Snapshot(ReadTransaction);

impl Snapshot {
    pub(crate) fn open(database: &Database) -> Result<Self> {
        database.begin_read().map(Self).map_err(failed)
    }

    /// The queue, then the history (G1). Both are of one moment, so that a job is always in one of them.
    pub(crate) fn get(&self, id: JobId) -> Result<Option<Record>> {
        let live = self.table(JOBS)?.get(id.get()).map_err(failed)?;
        if let Some(row) = live {
            return decoded(row.value()).map(|job| Some(Record::Live(job)));
        }
        let finished = self.table(HISTORY)?.get(id.get()).map_err(failed)?;
        finished.map(|row| decoded(row.value()).map(Record::Finished)).transpose()
    }

    pub(crate) fn jobs(&self, filter: &JobFilter, now: DateTime<Utc>) -> Result<Page<Job>> {
        let rows = rows(self.table(JOBS)?, filter.after, filter.direction)?;
        page(rows, filter.limit.as_usize(), |job| filter.matches(job, now), |job| job.id) // G2
    }

    pub(crate) fn history(&self, filter: &HistoryFilter) -> Result<Page<FinishedJob>> {
        let rows = rows(self.table(HISTORY)?, filter.after, filter.direction)?;
        page(rows, filter.limit.as_usize(), |job| filter.matches(job), |job| job.id) // G3
    }

    pub(crate) fn policies(&self) -> Result<Policies> {
        let row = self.table(SETTINGS)?.get("policies").map_err(failed)?;
        Ok(row.map(|row| decoded(row.value())).transpose()?.unwrap_or_default())
    }

    fn table<K: redb::Key>(&self, table: TableDefinition<K, Row>) -> Result<ReadOnlyTable<K, Row>> {
        self.0.open_table(table).map_err(failed)
    }
}

/// In which index a job stands.
enum Place<'a> {
    Waiting((&'a str, i64, i64, i64)),
    Reclaimable(i64),
}

impl<'a> Place<'a> {
    fn of(job: &'a Job) -> Self {
        match &job.lease {
            Some(lease) => Self::Reclaimable(lease.until.timestamp_micros()), // R1
            None if job.attempts >= job.max_attempts.get() => Self::Reclaimable(i64::MIN), // R4
            None => {
                let (first, then) = (-i64::from(job.priority), job.available_at.timestamp_micros());
                Self::Waiting((job.queue.as_str(), first, then, job.id.get()))
            }
        }
    }
}

/// The rows after `after` in this direction, decoded.
fn rows<T: DeserializeOwned>(
    table: ReadOnlyTable<i64, Row>,
    after: Option<JobId>,
    direction: Direction,
) -> Result<impl Iterator<Item = Result<T>>> {
    let after = after.map(JobId::get);
    let range = match direction {
        Direction::OldestFirst => table.range(after.map_or(i64::MIN, |id| id.saturating_add(1))..),
        Direction::NewestFirst => table.range(..after.unwrap_or(i64::MAX)),
    };
    let mut range = range.map_err(failed)?;
    let next = move || match direction {
        Direction::OldestFirst => range.next(),
        Direction::NewestFirst => range.next_back(),
    };
    Ok(std::iter::from_fn(next).map(|row| decoded(row.map_err(failed)?.1.value())))
}

/// The first `limit` of those that match, and where the next page begins.
fn page<T>(
    rows: impl Iterator<Item = Result<T>>,
    limit: usize,
    matches: impl Fn(&T) -> bool,
    id: impl Fn(&T) -> JobId,
) -> Result<Page<T>> {
    let matching = rows.filter(|row| row.as_ref().map_or(true, &matches));
    let mut items: Vec<T> = matching.take(limit + 1).collect::<Result<_>>()?;
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().map(id).filter(|_| more);
    Ok(Page { items, next })
}

fn encoded<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(failed)
}

/// What cannot be decoded was not written by us: that is [`StoreError::Corrupt`], never a panic.
fn decoded<T: DeserializeOwned>(row: &[u8]) -> Result<T> {
    serde_json::from_slice(row).map_err(|error| StoreError::corrupt(error.to_string()))
}

/// An error of redb's. Nothing was committed.
pub(crate) fn failed(error: impl Into<BoxError>) -> StoreError {
    StoreError::backend("redb", error)
}
