//! Waiting for the lock, beside a writer that would always be first, and without blocking a thread.
//!
//! A transaction may be suspended at an `await` while it holds the lock. If those that wait for it blocked their threads, nothing
//! would be left to run the one they wait for.

use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::time::{Duration, Instant};

use diesel::connection::{AnsiTransactionManager, SimpleConnection};
use diesel::result::Error;
use diesel::sql_types::BigInt;
use diesel::sqlite::SqliteConnection;
use futures_util::future::select;

use super::lane::Lane;
use super::timer::pause;
use crate::error::Failure;
use crate::statement::Statement;

/// How long to wait before asking again: doubled up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(4));

/// Opens a transaction that may write. SQLite itself would block the thread, ask at longer and longer intervals, and hardly ever
/// ask at the moment at which a busy writer has let go.
pub(super) async fn begin(conn: &mut SqliteConnection) -> Result<(), Error> {
    let lane = Lane::of(conn);
    let mut conn = Impatient::new(conn)?;
    let mut begun = begin_now(&mut conn);
    if begun.as_ref().is_err_and(is_locked) {
        let deadline = conn.deadline();
        let waiting = lane.wait();
        // Transactions of this process wait in order, and only the first of them asks SQLite.
        let _turn = waiting.turn(deadline).await;
        let mut pauses = Pauses::until(deadline);
        while begun.as_ref().is_err_and(is_locked) && pauses.pause_or(waiting.freed()).await {
            begun = begin_now(&mut conn);
        }
    }
    begun
}

fn begin_now(conn: &mut SqliteConnection) -> Result<(), Error> {
    AnsiTransactionManager::begin_transaction_sql(conn, "BEGIN IMMEDIATE")
}

/// A connection that does not wait for a lock inside SQLite. Dropped, it has its timeout back.
pub(super) struct Impatient<'c> {
    conn: &'c mut SqliteConnection,
    patience: Duration,
}

impl<'c> Impatient<'c> {
    pub(super) fn new(conn: &'c mut SqliteConnection) -> Result<Self, Error> {
        let patience = busy_timeout(conn);
        set_busy_timeout(conn, Duration::ZERO)?;
        Ok(Self { conn, patience })
    }

    /// Until when the connection was to wait for a lock, if it begins to wait now.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }
}

impl Deref for Impatient<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        self.conn
    }
}

impl DerefMut for Impatient<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.conn
    }
}

impl Drop for Impatient<'_> {
    fn drop(&mut self) {
        // The statement sets a number in memory; it has no way to fail.
        drop(set_busy_timeout(self.conn, self.patience));
    }
}

/// Longer and longer pauses.
pub(super) struct Pauses {
    deadline: Instant,
    next: Duration,
}

impl Pauses {
    pub(super) fn until(deadline: Instant) -> Self {
        Self { deadline, next: PAUSE.0 }
    }

    /// Waits for a moment. Whether there is still time.
    pub(super) async fn pause(&mut self) -> bool {
        self.pause_or(std::future::pending()).await
    }

    /// Waits for a moment, or until `sooner` completes. Whether there is still time.
    async fn pause_or(&mut self, sooner: impl Future<Output = ()>) -> bool {
        if Instant::now() >= self.deadline {
            return false;
        }
        let _whichever = select(pin!(pause(self.next)), pin!(sooner)).await;
        self.next = (self.next * 2).min(PAUSE.1);
        true
    }
}

fn is_locked(error: &Error) -> bool {
    matches!(error, Error::DatabaseError(_, information) if Failure::is_locked(information.message()))
}

fn busy_timeout(conn: &mut SqliteConnection) -> Duration {
    let asked = Statement::<BigInt>::new("PRAGMA busy_timeout", Vec::new()).rows::<i64>(conn);
    let millis = asked.ok().and_then(|rows| rows.first().copied()).unwrap_or_default();
    Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}

fn set_busy_timeout(conn: &mut SqliteConnection, time: Duration) -> Result<(), Error> {
    conn.batch_execute(&format!("PRAGMA busy_timeout = {}", time.as_millis()))
}
