//! What a queue's operator may say about it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::bounded::{self, Delay, LeaseFor, MaxAttempts};
use crate::invalid::Invalid;
use crate::limits;
use crate::name::QueueName;
use crate::queues::QueuePattern;
use crate::time;

/// The policy of one queue, or of every queue that begins with a prefix. What is `None` is left to the next less
/// specific policy, and in the end to the default.
///
/// A policy for a prefix is a template: each matching queue has its *own* limit, not a share of a common one.
///
/// ```
/// use leasehold_core::{QueueOrder, QueuePolicy};
///
/// let rooms = QueuePolicy { order: Some(QueueOrder::Fifo), ..QueuePolicy::default() };
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueuePolicy {
    /// Whether nothing may be leased.
    pub paused: Option<bool>,
    /// How many leases the queue may have at once, over all workers. A lease that has passed counts until it is
    /// reclaimed.
    pub concurrency_limit: Option<ConcurrencyLimit>,
    /// How fast leases may be granted, over all workers.
    pub rate: Option<RateLimit>,
    /// No lease or heartbeat reaches further than this from now.
    pub max_lease: Option<LeaseFor>,
    /// How long a retry waits.
    pub backoff: Option<Backoff>,
    /// Attempts of jobs that do not say.
    pub max_attempts: Option<MaxAttempts>,
    /// In which order jobs are leased.
    pub order: Option<QueueOrder>,
    /// How long finished jobs are kept, for [`PruneAge::Retention`](crate::PruneAge::Retention).
    pub retention: Option<Delay>,
    /// Which finished jobs are kept.
    pub archive: Option<Archive>,
    /// What becomes of a job with attempts left whose lease has passed.
    pub on_expiry: Option<OnExpiry>,
}

impl QueuePolicy {
    /// Whether it says nothing at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// This policy, with what it does not say taken from `wider`.
    #[must_use]
    pub fn or(&self, wider: &Self) -> Self {
        Self {
            paused: self.paused.or(wider.paused),
            concurrency_limit: self.concurrency_limit.or(wider.concurrency_limit),
            rate: self.rate.or(wider.rate),
            max_lease: self.max_lease.or(wider.max_lease),
            backoff: self.backoff.or(wider.backoff),
            max_attempts: self.max_attempts.or(wider.max_attempts),
            order: self.order.or(wider.order),
            retention: self.retention.or(wider.retention),
            archive: self.archive.or(wider.archive),
            on_expiry: self.on_expiry.or(wider.on_expiry),
        }
    }
}

/// How many leases a queue may have at once: 1 to 1 000 000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct ConcurrencyLimit(u32);

