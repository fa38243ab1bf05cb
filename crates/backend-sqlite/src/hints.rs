//! Hints that reach the other processes: rows of a small table.
//!
//! Whatever makes a job leasable says so in its own transaction, by a row with the name of the queue. Another connection sees that row as soon as it
//! sees the job. `PRAGMA data_version` tells a connection for next to nothing whether any other one has committed, so the table is read only then.

use std::collections::BTreeSet;

use diesel::sql_types::{BigInt, Text};
use diesel::sqlite::SqliteConnection;
use leasehold_sql::Stored;

use crate::error::Failure;
use crate::sql::Statements;
use crate::statement::{Param, Statement};

/// So many names are hinted at by one transaction; beyond that, it hints at every queue.
const NAMES: usize = 64;
/// So many hints are kept. A reader that is further behind takes it that there was a hint for every queue.
const KEPT: i64 = 256;
/// Old ones are deleted once in so many.
const CLEARED: i64 = 64;
/// The pattern of every queue.
const EVERY: &str = "*";

/// What one connection has seen of the hints of all.
#[derive(Default)]
pub(crate) struct Hints {
    /// The last hint that it has seen.
    seen: i64,
    /// What `PRAGMA data_version` said last.
    version: i64,
}

impl Hints {
    /// From now on: what was hinted at before is not told.
    pub(crate) fn from_now_on(conn: &mut SqliteConnection, sql: &Statements) -> Self {
        let mut hints = Self::default();
        drop(hints.of_others(conn, sql));
        hints
    }

    /// The queues, or patterns of queues, at which other connections have hinted since the last call. Nothing if they cannot be read now.
    /// Whether any other connection has committed is the second answer.
    pub(crate) fn of_others(&mut self, conn: &mut SqliteConnection, sql: &Statements) -> (Vec<String>, bool) {
        match self.try_of_others(conn, sql) {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(error = error.words(), "the hints of other processes cannot be read now");
                (Vec::new(), false)
            }
        }
    }

    fn try_of_others(
        &mut self,
        conn: &mut SqliteConnection,
        sql: &Statements,
    ) -> Result<(Vec<String>, bool), Failure> {
        let version = Statement::<BigInt>::new("PRAGMA data_version", Vec::new()).rows::<i64>(conn)?;
        let version = version.first().copied().unwrap_or_default();
        if version == self.version {
            return Ok((Vec::new(), false));
        }
        let since = Statement::<(BigInt, Text)>::new(&sql.hints, vec![self.seen.into()]);
        let rows: Vec<(i64, Stored)> = match since.rows(conn) {
            Err(failure) if failure.is_missing_table() => Vec::new(), // Before the first migration.
            rows => rows?,
        };
        self.version = version;
        Ok((self.take(rows.into_iter().map(|(seq, name)| (seq, (*name).to_owned())).collect()), true))
    }

    /// The names in these rows, which begin with the last one that was seen, if that is still there.
    fn take(&mut self, rows: Vec<(i64, String)>) -> Vec<String> {
        let before = self.seen;
        self.seen = rows.last().map_or(0, |(seq, _)| *seq);
        match rows.first() {
            None if before == 0 => Vec::new(),
            Some((first, _)) if *first <= before + 1 => {
                rows.into_iter().filter(|(seq, _)| *seq > before).map(|(_, name)| name).collect()
            }
            // Some are gone that were not seen, or the table was emptied.
            None | Some(_) => vec![EVERY.to_owned()],
        }
    }

    /// This connection has committed a hint of its own, and has read all before it.
    pub(crate) fn committed(&mut self, seq: i64) {
        self.seen = seq;
    }
}

/// Hints at these queues or patterns, in the transaction that is open. The number of the last hint; none if there is nothing to hint at, or
/// no table for it yet.
pub(crate) fn hint(
    conn: &mut SqliteConnection,
    sql: &Statements,
    names: &BTreeSet<String>,
) -> Result<Option<i64>, Failure> {
    let names: Param<'_> = match names.len() {
        0 => return Ok(None),
        1..=NAMES => names.iter().map(String::as_str).collect(),
        _ => [EVERY].into_iter().collect(),
    };
    let written: Vec<i64> = match Statement::<BigInt>::new(&sql.hint, vec![names]).rows(conn) {
        Err(failure) if failure.is_missing_table() => return Ok(None),
        rows => rows?,
    };
    if let Some(seq) = written.iter().find(|seq| **seq % CLEARED == 0) {
        Statement::<()>::new(&sql.forget_hints, vec![(seq - KEPT).into()]).count(conn)?;
    }
    Ok(written.into_iter().max())
}

#[cfg(test)]
mod tests {
    use super::Hints;

    #[test]
    fn a_reader_that_has_missed_hints_looks_at_every_queue() {
        let all =
            |from: i64, to: i64| -> Vec<_> { (from..=to).map(|seq| (seq, format!("q{seq}"))).collect() };
        let mut hints = Hints::default();
        for (rows, told) in [
            (all(1, 2), vec!["q1", "q2"]), // The first ones.
            (all(2, 2), vec![]),           // The last that was seen, and no others.
            (all(2, 4), vec!["q3", "q4"]), // What came since.
            (all(300, 301), vec!["*"]),    // Others that are gone came in between.
            (all(301, 302), vec!["q302"]), // It goes on from there.
            (Vec::new(), vec!["*"]),       // The table was emptied.
            (Vec::new(), vec![]),
            (all(1, 1), vec!["q1"]),
        ] {
            assert_eq!(hints.take(rows), told);
        }
    }
}
