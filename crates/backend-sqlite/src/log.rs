//! Keeping the write-ahead log short.
//!
//! After a commit SQLite copies a long log into the database by itself. It begins the log anew only in a moment in which no connection reads
//! from it. While reads overlap there is no such moment, and the log grows without bound. So the writer makes one: once the log is long, it
//! holds new reads of its store back, and when the last one has ended it cuts the log back to nothing. It goes on writing meanwhile.
//!
//! Readers that are not the store's own are waited for inside SQLite, which holds the lock for writing meanwhile: for 20 ms, and once the log is much too long
//! for 2 s, both within 5 % of the time. New readers do not prolong that: once all of the log is copied they read from the database alone.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use diesel::connection::SimpleConnection;
use diesel::sql_types::BigInt;
use diesel::sqlite::SqliteConnection;

use crate::gate::Gate;
use crate::statement::Statement;

/// The log is cut back when it has so many bytes. SQLite copies it into the database at a quarter of that.
const LONG: u64 = 16 << 20;
/// With so many, nothing is written until the reads that are under way have ended.
const TOO_LONG: u64 = 32 << 20;

/// For how long reads are held back at most. They begin again as soon as the reads that were under way have ended and the log is cut back.
const HOLD: Duration = Duration::from_secs(5);
/// How often to look whether they have ended.
const LOOK: Duration = Duration::from_millis(1);

/// For how long readers of others are waited for, and once the log is too long.
const OTHERS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// So many times as long as an attempt took that was in vain, no other such attempt is made.
const REST: u32 = 20;

/// The log of one file, as the writer keeps it.
pub(crate) struct Log {
    path: PathBuf,
    gate: Arc<Gate>,
    state: State,
    /// How many attempts in a row were in vain.
    failed: u32,
    /// Before that, readers of others are not waited for any longer than usual.
    patient_from: Instant,
}

enum State {
    /// Nothing is to be done before that.
    Resting(Instant),
    /// Reads are held back from the first time to the second.
    Holding(Instant, Instant),
}

impl Log {
    pub(crate) fn new(path: PathBuf, gate: Arc<Gate>) -> Self {
        let now = Instant::now();
        Self { path, gate, state: State::Resting(now), failed: 0, patient_from: now }
    }

    /// When to call [`keep_short`](Self::keep_short) again, even if nothing was written.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        match self.state {
            State::Resting(_) => None,
            State::Holding(..) => Some(Instant::now() + LOOK),
        }
    }

    /// To be called after each commit, outside of any transaction.
    pub(crate) fn keep_short(&mut self, conn: &mut SqliteConnection) {
        let now = Instant::now();
        match self.state {
            State::Resting(until) if until <= now && self.len() > LONG => {
                self.gate.hold(now + HOLD);
                self.state = State::Holding(now, now + HOLD);
                self.cut_back_in_time(conn);
            }
            State::Resting(_) => {}
            State::Holding(..) => self.cut_back_in_time(conn),
        }
    }

    /// Cuts the log back if no read is under way, or gives up if it has been so for too long.
    fn cut_back_in_time(&mut self, conn: &mut SqliteConnection) {
        let State::Holding(since, until) = self.state else {
            return;
        };
        while !self.gate.is_empty() {
            if until <= Instant::now() {
                return self.ended(Some(since.elapsed() * REST));
            }
            if self.len() < TOO_LONG {
                return;
            }
            std::thread::sleep(LOOK);
        }
        let start = Instant::now();
        let is_patient = self.len() > TOO_LONG && self.patient_from <= start;
        if cut_back(conn, if is_patient { OTHERS.1 } else { OTHERS.0 }) {
            return self.ended(None);
        }
        if is_patient {
            self.patient_from = Instant::now() + start.elapsed() * REST;
        }
        self.ended(Some(OTHERS.0 * REST));
    }

    /// Lets reads begin again. If the log could not be cut back, there is a rest now.
    fn ended(&mut self, rest: Option<Duration>) {
        self.gate.open();
        self.state = State::Resting(Instant::now() + rest.unwrap_or_default());
        if rest.is_none() {
            self.failed = 0;
            return;
        }
        self.failed = self.failed.saturating_add(1);
        let (log, mebibytes) = (self.path.display(), self.len() >> 20);
        if self.failed == 10 {
            tracing::warn!(%log, mebibytes, "the write-ahead log grows: a connection reads for very long");
        } else {
            tracing::debug!(%log, mebibytes, "the write-ahead log cannot be cut back yet");
        }
    }

    /// How many bytes the log has.
    fn len(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |log| log.len())
    }
}

/// Copies the whole log into the database and cuts it back to nothing. Whether that could be done, while others were waited for for so long.
fn cut_back(conn: &mut SqliteConnection, patience: Duration) -> bool {
    type Row = (BigInt, BigInt, BigInt);
    // The writer never waits inside of SQLite but here.
    if conn.batch_execute(&format!("PRAGMA busy_timeout = {}", patience.as_millis())).is_err() {
        return false;
    }
    let checkpoint = Statement::<Row>::new("PRAGMA wal_checkpoint(TRUNCATE)", Vec::new());
    let answer = checkpoint.rows::<(i64, i64, i64)>(conn);
    // The statement sets a number in memory; it has no way to fail.
    drop(conn.batch_execute("PRAGMA busy_timeout = 0"));
    matches!(answer.as_deref(), Ok([(0, ..)]))
}
