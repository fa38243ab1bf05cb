//! What to do while the store cannot be reached: wait longer and longer, and say so once.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(15);

/// Failures in a row of one sort of work.
pub(crate) struct Outage {
    work: &'static str,
    failures: u32,
    /// Whether it was said that the store does not answer, by this one or another that shares it.
    said: Arc<AtomicBool>,
}

impl Outage {
    pub(crate) fn new(work: &'static str) -> Self {
        Self::sharing(work, &Arc::default())
    }

    /// One of several that do the same work at once: of them all, one says so.
    pub(crate) fn sharing(work: &'static str, said: &Arc<AtomicBool>) -> Self {
        Self { work, failures: 0, said: Arc::clone(said) }
    }

    /// It has failed. How long to wait before the next try: longer each time, and never the same for two workers.
    pub(crate) fn failed(&mut self, error: &dyn Display) -> Duration {
        if self.failures == 0 && !self.said.swap(true, Ordering::Relaxed) {
            tracing::warn!(work = self.work, error = %error, "the store does not answer; trying again");
        } else {
            tracing::debug!(work = self.work, error = %error, tries = self.failures, "still no answer");
        }
        self.failures = self.failures.saturating_add(1);
        let longest = FIRST.saturating_mul(1 << (self.failures - 1).min(16)).min(LONGEST);
        longest.mul_f64(0.5 + 0.5 * fastrand::f64())
    }

    /// It has worked. Whether it had not before.
    pub(crate) fn over(&mut self) -> bool {
        let was = self.failures > 0;
        if was && self.said.swap(false, Ordering::Relaxed) {
            tracing::info!(work = self.work, tries = self.failures, "the store answers again");
        }
        self.failures = 0;
        was
    }

    pub(crate) fn is_on(&self) -> bool {
        self.failures > 0
    }
}

/// An error with its causes, on one line.
pub(crate) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
