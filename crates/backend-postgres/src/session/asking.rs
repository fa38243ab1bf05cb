//! A connection of the user's, of which the server says whether a transaction is open (T4).
//!
//! A driver counts the transactions that it was told to open and to end. The server can have ended one since: by a `COMMIT` or `ROLLBACK`
//! in the user's own SQL. A statement sent then would be a transaction of its own, and a verdict would count although the work is lost.
//!
//! So [`MARK`] goes first. Outside a transaction it has no effect, inside it lasts until the end of the transaction. The statement that follows
//! does nothing without it, and so need not wait for the answer: where the driver can send two messages at once, this costs no
//! round trip. If the statement has found nothing to do, the server is asked why.

use async_trait::async_trait;
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};

use super::{Completed, Keyed, Session, Told};
use crate::error::{self, Failure};
use crate::events::Places;
use crate::statement::Param;

/// Says to the statements of the transaction that it is open. The server warns if it is not.
const MARK: &str = "SET LOCAL leasehold.is_open = 'yes'";

/// Fails if no transaction is open.
const ASK: &str = "SAVEPOINT leasehold_is_open; RELEASE SAVEPOINT leasehold_is_open";

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

/// How a driver marks a transaction, and asks whether it is open.
#[async_trait]
trait Ask {
    async fn mark(self) -> Result<(), Failure>;

    /// # Errors
    /// [`Failure::NoTransaction`], or what the server says of a transaction that has failed.
    async fn ask(self) -> Result<(), Failure>;
}

#[async_trait]
impl Ask for &AsyncPgConnection {
    async fn mark(self) -> Result<(), Failure> {
        let mut conn = self;
        match conn.batch_execute(MARK).await {
            Ok(()) => Ok(()),
            Err(error) => Err(error::of_statement(self, error).await),
        }
    }

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
    async fn mark(self) -> Result<(), Failure> {
        Ok(self.batch_execute(MARK).await?)
    }

    async fn ask(self) -> Result<(), Failure> {
        Ok(self.batch_execute(ASK).await?)
    }
}

#[cfg(feature = "sqlx")]
#[async_trait]
impl Ask for &mut sqlx::PgConnection {
    async fn mark(self) -> Result<(), Failure> {
        Ok(sqlx::Executor::execute(self, MARK).await.map(drop)?)
    }

    async fn ask(self) -> Result<(), Failure> {
        Ok(sqlx::Executor::execute(self, ASK).await.map(drop)?)
    }
}

/// An answer that tells nothing: there was nothing to do, or no transaction in which to do it.
trait Nothing {
    fn is_nothing(&self) -> bool;
}

impl<T> Nothing for Vec<T> {
    fn is_nothing(&self) -> bool {
        self.is_empty()
    }
}

impl Nothing for Completed {
    fn is_nothing(&self) -> bool {
        self.jobs.is_empty()
    }
}

impl Nothing for u64 {
    fn is_nothing(&self) -> bool {
        *self == 0
    }
}

/// Both messages are sent before either is answered.
macro_rules! at_once {
    ($conn:ident.$word:ident(), $name:ident($text:expr, $params:expr)) => {{
        let (shared, text) = (&*$conn, $text);
        let mut second = shared;
        let (said, answer) = tokio::join!(shared.$word(), second.$name(&text, $params));
        said.and(answer)
    }};
}

/// The driver sends one message at a time.
#[cfg(feature = "sqlx")]
macro_rules! one_by_one {
    ($conn:ident.$word:ident(), $name:ident($text:expr, $params:expr)) => {{
        $conn.$word().await?;
        $conn.$name(&$text, $params).await
    }};
}

/// A session on `$conn` that makes sure of its transaction with the first statement. Those with a guard behind them end with their FROM, and do
/// nothing without the mark; `count` looks for it itself; `places` only reads, and whoever comes after it must know.
macro_rules! asking {
    ([$($lifetime:lifetime)?] $conn:ty, $both:ident; $($name:ident($guard:expr) -> $answer:ty),+) => {
        #[async_trait]
        impl<$($lifetime)?> Session for Asking<'_, $conn> {
            $(async fn $name(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<$answer, Failure> {
                let is_asked = std::mem::replace(&mut self.is_asked, true);
                let conn = &mut *self.conn;
                if is_asked {
                    return conn.$name(text, params).await;
                }
                let answer = $both!(conn.mark(), $name(format!("{text}{}", $guard), params))?;
                if answer.is_nothing() {
                    conn.ask().await?;
                }
                Ok(answer)
            })+

            async fn places(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Places, Failure> {
                let is_asked = std::mem::replace(&mut self.is_asked, true);
                let conn = &mut *self.conn;
                if is_asked { conn.places(text, params).await } else { $both!(conn.ask(), places(text, params)) }
            }

            fn give_up(&mut self) {
                self.conn.give_up();
            }
        }
    };
    ([$($lifetime:lifetime)?] $conn:ty, $both:ident) => {
        asking! { [$($lifetime)?] $conn, $both;
            numbers(IF_OPEN) -> Vec<i64>, keyed(IF_OPEN) -> Vec<Keyed>, told(IF_OPEN) -> Vec<Told>,
            completed(IF_OPEN) -> Completed, count("") -> u64
        }
    };
}

asking!([] AsyncPgConnection, at_once);
#[cfg(feature = "tokio-postgres")]
asking!(['t] tokio_postgres::Transaction<'t>, at_once);
#[cfg(feature = "sqlx")]
asking!([] sqlx::PgConnection, one_by_one);
