//! Time as the stores keep it: UTC, whole microseconds, up to the year 9999.

use std::time::Duration;

use chrono::{DateTime, Datelike, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::bounded::Delay;
use crate::invalid::Invalid;
use crate::limits;

/// `time` without what is finer than a microsecond.
///
/// ```
/// # use leasehold_core::time::whole_micros;
/// let time = "2026-11-16T12:00:00.123456789Z".parse().unwrap();
/// assert_eq!(whole_micros(time).to_string(), "2026-11-16 12:00:00.123456 UTC");
/// ```
pub fn whole_micros(time: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(time.timestamp_micros()).unwrap_or(time)
}

/// `time + by`, or the last instant of the year 9999 if that is earlier.
pub fn later(time: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    let sum = TimeDelta::from_std(by).ok().and_then(|by| time.checked_add_signed(by));
    sum.unwrap_or(last_instant()).min(last_instant())
}

/// `time - by`, or the beginning of 1970 if that is later: every database can keep that.
pub fn earlier(time: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    let difference = TimeDelta::from_std(by).ok().and_then(|by| time.checked_sub_signed(by));
    difference.unwrap_or(DateTime::UNIX_EPOCH).max(DateTime::UNIX_EPOCH)
}

/// How long it is from `start` to `end`; nothing if `end` is not later.
pub fn between(start: DateTime<Utc>, end: DateTime<Utc>) -> Duration {
    (end - start).to_std().unwrap_or_default()
}

/// When a job is to become available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// At once.
    #[default]
    Now,
    /// So long after the store's now.
    After(Delay),
    /// At this time by the store's clock. A time in the past means now.
    At(ScheduledTime),
}

impl Schedule {
    /// So long from now.
    ///
    /// # Errors
    /// [`Invalid`] with the field `delay`.
    pub fn after(delay: Duration) -> Result<Self, Invalid> {
        Delay::new(delay).map(Self::After)
    }

    /// At `time`.
    ///
    /// # Errors
    /// [`Invalid`] with the field `at` for a time after the year 9999.
    pub fn at(time: DateTime<Utc>) -> Result<Self, Invalid> {
        ScheduledTime::new(time).map(Self::At)
    }

    /// The value for `available_at`, given the store's `now`. Never earlier than `now`.
    pub fn available_at(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        match self {
            Self::Now => now,
            Self::After(delay) => later(now, delay.get()),
            Self::At(time) => time.get().max(now),
        }
    }
}

/// A time of the years 1970 to 9999, in whole microseconds. What is earlier counts as 1970: it means now anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "DateTime<Utc>", into = "DateTime<Utc>")]
pub struct ScheduledTime(DateTime<Utc>);

impl ScheduledTime {
    /// Checks `time`.
    ///
    /// # Errors
    /// [`Invalid`] with the field `at`.
    pub fn new(time: DateTime<Utc>) -> Result<Self, Invalid> {
        if time.year() > limits::YEAR_MAX {
            return Err(Invalid::out_of_range("at", time, "any time in the past", last_instant()));
        }
        Ok(Self(whole_micros(time).max(DateTime::UNIX_EPOCH)))
    }

    /// The time.
    pub fn get(self) -> DateTime<Utc> {
        self.0
    }
}

impl TryFrom<DateTime<Utc>> for ScheduledTime {
    type Error = Invalid;
    fn try_from(time: DateTime<Utc>) -> Result<Self, Invalid> {
        Self::new(time)
    }
}

impl From<ScheduledTime> for DateTime<Utc> {
    fn from(time: ScheduledTime) -> Self {
        time.0
    }
}

fn last_instant() -> DateTime<Utc> {
    const LAST_MICROSECOND_OF_9999: i64 = 253_402_300_799_999_999;
    DateTime::from_timestamp_micros(LAST_MICROSECOND_OF_9999).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
