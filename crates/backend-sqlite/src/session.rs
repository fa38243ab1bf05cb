//! A connection within a transaction, and what one operation needs beside it.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use diesel::connection::DefaultLoadingMode;
use diesel::query_dsl::methods::{ExecuteDsl, LoadQuery};
use diesel::sqlite::SqliteConnection;

use crate::clock::Clock;
use crate::error::Failure;
use crate::sql::Statements;
use crate::statement::{Param, Statement};

/// One operation on a connection on which a transaction is open: the writer's, a reader's or the user's own.
pub(crate) struct Session<'c> {
    pub(crate) conn: &'c mut SqliteConnection,
    pub(crate) sql: &'c Statements,
    /// The store's time, read once for the operation (C4).
    pub(crate) now: DateTime<Utc>,
    /// The queues, or patterns of queues, in which something became leasable.
    pub(crate) wake: BTreeSet<String>,
}

impl<'c> Session<'c> {
    pub(crate) fn new(conn: &'c mut SqliteConnection, sql: &'c Statements, clock: &Clock) -> Self {
        Self { conn, sql, now: clock.now(), wake: BTreeSet::new() }
    }

    /// Something became leasable in this queue, or in the queues of this pattern.
    pub(crate) fn wake(&mut self, queue: &str) {
        if !self.wake.contains(queue) {
            self.wake.insert(queue.to_owned());
        }
    }

    /// Runs a statement, and reads its rows.
    pub(crate) fn rows<'a, Row: 'a, U>(
        &mut self,
        text: &str,
        params: Vec<Param<'a>>,
    ) -> Result<Vec<U>, Failure>
    where
        Statement<'a, Row>: LoadQuery<'a, SqliteConnection, U, DefaultLoadingMode>,
    {
        Statement::<Row>::new(text, params).rows(self.conn)
    }

    /// The first of those rows.
    pub(crate) fn row<'a, Row: 'a, U>(
        &mut self,
        text: &str,
        params: Vec<Param<'a>>,
    ) -> Result<Option<U>, Failure>
    where
        Statement<'a, Row>: LoadQuery<'a, SqliteConnection, U, DefaultLoadingMode>,
    {
        Ok(self.rows::<Row, U>(text, params)?.into_iter().next())
    }

    /// Runs a statement, and tells how many rows were changed.
    pub(crate) fn count<'a>(&mut self, text: &str, params: Vec<Param<'a>>) -> Result<u64, Failure>
    where
        Statement<'a, ()>: ExecuteDsl<SqliteConnection>,
    {
        Statement::<()>::new(text, params).count(self.conn)
    }

    /// Does `work` as a whole or not at all, whatever else is in the transaction.
    pub(crate) fn whole<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.count("SAVEPOINT leasehold", Vec::new())?;
        let done = work(self);
        let undone = match &done {
            Err(_) => self.count("ROLLBACK TO leasehold", Vec::new()),
            Ok(_) => Ok(0),
        };
        let released = undone.and_then(|_| self.count("RELEASE leasehold", Vec::new()));
        match (done, released) {
            (done, Ok(_)) => done,
            // What has failed has ended the whole transaction.
            (Err(failure), Err(_)) | (Ok(_), Err(failure)) => Err(failure.transaction_lost()),
        }
    }
}
