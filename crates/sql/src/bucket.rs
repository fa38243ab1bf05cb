//! The token bucket of a queue, as tables keep it.

use chrono::{DateTime, Utc};
use leasehold_core::RateLimit;

/// When a queue's bucket is full again, and for which rate that was worked out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    /// When it is full again.
    pub full_at: DateTime<Utc>,
    /// Tokens a second.
    pub rate_per_sec: f64,
    /// Most tokens.
    pub rate_burst: i64,
}

impl Bucket {
    /// When it is full again; nothing if it was for another rate, since a changed rate starts with a full bucket.
    pub fn full_at(&self, rate: RateLimit) -> Option<DateTime<Utc>> {
        self.is_of(rate).then_some(self.full_at)
    }

    /// Whether it is for this rate.
    pub fn is_of(&self, rate: RateLimit) -> bool {
        self.rate_per_sec == rate.per_sec() && self.rate_burst == i64::from(rate.burst())
    }
}
