//! Waiting for the lock, beside a writer that would always be first.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use diesel::connection::{AnsiTransactionManager, SimpleConnection};
use diesel::result::Error;
use diesel::sql_types::BigInt;
use diesel::sqlite::SqliteConnection;

use crate::error::Failure;
use crate::statement::Statement;

/// How long to wait before asking again.
const PAUSE: Duration = Duration::from_micros(200);

/// How many transactions of this process are waiting for a lock.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Whether a transaction of this process is waiting for a lock, on whatever file.
pub(crate) fn is_wanted() -> bool {
    WAITING.load(Ordering::Relaxed) > 0
}

/// Opens a transaction that may write. SQLite itself would ask at longer and longer intervals, and hardly ever at the moment
/// at which a busy writer has let go.
pub(super) fn begin(conn: &mut SqliteConnection) -> Result<(), Error> {
    let patience = busy_timeout(conn);
    let deadline = Instant::now() + patience;
    let _waiting = Waiting::new();
    set_busy_timeout(conn, Duration::ZERO)?;
    let begun = loop {
        match AnsiTransactionManager::begin_transaction_sql(conn, "BEGIN IMMEDIATE") {
            Err(error) if is_locked(&error) && Instant::now() < deadline => std::thread::sleep(PAUSE),
            begun => break begun,
        }
    };
    set_busy_timeout(conn, patience)?;
    begun
}

struct Waiting;

impl Waiting {
    fn new() -> Self {
        WAITING.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
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
