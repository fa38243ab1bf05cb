//! Those of one process who want the lock of one file: transactions that wait for it in turn, and the writers of stores, which
//! give way to them.
//!
//! SQLite's lock goes to whoever asks first, which would always be the writer that has just let it go.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use diesel::sqlite::SqliteConnection;
use futures_util::future::{Either, select};
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard};

use super::timer::pause;
use crate::files::file;

/// How long a writer waits for a transaction that wants the lock to take it. The task of that transaction may have to wait for a
/// thread of its runtime.
const WAY: Duration = Duration::from_millis(20);

/// One for each file that this process has open.
#[derive(Default)]
pub(crate) struct Lane {
    turn: Arc<AsyncMutex<()>>,
    /// How many transactions wait.
    waiting: Mutex<usize>,
    /// One of them has the lock, or has given up.
    fewer: Condvar,
    /// A writer has let go of the lock.
    freed: Notify,
}

impl Lane {
    /// That of the file behind the connection.
    pub(crate) fn of(conn: &mut SqliteConnection) -> Arc<Self> {
        static LANES: LazyLock<Mutex<HashMap<String, Weak<Lane>>>> = LazyLock::new(Mutex::default);
        let file = file(conn);
        let mut lanes = LANES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lanes.get(&file).and_then(Weak::upgrade) {
            return lane;
        }
        lanes.retain(|_, lane| lane.strong_count() > 0);
        let lane = Arc::new(Self::default());
        lanes.insert(file, Arc::downgrade(&lane));
        lane
    }

    /// A transaction waits from now on, until this is dropped.
    pub(super) fn wait(self: &Arc<Self>) -> Waiting {
        *self.waiting() += 1;
        Waiting(Arc::clone(self))
    }

    /// For a writer that has let go of the lock: lets a waiting transaction have it. Whether there was one.
    pub(crate) fn make_way(&self) -> bool {
        let waiting = self.waiting();
        let before = *waiting;
        if before == 0 {
            return false;
        }
        self.freed.notify_waiters();
        let waited = self.fewer.wait_timeout_while(waiting, WAY, |waiting| *waiting >= before);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        true
    }

    fn waiting(&self) -> MutexGuard<'_, usize> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transaction that waits for the lock.
pub(super) struct Waiting(Arc<Lane>);

impl Waiting {
    /// Waits until every transaction that came before has the lock, or has given up. `None` at the deadline.
    pub(super) async fn turn(&self, deadline: Instant) -> Option<OwnedMutexGuard<()>> {
        let in_turn = pin!(Arc::clone(&self.0.turn).lock_owned());
        let too_late = pin!(pause(deadline.saturating_duration_since(Instant::now())));
        match select(in_turn, too_late).await {
            Either::Left((turn, _)) => Some(turn),
            Either::Right(_) => None,
        }
    }

    /// Completes when a writer of this process lets go of the lock.
    pub(super) async fn freed(&self) {
        self.0.freed.notified().await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        *self.0.waiting() -= 1;
        self.0.fewer.notify_all();
    }
}
