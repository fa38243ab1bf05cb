//! What to do while the store cannot be reached: wait longer and longer, and say so once.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::panics::{contain, log};

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
            log!(debug, work = self.work, error = %error, tries = self.failures, "still no answer");
        } else {
            log!(warn, work = self.work, error = %error, "the store does not answer; trying again");
        }
        self.failures = self.failures.saturating_add(1);
        pause(self.failures)
    }

    /// It has worked.
    pub(crate) fn over(&mut self) {
        if self.is_on() && self.said.swap(false, Ordering::Relaxed) {
            log!(info, work = self.work, tries = self.failures, "the store answers again");
        }
        self.failures = 0;
    }

    pub(crate) fn is_on(&self) -> bool {
        self.failures > 0
    }
}

/// How long to wait after so many failures in a row: longer each time, and never the same for two workers.
pub(crate) fn pause(failures: u32) -> Duration {
    let longest = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST);
    longest.mul_f64(0.5 + 0.5 * fastrand::f64())
}

/// An error with its causes, on one line.
pub(crate) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let text = contain(|| {
        let causes = std::iter::successors(Some(error), |error| error.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    });
    text.unwrap_or_else(|| "an error that cannot be shown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clones are the outages of several sources: the log says once that it begins and once that it is over.
    #[test]
    fn only_what_has_failed_says_that_it_is_over() {
        let mut one = Outage::new("test");
        let mut other = one.clone();
        assert!(!one.is_on());
        one.failed(&"no");
        assert!(one.is_on() && !other.is_on());
        other.over();
        assert!(one.said.load(Ordering::Relaxed), "the outage of the other goes on");
        one.over();
        assert!(!one.is_on() && !one.said.load(Ordering::Relaxed));
    }
}
