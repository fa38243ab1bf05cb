//! Unique keys: which live job has one.
//!
//! A key that is in use, or was, has a row in `job_unique` with the id of the job that took it last. It is free as soon as that job has left the
//! queue, however it left: what ends a job does not touch these rows, and `prune` removes them later. An operation that wants a key locks its row.
//! The key is the primary key of its table, so a wait for it is a wait for one record at every isolation level, and no job without a key meets it.
//! Several keys are locked in their order, so that the operations of the store do not deadlock over them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use diesel::sql_types::{BigInt, Nullable, Text};
use leasehold_core::NewJob;
use leasehold_sql::Stored;

use crate::error::Failure;
use crate::session::Session;
use crate::sql::Repeated;
use crate::statement::Param;

/// So many keys are looked up in one statement.
const LOOKED_UP: usize = 64;
/// So many keys are locked or taken in one statement.
const LOCKED: usize = 256;
/// So many rows of keys are looked at together, to find those that no live job has.
const PAGE: usize = 64;

/// A queue, and a unique key in it.
pub(crate) type Key<'k> = (&'k str, &'k str);

/// The key of a job, if it has one.
pub(crate) fn key(job: &NewJob) -> Option<Key<'_>> {
    Some((job.queue().as_str(), job.unique_key()?.as_str()))
}

/// The row of a key.
#[derive(Debug, Clone, Copy)]
struct Taken {
    /// The job that has taken the key last; 0 for a row that was only made to be locked.
    job: i64,
    /// Raised whenever the key is taken: a redrive takes it for the same job again.
    version: i64,
    is_live: bool,
}

/// Locks those of the keys that have rows, and tells how many they are. `None` if another transaction has one of them: an operation of the store waits
/// for that without a connection, and without a lock that others need. Not in a user's transaction: above READ COMMITTED a row that is not there
/// would be a locked gap.
pub(crate) async fn try_lock(
    session: &mut Session<'_>,
    keys: &BTreeSet<Key<'_>>,
) -> Result<Option<usize>, Failure> {
    let keys: Vec<Key<'_>> = keys.iter().copied().collect();
    let mut count = 0;
    for some in keys.chunks(LOOKED_UP) {
        let sql = session.sql;
        let (text, params) = each(&sql.try_keys, some);
        let Some(rows) = session.rows_unless_locked::<BigInt, i64>(text, params).await? else {
            return Ok(None);
        };
        count += rows.len();
    }
    Ok(Some(count))
}

/// Which live job has a key, by what is committed now.
pub(crate) async fn holder(session: &mut Session<'_>, key: Key<'_>) -> Result<Option<i64>, Failure> {
    let taken = look_up(session, &[key]).await?;
    Ok(taken.get(&key).filter(|taken| taken.is_live).map(|taken| taken.job))
}

/// Locks keys until the transaction ends, and tells which of them live jobs have.
pub(crate) async fn lock<'k>(
    session: &mut Session<'_>,
    keys: &BTreeSet<Key<'k>>,
) -> Result<HashMap<Key<'k>, i64>, Failure> {
    let keys: Vec<Key<'k>> = keys.iter().copied().collect();
    if session.is_users() {
        return lock_in(session, &keys).await;
    }
    write(session, Rows::Hold, &keys.iter().map(|key| (*key, 0)).collect::<Vec<_>>()).await?;
    let taken = look_up(session, &keys).await?;
    Ok(taken.into_iter().filter(|(_, taken)| taken.is_live).map(|(key, taken)| (key, taken.job)).collect())
}

