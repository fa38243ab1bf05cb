//! Queues with limits: who claims from one locks its row, and claims alone.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Datetime, Nullable, Text};
use leasehold_core::{EffectivePolicy, QueueName, Queues};
use leasehold_sql::{Bucket, Rules, Stored, StoredTime, beyond};

use crate::candidates::{BRANCHES, Candidate};
use crate::dequeue::is_fifo;
use crate::endings::as_locked;
use crate::error::Failure;
use crate::policy::{BucketRow, BucketSql, bucket};
use crate::prefixes;
use crate::row::Time;
use crate::session::Session;
use crate::sql::Repeated;
use crate::statement::Param;

/// So many rows of limits are made, or looked at, in one go.
const ROWS: usize = 512;

/// What is known of the queues with limits whose rows are locked.
#[derive(Default)]
pub(crate) struct Limited {
    buckets: HashMap<QueueName, Option<Bucket>>,
    leased: HashMap<QueueName, usize>,
    heads: HashMap<QueueName, Candidate>,
}

/// What may be leased from a queue.
pub(crate) enum Open {
    /// Nothing.
    Closed,
    /// The first by id, if it can be leased.
    Head(Option<Candidate>),
    /// So many.
    Count(usize),
}

/// Whether leases from such a queue are counted.
pub(crate) fn has_limits(policy: &EffectivePolicy) -> bool {
    policy.concurrency_limit.is_some() || policy.rate.is_some() || is_fifo(policy)
}

impl Limited {
    /// Locks those of the queues that have limits and are not locked yet.
    pub(crate) async fn add(
        &mut self,
        session: &mut Session<'_>,
        rules: &mut Rules,
        asked: &Queues,
        names: &[QueueName],
    ) -> Result<(), Failure> {
        let is_new = |name: &&QueueName| {
            let policy = rules.of(name);
            !policy.paused && has_limits(policy) && !self.buckets.contains_key(*name)
        };
        let names: Vec<QueueName> = names.iter().filter(is_new).cloned().collect();
        for some in names.chunks(BRANCHES) {
            self.lock_rows(session, rules, asked, some).await?;
            self.count(session, some).await?;
            let fifo: Vec<QueueName> = some.iter().filter(|name| is_fifo(rules.of(name))).cloned().collect();
            self.look_at_heads(session, &fifo).await?;
        }
        Ok(())
    }

    /// Rows that are not there yet are made outside of the transaction, so that nobody waits for them: those of all queues asked for, or the claim
    /// would begin anew for each few of them.
    async fn lock_rows(
        &mut self,
        session: &mut Session<'_>,
        rules: &mut Rules,
        asked: &Queues,
        names: &[QueueName],
    ) -> Result<(), Failure> {
        loop {
            session.begin().await?;
            let rows = locked(session, names).await?;
            let found: HashSet<&str> = rows.iter().map(|row| &*row.0).collect();
            if names.iter().all(|name| found.contains(name.as_str())) {
                for row in &rows {
                    if let Ok(name) = QueueName::new(&*row.0) {
                        self.buckets.insert(name, bucket(row));
                    }
                }
                return Ok(());
            }
            // What was locked before is let go, and with it what is known of it.
            session.roll_back().await?;
            create_rows(session, rules, asked, names).await?;
            if !self.buckets.is_empty() {
                return Err(Failure::Again("queues with limits were new".into()));
            }
        }
    }

    async fn count(&mut self, session: &mut Session<'_>, names: &[QueueName]) -> Result<(), Failure> {
        for (place, leased) in leased(session, names).await? {
            self.leased.insert(names[place].clone(), usize::try_from(leased.count).unwrap_or_default());
        }
        Ok(())
    }

    async fn look_at_heads(&mut self, session: &mut Session<'_>, names: &[QueueName]) -> Result<(), Failure> {
        for (place, head) in heads(session, names).await? {
            if head.waits {
                let queue = names[place].clone();
                let Head { id, priority, available_at, .. } = head;
                self.heads.insert(queue, Candidate { id, place: -priority, available_at });
            }
        }
        Ok(())
    }

