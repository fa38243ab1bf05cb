//! What to do while the store cannot be reached: wait longer and longer, and say so once.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
pub(crate) const LONGEST: Duration = Duration::from_secs(15);

/// Failures in a row of one sort of work. Clones count for themselves and say it once for all of them.
#[derive(Clone)]
pub(crate) struct Outage {
    work: &'static str,
    failures: u32,
    said: Arc<AtomicBool>,
}

impl Outage {
    pub(crate) fn new(work: &'static str) -> Self {
        Self { work, failures: 0, said: Arc::default() }
    }

    /// It has failed. How long to wait before the next try: longer each time, and never the same for two workers.
    pub(crate) fn failed(&mut self, error: &dyn Display) -> Duration {
        if self.said.swap(true, Ordering::Relaxed) {
            tracing::debug!(work = self.work, error = %error, tries = self.failures, "still no answer");
        } else {
            tracing::warn!(work = self.work, error = %error, "the store does not answer; trying again");
        }
        self.failures = self.failures.saturating_add(1);
        let longest = FIRST.saturating_mul(1 << (self.failures - 1).min(16)).min(LONGEST);
        longest.mul_f64(0.5 + 0.5 * fastrand::f64())
    }

    /// It has worked.
    pub(crate) fn over(&mut self) {
        if self.is_on() && self.said.swap(false, Ordering::Relaxed) {
            tracing::info!(work = self.work, tries = self.failures, "the store answers again");
        }
        self.failures = 0;
    }

    /// It is not tried any more, and that is said elsewhere. The next failure is another outage.
    pub(crate) fn give_up(&self) {
        self.said.store(false, Ordering::Relaxed);
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
