//! The parts of a worker that must not die, and the error if one does.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;

use crate::dispatch::{Stop, Stopped};
use crate::panics::{log, message};

/// A part of the worker has died, and the worker has ended with it. That is a defect of the worker, or its runtime was
/// dropped. Jobs that were running come back when their leases have passed, if they could not be given back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the worker has died: {part}: {reason}")]
#[non_exhaustive]
pub struct WorkerDied {
    /// Which part: `dispatcher`, `heartbeats` or `runtime`.
    pub part: &'static str,
    /// Why.
    pub reason: String,
}

impl WorkerDied {
    pub(crate) fn new(part: &'static str, reason: impl Into<String>) -> Self {
        Self { part, reason: reason.into() }
    }
}

/// Whether a part has died, and which was the first.
#[derive(Clone, Default)]
pub(crate) struct Watch(Arc<OnceLock<WorkerDied>>);

impl Watch {
    /// Runs a part. `None` if it panicked: that is remembered, and the worker is told to stop.
    pub(crate) async fn over<T>(
        &self,
        part: &'static str,
        stop: &Stop,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        match AssertUnwindSafe(work).catch_unwind().await {
            Ok(value) => Some(value),
            Err(panic) => {
                let reason = message(panic);
                log!(error, part, reason, "a part of the worker has died; the worker ends");
                // The first death is the cause.
                let _ = self.0.set(WorkerDied::new(part, reason));
                stop.claiming.cancel();
                stop.waiting.cancel();
                None
            }
        }
    }

    /// What the worker ends with.
    pub(crate) fn verdict(&self, stopped: Option<Stopped>) -> Result<Stopped, WorkerDied> {
        match self.0.get() {
            Some(died) => Err(died.clone()),
            None => stopped.ok_or_else(|| WorkerDied::new("dispatcher", "no reason")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_that_dies_stops_the_worker_which_ends_with_an_error() {
        let (watch, stop) = (Watch::default(), Stop::default());
        let fine = watch.over("dispatcher", &stop, async { Stopped::default() }).await;
        assert_eq!(watch.verdict(fine), Ok(Stopped::default()));
        assert!(!stop.claiming.is_cancelled());
        let died = watch.over("heartbeats", &stop, async { panic!("no pulse") }).await;
        assert_eq!(died, None::<()>);
        assert!(stop.claiming.is_cancelled() && stop.waiting.is_cancelled());
        let error = watch.verdict(fine).unwrap_err();
        assert_eq!(error.to_string(), "the worker has died: heartbeats: no pulse");
        let later = watch.over("dispatcher", &stop, async { panic!("too") }).await;
        assert_eq!(watch.verdict(later), Err(error), "the first death is told");
    }
}