impl ConcurrencyLimit {
    /// Checks `limit`.
    ///
    /// # Errors
    /// [`Invalid`] with the field `concurrency_limit`.
    pub fn new(limit: u32) -> Result<Self, Invalid> {
        bounded::within("concurrency_limit", limit, 1, limits::LIMIT_MAX).map(Self)
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for ConcurrencyLimit {
    type Error = Invalid;
    fn try_from(limit: u32) -> Result<Self, Invalid> {
        Self::new(limit)
    }
}

impl From<ConcurrencyLimit> for u32 {
    fn from(limit: ConcurrencyLimit) -> Self {
        limit.0
    }
}

/// By so much a bucket may lie further ahead than it can need, before its time is taken to be from another clock.
const CLOCK_SLACK: Duration = Duration::from_secs(1);

/// A token bucket: `burst` tokens when full, `per_sec` new ones each second; a lease takes one.
///
/// The whole state of a bucket is one time, `full_at`: when it will be full again if nothing is taken. A time in the
/// past, or none, is a full bucket. That makes it one column, or one key, for any backend. A time that lies further ahead than
/// an empty bucket needs comes from before the clock was set back: see [`corrected`](Self::corrected).
///
/// ```
/// use leasehold_core::RateLimit;
/// use std::time::Duration;
/// # let now: chrono::DateTime<chrono::Utc> = "2026-11-16T12:00:00Z".parse().unwrap();
/// let rate = RateLimit::new(10.0, 5)?;
/// assert_eq!(rate.tokens(None, now), 5);
/// let full_at = rate.take(None, now, 5);
/// assert_eq!(rate.tokens(Some(full_at), now), 0);
/// assert_eq!(rate.tokens(Some(full_at), now + Duration::from_millis(200)), 2);
/// # Ok::<(), leasehold_core::Invalid>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedRate")]
pub struct RateLimit {
    per_sec: f64,
    burst: u32,
}

impl RateLimit {
    /// A bucket of `burst` tokens that gains `per_sec` tokens a second.
    ///
    /// # Errors
    /// [`Invalid`] with the field `rate_per_sec` (0.001 to 10 000) or `rate_burst` (1 to 1 000 000).
    pub fn new(per_sec: f64, burst: u32) -> Result<Self, Invalid> {
        let per_sec = bounded::within("rate_per_sec", per_sec, 0.001, limits::RATE_MAX)?;
        let burst = bounded::within("rate_burst", burst, 1, limits::LIMIT_MAX)?;
        Ok(Self { per_sec, burst })
    }

    /// Tokens gained in a second.
    pub fn per_sec(&self) -> f64 {
        self.per_sec
    }

    /// Tokens of a full bucket.
    pub fn burst(&self) -> u32 {
        self.burst
    }

    /// How many leases may be granted now.
    pub fn tokens(&self, full_at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> u32 {
        let full_at = self.clamped(full_at, now);
        let missing = full_at.map_or(0.0, |full_at| time::between(now, full_at).as_secs_f64() * self.per_sec);
        // `full_at` is rounded to a microsecond: forgive what two of them would bring.
        let tokens = f64::from(self.burst) - missing + self.per_sec * 2e-6;
        (tokens.max(0.0) as u32).min(self.burst)
    }

    /// The bucket's `full_at` after `taken` leases were granted now.
    pub fn take(&self, full_at: Option<DateTime<Utc>>, now: DateTime<Utc>, taken: u32) -> DateTime<Utc> {
        let start = self.clamped(full_at, now).map_or(now, |full_at| full_at.max(now));
        time::later(start, self.time_for(f64::from(taken)))
    }

    /// When the next lease may be granted; `now` if one may be granted now.
    pub fn next_token_at(&self, full_at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> DateTime<Utc> {
        match self.clamped(full_at, now) {
            Some(full_at) if self.tokens(Some(full_at), now) == 0 => {
                time::earlier(full_at, self.time_for(f64::from(self.burst - 1))).max(now)
            }
            _ => now,
        }
    }

    /// What to store in place of a `full_at` that lies further ahead than an empty bucket needs, by more than a second: the
    /// store's clock was set back since (**[P14](crate::contract::P14)**). `None` if `full_at` is right.
    ///
    /// A claim that finds such a time must store this, also if it leases nothing. Otherwise the bucket would look empty at
    /// every claim until the clock is where it was. Less than a second is left alone: claims at the same moment may have
    /// read the clock in another order than they reached the bucket.
    pub fn corrected(&self, full_at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let empty = self.full_after_empty(now);
        full_at.filter(|full_at| *full_at > time::later(empty, CLOCK_SLACK)).map(|_| empty)
    }

    /// `full_at`, but no later than of a bucket that is empty now.
    fn clamped(&self, full_at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        full_at.map(|full_at| full_at.min(self.full_after_empty(now)))
    }

    fn full_after_empty(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        time::later(now, self.time_for(f64::from(self.burst)))
    }

    fn time_for(&self, tokens: f64) -> Duration {
        Duration::from_micros((tokens / self.per_sec * 1e6).round() as u64)
    }
}

#[derive(Deserialize)]
struct UncheckedRate {
    per_sec: f64,
    burst: u32,
}

impl TryFrom<UncheckedRate> for RateLimit {
    type Error = Invalid;
    fn try_from(unchecked: UncheckedRate) -> Result<Self, Invalid> {
        Self::new(unchecked.per_sec, unchecked.burst)
    }
}

/// In which order the jobs of a queue are leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueOrder {
    /// By priority, then by `available_at`, then by id; any number at once.
    #[default]
    Priority,
    /// One at a time, by id, whatever the priorities, over all workers. Ids rise in the order of enqueueing.
    ///
    /// Only committed jobs count. A job gets its id when it is enqueued in a transaction, not when the transaction commits: until then the queue does
    /// not wait for it, and jobs with larger ids are leased.
    Fifo,
}

/// Which finished jobs are kept in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Archive {
    /// All of them.
    #[default]
    All,
    /// Dead letters. What was completed or discarded is gone, so that [`Store::receipts`](crate::Store::receipts) cannot
    /// tell a completed job from a lost lease: both are `Gone`.
    DeadOnly,
}

impl Archive {
    /// Whether a job that ended so is kept.
    pub fn keeps(self, status: crate::FinalStatus) -> bool {
        self == Self::All || status == crate::FinalStatus::DeadLetter
    }
}

/// What becomes of a job with attempts left whose lease has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExpiry {
    /// It is Ready at once.
    #[default]
    RetryNow,
    /// It waits as the queue's backoff says.
    Backoff,
}

/// The names by which a backend may keep these in a column.
macro_rules! named {
    ($type:ident, $field:literal, $expected:literal: $($variant:ident $name:literal),+) => {
        impl $type {
            /// The name, as a column would keep it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $type {
            type Err = Invalid;
            fn from_str(text: &str) -> Result<Self, Invalid> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    _ => Err(Invalid::new($field, crate::Problem::Malformed { expected: $expected })),
                }
            }
        }
    };
}