/// The same in a user's transaction, which may see what has ended since, or what is never committed. A live job that has a key is locked, and the
/// key is not: others are told of that job at once.
async fn lock_in<'k>(session: &mut Session<'_>, keys: &[Key<'k>]) -> Result<HashMap<Key<'k>, i64>, Failure> {
    let seen = look_up(session, keys).await?;
    let live = seen.values().filter(|taken| taken.is_live).map(|taken| taken.job).collect();
    let mut holders = still_live(session, live, keys).await?;
    let left: Vec<Key<'k>> = keys.iter().copied().filter(|key| !holders.contains_key(key)).collect();
    write(session, Rows::Hold, &left.iter().map(|key| (*key, 0)).collect::<Vec<_>>()).await?;
    // If the row is what was seen, its job is known to have ended: to look for it again would lock a gap above READ COMMITTED.
    let is_new = |key: &Key<'_>, now: &(i64, i64)| {
        now.0 != 0 && seen.get(key).is_none_or(|taken| (taken.job, taken.version) != *now)
    };
    let now = locked(session, &left).await?;
    let new = now.iter().filter(|(key, now)| is_new(key, now)).map(|(_, now)| now.0).collect();
    holders.extend(still_live(session, new, keys).await?);
    Ok(holders)
}

/// Gives keys, which are locked, to jobs. Tells how many rows were made, and twice how many were written.
pub(crate) async fn take(session: &mut Session<'_>, jobs: &[(Key<'_>, i64)]) -> Result<u64, Failure> {
    write(session, Rows::Take, jobs).await
}

enum Rows {
    Hold,
    Take,
}

async fn write(session: &mut Session<'_>, rows: Rows, jobs: &[(Key<'_>, i64)]) -> Result<u64, Failure> {
    let sql = session.sql;
    let mut count = 0;
    for some in jobs.chunks(LOCKED) {
        let (text, size) = match rows {
            Rows::Hold => sql.hold_keys.of(some.len()),
            Rows::Take => sql.take_keys.of(some.len()),
        };
        let mut params: Vec<Param<'_>> = Vec::with_capacity(3 * size);
        let last = some.last().copied().unwrap_or_default();
        for ((queue, key), job) in some.iter().copied().chain(std::iter::repeat_n(last, size - some.len())) {
            params.extend([queue.into(), key.into()]);
            if matches!(rows, Rows::Take) {
                params.push(job.into());
            }
        }
        count += session.count(text, params).await?;
    }
    Ok(count)
}

/// The rows of keys, as this transaction sees them.
async fn look_up<'k>(
    session: &mut Session<'_>,
    keys: &[Key<'k>],
) -> Result<HashMap<Key<'k>, Taken>, Failure> {
    type Row = (BigInt, BigInt, BigInt, BigInt);
    let sql = session.sql;
    let mut taken = HashMap::new();
    for some in keys.chunks(LOOKED_UP) {
        let (text, params) = each(&sql.taken, some);
        let rows: Vec<(i64, i64, i64, i64)> = session.rows::<Row, _>(text, params).await?;
        for (place, job, version, is_live) in rows {
            if let Some(key) = usize::try_from(place).ok().and_then(|place| some.get(place)) {
                taken.insert(*key, Taken { job, version, is_live: is_live != 0 });
            }
        }
    }
    Ok(taken)
}

/// Locks the rows of keys, and reads job and version of each.
async fn locked<'k>(
    session: &mut Session<'_>,
    keys: &[Key<'k>],
) -> Result<HashMap<Key<'k>, (i64, i64)>, Failure> {
    let sql = session.sql;
    let mut locked = HashMap::new();
    for some in keys.chunks(LOOKED_UP) {
        let (text, params) = each(&sql.taken_now, some);
        let rows: Vec<(i64, i64, i64)> = session.rows::<(BigInt, BigInt, BigInt), _>(text, params).await?;
        for (place, job, version) in rows {
            if let Some(key) = usize::try_from(place).ok().and_then(|place| some.get(place)) {
                locked.insert(*key, (job, version));
            }
        }
    }
    Ok(locked)
}

