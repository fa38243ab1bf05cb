//! The state of a job, derived: there is no status column.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::bounded::MaxAttempts;
use crate::invalid::{Invalid, Problem};

/// The columns from which the state of a job follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// When the lease ends, if there is one.
    pub lease_until: Option<DateTime<Utc>>,
    /// Attempts spent.
    pub attempts: u32,
    /// Attempts allowed.
    pub max_attempts: MaxAttempts,
    /// Not to be leased before.
    pub available_at: DateTime<Utc>,
}

impl Facts {
    /// The state at the store's time `now`. Total; every backend's SQL asks the same questions in the same order.
    ///
    /// ```
    /// use leasehold_core::{Facts, JobState, MaxAttempts};
    /// # let now = "2026-11-16T12:00:00Z".parse().unwrap();
    /// let max_attempts = MaxAttempts::new(3)?;
    /// let facts = Facts { lease_until: None, attempts: 1, max_attempts, available_at: now };
    /// assert_eq!(facts.state(now), JobState::Ready);
    /// # Ok::<(), leasehold_core::Invalid>(())
    /// ```
    pub fn state(&self, now: DateTime<Utc>) -> JobState {
        match self.lease_until {
            Some(until) if until > now => JobState::Running,
            Some(_) => JobState::Expired,
            None if self.attempts >= self.max_attempts.get() => JobState::Exhausted,
            None if self.available_at <= now => JobState::Ready,
            None if self.attempts == 0 => JobState::Scheduled,
            None => JobState::Retrying,
        }
    }
}

/// The derived state of a job in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Leased, and the lease is live: `lease_until > now`.
    Running,
    /// Leased, but the lease has passed: the holder is presumed dead and the next reclaim decides.
    Expired,
    /// Not leased, no attempt left: the next reclaim makes it a dead letter.
    Exhausted,
    /// Not leased, never tried, its time has not come.
    Scheduled,
    /// Not leased, tried before, its time has not come.
    Retrying,
    /// Not leased, its time has come: can be leased.
    Ready,
}

impl JobState {
    /// All of them, in the order in which they are derived.
    pub const ALL: [Self; 6] =
        [Self::Running, Self::Expired, Self::Exhausted, Self::Scheduled, Self::Retrying, Self::Ready];

    /// The name, as in metrics and on command lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Expired => "expired",
            Self::Exhausted => "exhausted",
            Self::Scheduled => "scheduled",
            Self::Retrying => "retrying",
            Self::Ready => "ready",
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for JobState {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let expected = "running, expired, exhausted, scheduled, retrying or ready";
        let state = Self::ALL.into_iter().find(|state| state.as_str() == text);
        state.ok_or(Invalid::new("state", Problem::Malformed { expected }))
    }
}
