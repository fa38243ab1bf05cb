//! Policies as tables keep them.

use std::ops::Deref;
use std::time::Duration;

use diesel::prelude::Queryable;
use leasehold_core::{
    Backoff, ConcurrencyLimit, Delay, Invalid, LeaseFor, MaxAttempts, QueuePattern, QueuePolicy, RateLimit,
    Result, StoreError,
};

/// Yes or no, out of a table.
pub trait Flag: Copy {
    /// Which of the two.
    fn is_set(self) -> bool;
}

impl Flag for bool {
    fn is_set(self) -> bool {
        self
    }
}

/// For databases that have numbers for it.
impl Flag for i64 {
    fn is_set(self) -> bool {
        self != 0
    }
}

/// A row of `job_queue_config`. A text is an `S`, a small number an `N` and a yes or no a `B`.
#[derive(Debug, Queryable)]
pub struct PolicyRow<S, N, B> {
    pattern: S,
    paused: Option<B>,
    concurrency_limit: Option<N>,
    rate_per_sec: Option<f64>,
    rate_burst: Option<N>,
    max_lease_us: Option<i64>,
    backoff_base_us: Option<i64>,
    backoff_jitter: Option<f64>,
    backoff_min_us: Option<i64>,
    backoff_max_us: Option<i64>,
    max_attempts: Option<N>,
    queue_order: Option<S>,
    retention_us: Option<i64>,
    archive: Option<S>,
    on_expiry: Option<S>,
}

impl<S, N, B> PolicyRow<S, N, B>
where
    S: Deref<Target = str>,
    N: Into<i64> + Copy,
    B: Flag,
{
    /// The policy that it means, and for which queues.
    ///
    /// # Errors
    /// [`Corrupt`](StoreError::Corrupt), naming the pattern.
    pub fn decode(self) -> Result<(QueuePattern, QueuePolicy)> {
        let name = self.pattern.to_owned();
        self.checked().map_err(|invalid| StoreError::corrupt(format!("policy of {name:?}: {invalid}")))
    }

    fn checked(self) -> Result<(QueuePattern, QueuePolicy), Invalid> {
        let policy = QueuePolicy {
            paused: self.paused.map(Flag::is_set),
            concurrency_limit: self.concurrency_limit.map(unsigned).map(ConcurrencyLimit::new).transpose()?,
            rate: self.rate()?,
            max_lease: self.max_lease_us.map(length).map(LeaseFor::new).transpose()?,
            backoff: self.backoff()?,
            max_attempts: self.max_attempts.map(unsigned).map(MaxAttempts::new).transpose()?,
            order: self.queue_order.as_deref().map(str::parse).transpose()?,
            retention: self.retention_us.map(length).map(Delay::new).transpose()?,
            archive: self.archive.as_deref().map(str::parse).transpose()?,
            on_expiry: self.on_expiry.as_deref().map(str::parse).transpose()?,
        };
        Ok((self.pattern.parse()?, policy))
    }

    fn rate(&self) -> Result<Option<RateLimit>, Invalid> {
        let parts = self.rate_per_sec.zip(self.rate_burst);
        parts.map(|(per_sec, burst)| RateLimit::new(per_sec, unsigned(burst))).transpose()
    }

    fn backoff(&self) -> Result<Option<Backoff>, Invalid> {
        let parts = self.backoff_base_us.zip(self.backoff_jitter);
        let parts = parts.zip(self.backoff_min_us.zip(self.backoff_max_us));
        let backoff =
            |((base, jitter), (min, max))| Backoff::new(length(base), jitter, length(min), length(max));
        parts.map(backoff).transpose()
    }
}

/// What is negative is made zero, which every limit refuses.
fn unsigned(number: impl Into<i64>) -> u32 {
    u32::try_from(number.into()).unwrap_or_default()
}

fn length(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

/// A length of time as the tables keep it. The limits of leasehold-core keep it within an i64.
pub fn micros(length: impl Into<Duration>) -> i64 {
    i64::try_from(length.into().as_micros()).unwrap_or(i64::MAX)
}