/// Which of these jobs are live and have one of the keys. Those are locked, too.
async fn still_live<'k>(
    session: &mut Session<'_>,
    jobs: BTreeSet<i64>,
    keys: &[Key<'k>],
) -> Result<HashMap<Key<'k>, i64>, Failure> {
    type Row = (BigInt, Text, Nullable<Text>);
    let sql = session.sql;
    let jobs: Vec<i64> = jobs.into_iter().collect();
    let live: Vec<(i64, Stored, Option<Stored>)> =
        session.listed::<Row, _>(&sql.still_live, Vec::new(), &jobs, Vec::new()).await?;
    let wanted: HashMap<Key<'_>, Key<'k>> = keys.iter().map(|key| (*key, *key)).collect();
    let holder = |(id, queue, unique): &(i64, Stored, Option<Stored>)| {
        Some((*wanted.get(&(&**queue, unique.as_deref()?))?, *id))
    };
    Ok(live.iter().filter_map(holder).collect())
}

/// A statement that is repeated for each key: its place among them, its queue, the key. Filled up with the last key: for one that is not there a
/// user's transaction would lock a gap.
fn each<'a>(statement: &'a Repeated, keys: &[Key<'a>]) -> (&'a str, Vec<Param<'a>>) {
    let (text, size) = statement.of(keys.len());
    let mut params: Vec<Param<'_>> = Vec::with_capacity(3 * size);
    for (place, (queue, key)) in keys.iter().enumerate() {
        params.extend([place.into(), (*queue).into(), (*key).into()]);
    }
    let (queue, key) = keys.last().copied().unwrap_or_default();
    (keys.len()..size).for_each(|_| params.extend([i64::MAX.into(), queue.into(), key.into()]));
    (text, params)
}

/// Up to where `prune` has looked at rows of keys and of limits, to go on from there.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    keys: Mutex<(String, String)>,
    pub(crate) limits: Mutex<String>,
}

impl Swept {
    fn get(&self) -> (String, String) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, last: (String, String)) {
        *self.keys.lock().unwrap_or_else(PoisonError::into_inner) = last;
    }
}

/// Removes rows of keys that no live job has. Looks at one page, and at more as long as a quarter of what it finds can be removed, up to `limit`
/// rows. Goes on where the last call stopped, and leaves alone what another transaction has locked.
pub(crate) async fn sweep(session: &mut Session<'_>, swept: &Swept, limit: usize) -> Result<(), Failure> {
    let mut left = limit;
    while left > 0 {
        let (queue, after) = swept.get();
        let page = PAGE.min(left);
        let sql = session.sql;
        session.begin().await?;
        let params = vec![queue.as_str().into(), after.as_str().into(), queue.as_str().into(), page.into()];
        let rows: Vec<(Stored, Stored)> = session.rows::<(Text, Text), _>(&sql.used_keys, params).await?;
        let keys: Vec<Key<'_>> = rows.iter().map(|(queue, key)| (&**queue, &**key)).collect();
        let taken = look_up(session, &keys).await?;
        let is_unused = |key: &&Key<'_>| taken.get(key).is_some_and(|taken| !taken.is_live);
        let unused: Vec<Key<'_>> = keys.iter().filter(is_unused).copied().collect();
        forget(session, &unused).await?;
        session.commit().await?;
        let is_last = keys.len() < page;
        let next = keys.last().filter(|_| !is_last).copied().unwrap_or_default();
        swept.set((next.0.to_owned(), next.1.to_owned()));
        if is_last || 4 * unused.len() < keys.len() {
            return Ok(());
        }
        left -= keys.len();
    }
    Ok(())
}

async fn forget(session: &mut Session<'_>, keys: &[Key<'_>]) -> Result<(), Failure> {
    let Some(last) = keys.last() else {
        return Ok(());
    };
    let sql = session.sql;
    let (text, size) = sql.forget_unique.of(keys.len());
    let all = keys.iter().chain(std::iter::repeat_n(last, size - keys.len()));
    let params = all.flat_map(|(queue, key)| [(*queue).into(), (*key).into()]).collect();
    session.count(text, params).await.map(drop)
}
