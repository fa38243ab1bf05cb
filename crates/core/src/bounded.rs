//! Numbers and durations that have been checked once and are within their limits from then on.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::limits;

/// How many rows a call may touch or return: 1 to 10 000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchSize(u32);

impl BatchSize {
    /// One.
    pub const ONE: Self = Self(1);
    /// As many as a call may have.
    pub const MAX: Self = Self(limits::BATCH);

    /// Checks `size`.
    ///
    /// # Errors
    /// [`Invalid`] with the field `limit`.
    pub fn new(size: u32) -> Result<Self, Invalid> {
        within("limit", size, 1, limits::BATCH).map(Self)
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }

    /// The number, for comparing with lengths.
    pub fn as_usize(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for BatchSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<BatchSize> for u32 {
    fn from(size: BatchSize) -> Self {
        size.0
    }
}

impl TryFrom<u32> for BatchSize {
    type Error = Invalid;
    fn try_from(size: u32) -> Result<Self, Invalid> {
        Self::new(size)
    }
}

/// How often a job may be leased before it is a dead letter: 1 to 1000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct MaxAttempts(u32);

impl MaxAttempts {
    /// What a job has if neither it nor its queue's policy says anything: 5.
    pub const DEFAULT: Self = Self(limits::DEFAULT_MAX_ATTEMPTS);

    /// Checks `attempts`.
    ///
    /// # Errors
    /// [`Invalid`] with the field `max_attempts`.
    pub fn new(attempts: u32) -> Result<Self, Invalid> {
        within("max_attempts", attempts, 1, limits::MAX_ATTEMPTS).map(Self)
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for MaxAttempts {
    type Error = Invalid;
    fn try_from(attempts: u32) -> Result<Self, Invalid> {
        Self::new(attempts)
    }
}

impl From<MaxAttempts> for u32 {
    fn from(attempts: MaxAttempts) -> Self {
        attempts.0
    }
}

impl fmt::Display for MaxAttempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! bounded_duration {
    ($(#[$doc:meta])* $name:ident, $field:literal, $min:expr, $max:expr) => {
        $(#[$doc])*
        ///
        /// Kept in whole microseconds, as the stores keep time; what is finer is cut off.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "Duration", into = "Duration")]
        pub struct $name(Duration);

        impl $name {
            /// Checks `length`.
            ///
            /// # Errors
            #[doc = concat!("[`Invalid`] with the field `", $field, "`.")]
            pub fn new(length: Duration) -> Result<Self, Invalid> {
                duration($field, length, $min, $max).map(Self)
            }

            /// The length.
            pub fn get(self) -> Duration {
                self.0
            }
        }

        impl TryFrom<Duration> for $name {
            type Error = Invalid;
            fn try_from(length: Duration) -> Result<Self, Invalid> {
                Self::new(length)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl From<$name> for Duration {
            fn from(length: $name) -> Self {
                length.0
            }
        }
    };
}

bounded_duration!(
    /// How long a lease lasts: 1 ms to 24 h.
    LeaseFor, "lease_for", limits::LEASE_MIN, limits::LEASE_MAX
);
bounded_duration!(
    /// How long to wait: nothing to a hundred years.
    Delay, "delay", Duration::ZERO, limits::DELAY_MAX
);

impl Delay {
    /// No wait at all.
    pub const ZERO: Self = Self(Duration::ZERO);
    /// How long an idempotency key is kept at least, unless it says otherwise.
    pub(crate) const KEY_RETENTION: Self = Self(limits::KEY_RETENTION);
}

pub(crate) fn within<T>(field: &'static str, value: T, min: T, max: T) -> Result<T, Invalid>
where
    T: PartialOrd + fmt::Display,
{
    if min <= value && value <= max { Ok(value) } else { Err(Invalid::out_of_range(field, value, min, max)) }
}

pub(crate) fn duration(
    field: &'static str,
    length: Duration,
    min: Duration,
    max: Duration,
) -> Result<Duration, Invalid> {
    if length < min || length > max {
        let [value, min, max] = [length, min, max].map(|duration| format!("{duration:?}"));
        return Err(Invalid::out_of_range(field, value, min, max));
    }
    Ok(Duration::new(length.as_secs(), length.subsec_micros() * 1000))
}