named!(QueueOrder, "order", "priority or fifo": Priority "priority", Fifo "fifo");
named!(Archive, "archive", "all or dead_only": All "all", DeadOnly "dead_only");
named!(OnExpiry, "on_expiry", "retry_now or backoff": RetryNow "retry_now", Backoff "backoff");

/// A policy with every question answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EffectivePolicy {
    /// Whether nothing may be leased.
    pub paused: bool,
    /// How many leases at once, if limited.
    pub concurrency_limit: Option<ConcurrencyLimit>,
    /// How fast, if limited.
    pub rate: Option<RateLimit>,
    /// How far a lease may reach, if limited.
    pub max_lease: Option<LeaseFor>,
    /// How long a retry waits.
    pub backoff: Backoff,
    /// Attempts of jobs that do not say.
    pub max_attempts: MaxAttempts,
    /// In which order.
    pub order: QueueOrder,
    /// How long finished jobs are kept, if limited.
    pub retention: Option<Delay>,
    /// Which finished jobs are kept.
    pub archive: Archive,
    /// What becomes of a job whose lease has passed.
    pub on_expiry: OnExpiry,
}

impl EffectivePolicy {
    /// The length of a lease for which `asked` was asked.
    pub fn lease_for(&self, asked: LeaseFor) -> LeaseFor {
        self.max_lease.map_or(asked, |max| asked.min(max))
    }
}

impl From<QueuePolicy> for EffectivePolicy {
    fn from(policy: QueuePolicy) -> Self {
        Self {
            paused: policy.paused.unwrap_or_default(),
            concurrency_limit: policy.concurrency_limit,
            rate: policy.rate,
            max_lease: policy.max_lease,
            backoff: policy.backoff.unwrap_or_default(),
            max_attempts: policy.max_attempts.unwrap_or(MaxAttempts::DEFAULT),
            order: policy.order.unwrap_or_default(),
            retention: policy.retention,
            archive: policy.archive.unwrap_or_default(),
            on_expiry: policy.on_expiry.unwrap_or_default(),
        }
    }
}

impl Default for EffectivePolicy {
    fn default() -> Self {
        QueuePolicy::default().into()
    }
}

/// All the policies of a store, and the rule by which they make one for a queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Policies(Vec<(QueuePattern, QueuePolicy)>);

impl Policies {
    /// These policies. Of two for one pattern the later counts; an empty one counts as none.
    pub fn new(policies: impl IntoIterator<Item = (QueuePattern, QueuePolicy)>) -> Self {
        let by_pattern: BTreeMap<_, _> = policies.into_iter().collect();
        Self(by_pattern.into_iter().filter(|(_, policy)| !policy.is_empty()).collect())
    }

    /// Replaces the policy of `pattern`; an empty one removes it.
    pub fn set(&mut self, pattern: QueuePattern, policy: QueuePolicy) {
        match self.0.binary_search_by(|(other, _)| other.cmp(&pattern)) {
            Ok(place) if policy.is_empty() => drop(self.0.remove(place)),
            Ok(place) => self.0[place].1 = policy,
            Err(_) if policy.is_empty() => {}
            Err(place) => self.0.insert(place, (pattern, policy)),
        }
    }

    /// What was set for exactly this pattern; the empty policy if nothing was.
    pub fn set_for(&self, pattern: &QueuePattern) -> QueuePolicy {
        let place = self.0.binary_search_by(|(other, _)| other.cmp(pattern));
        place.map(|place| self.0[place].1.clone()).unwrap_or_default()
    }

    /// What holds for `queue`: its own policy, then the prefixes from the longest to the shortest, field by field.
    pub fn effective(&self, queue: &QueueName) -> EffectivePolicy {
        let mut matching: Vec<_> = self.0.iter().filter(|(pattern, _)| pattern.matches(queue)).collect();
        matching.sort_by_key(|(pattern, _)| match pattern {
            QueuePattern::Exact(_) => Reverse(usize::MAX),
            QueuePattern::Prefix(prefix) => Reverse(prefix.as_str().len()),
        });
        matching.iter().fold(QueuePolicy::default(), |sum, (_, policy)| sum.or(policy)).into()
    }

    /// Each pattern with its policy, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &(QueuePattern, QueuePolicy)> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
