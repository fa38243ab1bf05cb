//! A connection, and what one operation needs beside it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use diesel::sql_types::{BigInt, Text};
use diesel_async::AsyncMysqlConnection;
use diesel_async::methods::{ExecuteDsl, LoadQuery};

use crate::error::Failure;
use crate::packet::Packet;
use crate::sql::{Repeated, Statements};
use crate::statement::{Param, Statement, say};

/// Where the transaction of an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// None is open: each statement is one of its own.
    None,
    /// Ours is open, and gone if the connection is.
    Open,
    /// The user's is open. It is not ours to end.
    Users,
}

/// One operation on a connection of the store's or of the user's.
pub(crate) struct Session<'c> {
    conn: &'c mut AsyncMysqlConnection,
    pub(crate) sql: &'c Statements,
    stage: Stage,
    /// Whether the session is of somebody else's pool, so that its settings are not ours.
    pub(crate) is_lent: bool,
    /// If this is true, nothing is committed any more: the caller is gone, and nobody else can use what was done for it.
    pub(crate) unless: Option<&'c AtomicBool>,
    /// How much it may send at once.
    pub(crate) packet: Packet,
    /// Locks by name that are held; they outlive transactions.
    names: Vec<i64>,
    /// Whether something was sent that is done for good, whether or not its answer comes back.
    in_doubt: bool,
    /// The queues, or patterns of queues, in which something became leasable.
    pub(crate) wake: BTreeSet<String>,
}

impl<'c> Session<'c> {
    /// On a connection of the store's.
    pub(crate) fn own(conn: &'c mut AsyncMysqlConnection, sql: &'c Statements, packet: Packet) -> Self {
        let (stage, names) = (Stage::None, Vec::new());
        Self {
            conn,
            sql,
            stage,
            is_lent: false,
            unless: None,
            packet,
            names,
            in_doubt: false,
            wake: BTreeSet::new(),
        }
    }