    /// What may be leased from a queue now (P1 to P5).
    pub(crate) fn open(
        &mut self,
        rules: &mut Rules,
        queue: &QueueName,
        limit: usize,
        now: DateTime<Utc>,
    ) -> Open {
        let policy = rules.of(queue);
        if policy.paused {
            return Open::Closed;
        }
        let leased = self.leased.get(queue).copied().unwrap_or_default();
        let mut quota = limit;
        if let Some(most) = policy.concurrency_limit {
            quota = quota.min((most.get() as usize).saturating_sub(leased)); // P2
        }
        if let Some(rate) = policy.rate {
            let full_at = self.buckets.get(queue).copied().flatten().and_then(|bucket| bucket.full_at(rate));
            quota = quota.min(rate.tokens(full_at, now) as usize); // P3
        }
        if quota == 0 || (is_fifo(policy) && leased > 0) {
            return Open::Closed; // P4
        }
        if is_fifo(policy) {
            return Open::Head(self.heads.get(queue).filter(|head| head.available_at <= now).cloned()); // P5
        }
        Open::Count(quota)
    }

    /// Counts leases in: the rows of queues with limits are written, and a token is taken for each lease in a queue with a rate limit (P3).
    /// Corrects the buckets of others, if the clock was set back (P14).
    pub(crate) async fn count_in(
        &self,
        session: &mut Session<'_>,
        rules: &mut Rules,
        leases: &BTreeMap<QueueName, u32>,
        now: DateTime<Utc>,
    ) -> Result<(), Failure> {
        let limited: Vec<&QueueName> = leases.keys().filter(|queue| has_limits(rules.of(queue))).collect();
        for some in limited.chunks(BRANCHES) {
            raise(session, some).await?;
        }
        for (queue, bucket) in &self.buckets {
            let Some(rate) = rules.of(queue).rate else {
                continue;
            };
            let full_at = bucket.and_then(|bucket| bucket.full_at(rate));
            let full_at = match leases.get(queue) {
                Some(count) => Some(rate.take(full_at, now, *count)),
                None => rate.corrected(full_at, now),
            };
            let Some(full_at) = full_at else {
                continue;
            };
            let params =
                vec![full_at.into(), Some(rate.per_sec()).into(), rate.burst().into(), queue.as_str().into()];
            let sql = session.sql;
            session.count(&sql.set_bucket, params).await?;
        }
        Ok(())
    }
}

/// Makes the rows of all queues asked for that have limits and no row, and of `names`.
async fn create_rows(
    session: &mut Session<'_>,
    rules: &mut Rules,
    asked: &Queues,
    names: &[QueueName],
) -> Result<(), Failure> {
    let mut all: BTreeSet<QueueName> = names.iter().cloned().collect();
    match asked {
        Queues::Named(names) => all.extend(names.iter().cloned()),
        Queues::Matching(prefix) => {
            let (from, to) = (prefix.as_str(), beyond(prefix.as_str()));
            let live = prefixes::names(session, from, &to, usize::MAX).await?;
            all.extend(live.into_iter().filter_map(|name| QueueName::new(name).ok()));
        }
    }
    all.retain(|name| has_limits(rules.of(name)));
    let all: Vec<&QueueName> = all.iter().collect();
    let sql = session.sql;
    for some in all.chunks(ROWS) {
        let (text, params) = list(&sql.known_limits, some);
        let known: Vec<Stored> = session.rows::<Text, _>(text, params).await?;
        let known: HashSet<&str> = known.iter().map(|name| &**name).collect();
        let missing: Vec<&QueueName> =
            some.iter().filter(|name| !known.contains(name.as_str())).copied().collect();
        if !missing.is_empty() {
            let (text, params) = list(&sql.create_limits, &missing);
            session.count(text, params).await?;
        }
    }
    Ok(())
}

/// A statement with a list of queues, filled up with the last.
fn list<'a>(statement: &'a Repeated, names: &[&'a QueueName]) -> (&'a str, Vec<Param<'a>>) {
    let (text, size) = statement.of(names.len());
    let mut params: Vec<Param<'_>> = names.iter().map(|name| name.as_str().into()).collect();
    let last = names.last().map_or("", |name| name.as_str());
    params.resize(size, last.into());
    (text, params)
}

