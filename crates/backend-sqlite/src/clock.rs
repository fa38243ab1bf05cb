//! Where the store's time comes from.

use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use leasehold_core::time;

/// The clock of this computer, or one that was given to the builder.
#[derive(Clone, Default)]
pub(crate) struct Clock(Option<Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>>);

impl Clock {
    pub(crate) fn new(now: impl Fn() -> DateTime<Utc> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(now)))
    }

    /// The time, in whole microseconds (C4).
    pub(crate) fn now(&self) -> DateTime<Utc> {
        time::whole_micros(self.0.as_ref().map_or_else(Utc::now, |now| now()))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a clock of its own" } else { "the clock of the computer" })
    }
}
