//! Where the reads of a store wait while its writer cuts the log back.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Counts the reads that are under way, and holds new ones back for a while.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Default)]
struct State {
    reading: usize,
    /// Until when no read begins, if none may.
    held_until: Option<Instant>,
}

impl Gate {
    /// Lets a read begin, which lasts until the answer is dropped. Blocks the thread while reads are held back.
    pub(crate) fn pass(&self) -> Pass<'_> {
        let mut state = self.state();
        while let Some(left) = state.held_until.map(|until| until.saturating_duration_since(Instant::now()))
            && !left.is_zero()
        {
            let waited = self.opened.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.reading += 1;
        Pass(self)
    }

    /// Lets no read begin until then.
    pub(crate) fn hold(&self, until: Instant) {
        self.state().held_until = Some(until);
    }

    /// Lets reads begin again.
    pub(crate) fn open(&self) {
        self.state().held_until = None;
        self.opened.notify_all();
    }

    /// Whether no read is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.state().reading == 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A read that is under way.
pub(crate) struct Pass<'g>(&'g Gate);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.state().reading -= 1;
    }
}
