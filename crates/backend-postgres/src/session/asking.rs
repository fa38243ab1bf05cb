//! A connection of the user's, of which the server says whether a transaction is open (T4).
//!
//! A driver counts the transactions that it was told to open and to end. The server can have ended one since: by a `COMMIT` or `ROLLBACK`
//! in the user's own SQL. A statement sent then would be a transaction of its own, and a verdict would count although the work is lost.
//!
//! So [`ASK`] goes first. `SAVEPOINT` fails outside a transaction, and then the setting is not made. It lasts until the end of
//! the transaction. The statement that follows does nothing without it, and so need not wait for the answer: where the driver can send two
//! messages at once, asking costs no round trip.

use async_trait::async_trait;
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};

use super::{Completed, Keyed, Session, Told};
use crate::error::{self, Failure};
use crate::events::Places;
use crate::statement::Param;

/// Fails if no transaction is open; otherwise it says so to the statements of that transaction.
const ASK: &str = "SAVEPOINT leasehold_is_open; RELEASE SAVEPOINT leasehold_is_open;
    SELECT pg_catalog.set_config('leasehold.is_open', 'yes', true)";

/// What is put behind a statement that is sent before the answer is there. The server looks at it first, and does not call the function in FROM unless it is true.
const IF_OPEN: &str = " WHERE pg_catalog.current_setting('leasehold.is_open', true) = 'yes'";

/// The connection of one operation. It is asked with the first statement.
pub(crate) struct Asking<'c, C> {
    conn: &'c mut C,
    is_asked: bool,
}

impl<'c, C> Asking<'c, C> {
    pub(crate) fn new(conn: &'c mut C) -> Self {
        Self { conn, is_asked: false }
    }
}

/// Asks whether a transaction is open.
#[async_trait]
trait Ask {
    /// # Errors
    /// [`Failure::NoTransaction`], or what the server says of a transaction that has failed.
    async fn ask(self) -> Result<(), Failure>;
}

#[async_trait]
impl Ask for &AsyncPgConnection {
    async fn ask(self) -> Result<(), Failure> {
        let mut conn = self;
        let Err(error) = conn.batch_execute(ASK).await else { return Ok(()) };
        // diesel keeps no SQLSTATE of this. Outside a transaction any statement is answered, in a failed one none.
        match (error::of_statement(self, error).await, conn.batch_execute("SELECT").await) {
            (Failure::Other(_), Ok(())) => Err(Failure::NoTransaction),
            (failure, _) => Err(failure),
        }
    }
}

#[cfg(feature = "tokio-postgres")]
#[async_trait]
impl Ask for &tokio_postgres::Transaction<'_> {
    async fn ask(self) -> Result<(), Failure> {
        Ok(self.batch_execute(ASK).await?)
    }
}

#[cfg(feature = "sqlx")]
#[async_trait]
impl Ask for &mut sqlx::PgConnection {
    async fn ask(self) -> Result<(), Failure> {
        Ok(sqlx::Executor::execute(self, ASK).await.map(drop)?)
    }
}

/// Both messages are sent before either is answered.
macro_rules! at_once {
    ($conn:ident.$name:ident($text:expr, $params:expr)) => {{
        let (shared, text) = (&*$conn, $text);
        let mut second = shared;
        let (open, answer) = tokio::join!(shared.ask(), second.$name(&text, $params));
        open.and(answer)
    }};
}

/// The driver sends one message at a time.
#[cfg(feature = "sqlx")]
macro_rules! one_by_one {
    ($conn:ident.$name:ident($text:expr, $params:expr)) => {{
        $conn.ask().await?;
        $conn.$name(&$text, $params).await
    }};
}

/// A session on `$conn` that asks with the first statement. Those that are guarded end with their FROM, and do nothing unless a transaction is
/// open. The others only read, or look for themselves.
macro_rules! asking {
    ([$($lifetime:lifetime)?] $conn:ty, $both:ident; guarded: $($guarded:ident -> $rows:ty),+; plain: $($plain:ident -> $answer:ty),+;) => {
        #[async_trait]
        impl<$($lifetime)?> Session for Asking<'_, $conn> {
            $(async fn $guarded(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<$rows, Failure> {
                let is_asked = std::mem::replace(&mut self.is_asked, true);
                let conn = &mut *self.conn;
                if is_asked { conn.$guarded(text, params).await } else { $both!(conn.$guarded(format!("{text}{IF_OPEN}"), params)) }
            })+

            $(async fn $plain(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<$answer, Failure> {
                let is_asked = std::mem::replace(&mut self.is_asked, true);
                let conn = &mut *self.conn;
                if is_asked { conn.$plain(text, params).await } else { $both!(conn.$plain(text, params)) }
            })+

            fn give_up(&mut self) {
                self.conn.give_up();
            }
        }
    };
    ([$($lifetime:lifetime)?] $conn:ty, $both:ident) => {
        asking! { [$($lifetime)?] $conn, $both;
            guarded: numbers -> Vec<i64>, keyed -> Vec<Keyed>, told -> Vec<Told>, completed -> Completed;
            plain: places -> Places, count -> u64;
        }
    };
}

asking!([] AsyncPgConnection, at_once);
#[cfg(feature = "tokio-postgres")]
asking!(['t] tokio_postgres::Transaction<'t>, at_once);
#[cfg(feature = "sqlx")]
asking!([] sqlx::PgConnection, one_by_one);