    /// In the transaction of a user.
    pub(crate) fn users(conn: &'c mut AsyncMysqlConnection, sql: &'c Statements, packet: Packet) -> Self {
        Self { stage: Stage::Users, ..Self::own(conn, sql, packet) }
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Something became leasable in this queue, or in the queues of this pattern.
    pub(crate) fn wake(&mut self, queue: &str) {
        if !self.wake.contains(queue) {
            self.wake.insert(queue.to_owned());
        }
    }

    /// Opens a transaction, unless there is one.
    pub(crate) async fn begin(&mut self) -> Result<(), Failure> {
        if self.stage == Stage::None {
            if self.is_lent {
                // Of the next transaction alone.
                say(self.conn, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
            }
            say(self.conn, "START TRANSACTION").await?;
            self.stage = Stage::Open;
        }
        Ok(())
    }

    /// Commits the transaction, if it is ours.
    pub(crate) async fn commit(&mut self) -> Result<(), Failure> {
        if self.stage == Stage::Open {
            if self.unless.is_some_and(|is_gone| is_gone.load(Ordering::Relaxed)) {
                return Err(Failure::Late("nobody waits for it any more".into()));
            }
            self.in_doubt = true;
            say(self.conn, "COMMIT").await?;
            self.stage = Stage::None;
        }
        Ok(())
    }

    /// Undoes the transaction, if it is ours and open.
    pub(crate) async fn roll_back(&mut self) -> Result<(), Failure> {
        if self.stage == Stage::Open {
            say(self.conn, "ROLLBACK").await?;
            self.stage = Stage::None;
        }
        Ok(())
    }

    /// Locks names, in the order given, until [`free_names`](Self::free_names). Nothing in a user's transaction, which would have to
    /// keep them until its end.
    pub(crate) async fn take_names(&mut self, names: &[i64]) -> Result<(), Failure> {
        if self.stage == Stage::Users || names.is_empty() {
            return Ok(());
        }
        self.names = names.to_vec();
        let sql = self.sql;
        let answers = self.listed::<Text, String>(&sql.take_names, Vec::new(), names, Vec::new()).await?;
        if answers.iter().all(|answer| answer.split(',').all(|answer| answer == "1")) {
            return Ok(());
        }
        Err(Failure::Again("others enqueue jobs with the same unique keys, and do not end".into()))
    }

    /// Frees the names that are locked.
    pub(crate) async fn free_names(&mut self) -> Result<(), Failure> {
        let (sql, names) = (self.sql, std::mem::take(&mut self.names));
        self.listed::<Text, String>(&sql.free_names, Vec::new(), &names, Vec::new()).await.map(drop)
    }

    /// Runs a statement that has no arguments and no rows, in the transaction that is open.
    pub(crate) async fn say(&mut self, text: &str) -> Result<(), Failure> {
        say(self.conn, text).await
    }

    /// Whether the operation is part of a user's transaction.
    pub(crate) fn is_users(&self) -> bool {
        self.stage == Stage::Users
    }

    /// Runs a statement, and reads its rows.
    pub(crate) async fn rows<'a, Row: 'a, U: Send>(
        &mut self,
        text: &'a str,
        params: Vec<Param<'a>>,
    ) -> Result<Vec<U>, Failure>
    where
        Statement<'a, Row>: LoadQuery<'a, AsyncMysqlConnection, U>,
    {
        self.packet.check(&params)?;
        Statement::<Row>::new(text, params).rows(self.conn).await
    }

    /// The first of those rows.
    pub(crate) async fn row<'a, Row: 'a, U: Send>(
        &mut self,
        text: &'a str,
        params: Vec<Param<'a>>,
    ) -> Result<Option<U>, Failure>
    where
        Statement<'a, Row>: LoadQuery<'a, AsyncMysqlConnection, U>,
    {
        Ok(self.rows::<Row, U>(text, params).await?.into_iter().next())
    }

    /// Runs a statement that changes something, and tells how many rows were changed.
    pub(crate) async fn count<'a>(&mut self, text: &'a str, params: Vec<Param<'a>>) -> Result<u64, Failure>
    where
        Statement<'a, ()>: ExecuteDsl<AsyncMysqlConnection>,
    {
        self.packet.check(&params)?;
        self.in_doubt |= self.stage == Stage::None;
        Statement::<()>::new(text, params).count(self.conn).await
    }

    /// Runs an INSERT of so many rows, and tells their ids in their order.
    pub(crate) async fn insert<'a>(
        &mut self,
        text: &'a str,
        params: Vec<Param<'a>>,
        rows: usize,
    ) -> Result<Vec<i64>, Failure> {
        let sql = self.sql;
        if sql.has_returning {
            self.packet.check(&params)?;
            self.in_doubt |= self.stage == Stage::None;
            return self.rows::<BigInt, i64>(text, params).await;
        }
        self.count(text, params).await?;
        let given = self.row::<(BigInt, BigInt), (i64, i64)>(&sql.inserted, Vec::new()).await?;
        // The server knows how many there are, so they follow each other.
        Ok(given.map_or(Vec::new(), |(first, step)| (0..rows as i64).map(|row| first + step * row).collect()))
    }

    /// Runs a statement with a list of ids between the arguments `before` and `after` it, and reads its rows.
    pub(crate) async fn listed<'a, Row: 'a, U: Send>(
        &mut self,
        statement: &'a Repeated,
        before: Vec<Param<'a>>,
        ids: &[i64],
        after: Vec<Param<'a>>,
    ) -> Result<Vec<U>, Failure>
    where
        Statement<'a, Row>: LoadQuery<'a, AsyncMysqlConnection, U>,
    {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let (text, params) = list(statement, before, ids, after);
        self.rows::<Row, U>(text, params).await
    }

    /// The same for a statement that changes something.
    pub(crate) async fn count_listed<'a>(
        &mut self,
        statement: &'a Repeated,
        before: Vec<Param<'a>>,
        ids: &[i64],
        after: Vec<Param<'a>>,
    ) -> Result<u64, Failure>
    where
        Statement<'a, ()>: ExecuteDsl<AsyncMysqlConnection>,
    {
        if ids.is_empty() {
            return Ok(0);
        }
        let (text, params) = list(statement, before, ids, after);
        self.count(text, params).await
    }
}

/// The list is filled up with its last id.
fn list<'a>(
    statement: &'a Repeated,
    before: Vec<Param<'a>>,
    ids: &[i64],
    after: Vec<Param<'a>>,
) -> (&'a str, Vec<Param<'a>>) {
    let (text, size) = statement.of(ids.len());
    let mut params = before;
    params.reserve(size + after.len());
    params.extend(ids.iter().map(|id| Param::from(*id)));
    let last = ids.last().copied().unwrap_or_default();
    params.extend(std::iter::repeat_n(last, size - ids.len()).map(Param::from));
    params.extend(after);
    (text, params)
}