/// Removes the rows of limits that say nothing: the queue has no job, and its bucket is full. Looks at one page, and goes on where the last call
/// stopped. Rows that a claim has locked are left alone. Does nothing if the user of the connection may not delete them.
pub(crate) async fn sweep(session: &mut Session<'_>, swept: &Mutex<String>) -> Result<(), Failure> {
    let after = swept.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let sql = session.sql;
    let params = vec![after.as_str().into(), ROWS.into()];
    let page: Vec<(Stored, i64)> = session.rows::<(Text, BigInt), _>(&sql.idle_limits, params).await?;
    let last = page.last().filter(|_| page.len() == ROWS).map(|(name, _)| name.to_string());
    *swept.lock().unwrap_or_else(PoisonError::into_inner) = last.unwrap_or_default();
    let idle: Vec<QueueName> = page
        .iter()
        .filter(|(_, is_idle)| *is_idle != 0)
        .filter_map(|(name, _)| QueueName::new(&**name).ok())
        .collect();
    if idle.is_empty() {
        return Ok(());
    }
    session.begin().await?;
    let idle: Vec<&QueueName> = idle.iter().collect();
    let (text, params) = list(&sql.lock_limits, &idle);
    let locked: Vec<Stored> = session.rows::<Text, _>(text, params).await?;
    let locked: Vec<QueueName> = locked.iter().filter_map(|name| QueueName::new(&**name).ok()).collect();
    let locked: Vec<&QueueName> = locked.iter().collect();
    if !locked.is_empty() {
        let (text, params) = list(&sql.forget_limits, &locked);
        session.count_if_allowed(text, params).await?;
    }
    session.commit().await
}

/// Writes the rows, which are locked.
async fn raise(session: &mut Session<'_>, names: &[&QueueName]) -> Result<(), Failure> {
    let sql = session.sql;
    let (text, size) = sql.raise_limits.of(names.len());
    let mut params: Vec<Param<'_>> = names.iter().map(|name| name.as_str().into()).collect();
    params.resize(size, "".into());
    as_locked(session.count(text, params).await?, names.len())
}

async fn locked(session: &mut Session<'_>, names: &[QueueName]) -> Result<Vec<BucketRow>, Failure> {
    let sql = session.sql;
    let (text, size) = sql.limits.of(names.len());
    let mut params: Vec<Param<'_>> = names.iter().map(|name| name.as_str().into()).collect();
    params.resize(size, "".into());
    session.rows::<BucketSql, _>(text, params).await
}

/// The leases of a queue.
pub(crate) struct Leased {
    pub(crate) count: i64,
    pub(crate) first_until: Option<DateTime<Utc>>,
    pub(crate) first_id: Option<i64>,
}

/// The leases of each queue.
pub(crate) async fn leased(
    session: &mut Session<'_>,
    names: &[QueueName],
) -> Result<Vec<(usize, Leased)>, Failure> {
    type Row = (BigInt, BigInt, Nullable<Datetime>, Nullable<BigInt>);
    let sql = session.sql;
    let (text, params) = each(&sql.leased, names);
    let rows: Vec<(i64, i64, Option<Time>, Option<i64>)> = session.rows::<Row, _>(text, params).await?;
    let leased = |(place, count, until, first_id): (i64, i64, Option<Time>, Option<i64>)| {
        let leased = Leased { count, first_until: until.and_then(Time::get), first_id };
        Some((usize::try_from(place).ok().filter(|place| *place < names.len())?, leased))
    };
    Ok(rows.into_iter().filter_map(leased).collect())
}

/// The live job of a queue with the smallest id.
pub(crate) struct Head {
    pub(crate) id: i64,
    pub(crate) priority: i64,
    pub(crate) available_at: DateTime<Utc>,
    /// Whether it has no lease and attempts left.
    pub(crate) waits: bool,
}

/// The first job of each queue by id.
pub(crate) async fn heads(
    session: &mut Session<'_>,
    names: &[QueueName],
) -> Result<Vec<(usize, Head)>, Failure> {
    type Row = (BigInt, BigInt, BigInt, Datetime, BigInt);
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let sql = session.sql;
    let (text, params) = each(&sql.head, names);
    let rows: Vec<(i64, i64, i64, Time, i64)> = session.rows::<Row, _>(text, params).await?;
    let head = |(place, id, priority, available_at, waits): (i64, i64, i64, Time, i64)| {
        let head = Head { id, priority, available_at: available_at.or_epoch(), waits: waits != 0 };
        Some((usize::try_from(place).ok().filter(|place| *place < names.len())?, head))
    };
    Ok(rows.into_iter().filter_map(head).collect())
}

/// A statement that is repeated for each queue: its place among them, and its name.
pub(crate) fn each<'a>(statement: &'a Repeated, names: &'a [QueueName]) -> (&'a str, Vec<Param<'a>>) {
    let (text, size) = statement.of(names.len());
    let mut params: Vec<Param<'_>> = Vec::with_capacity(2 * size);
    for (place, name) in names.iter().enumerate() {
        params.extend([place.into(), name.as_str().into()]);
    }
    (names.len()..size).for_each(|_| params.extend([i64::MAX.into(), "".into()]));
    (text, params)
}
