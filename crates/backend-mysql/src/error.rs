//! What the database's errors mean to the caller.

use std::error::Error;
use std::fmt;

use diesel::QueryResult;
use diesel::result::{DatabaseErrorKind, Error as DieselError};
use diesel::sql_types::{BigInt, Binary};
use diesel_async::{AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{BoxError, StoreError};

use crate::statement::Statement;

/// Why an operation failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection is gone, and with it the answer.
    Lost(BoxError),
    /// The server, or a cluster, has given up on the transaction.
    Again(BoxError),
    /// The same, to break a deadlock: 1213. On a cluster also because another member was first.
    Deadlock(BoxError),
    /// The same, because a row was changed after the transaction took its snapshot: MariaDB above READ COMMITTED, with
    /// `innodb_snapshot_isolation`.
    OldSnapshot(BoxError),
    /// The same, but it would take as long again: a lock that did not come in time, a statement that took too long or was ended.
    Late(BoxError),
    /// The server takes no writes, at least not from this session: it is read-only, or has lost its cluster. Nothing was done.
    ReadOnly(BoxError),
    /// The server has no room: on its disk, or for another prepared statement. Nothing was done. Closing the connection frees its statements.
    Full(BoxError),
    /// A row with this key was there already.
    Taken(BoxError),
    /// The user's transaction is not open: none was opened, or the server has ended it.
    Ended,
    /// An answer that is an error to the caller.
    Told(StoreError),
    /// Anything else.
    Other(BoxError),
}

impl Failure {
    /// What the caller is told of it, if nothing can have been done.
    pub(crate) fn told(self, operation: &'static str) -> StoreError {
        match self {
            Self::Lost(source)
            | Self::Again(source)
            | Self::Deadlock(source)
            | Self::Late(source)
            | Self::Full(source)
            | Self::ReadOnly(source) => StoreError::unavailable(operation, source),
            // Only a transaction of the caller's has a snapshot that it can do something about.
            Self::OldSnapshot(source) if operation.ends_with("_in") => {
                StoreError::old_snapshot(operation, source)
            }
            Self::OldSnapshot(source) => StoreError::unavailable(operation, source),
            Self::Taken(source) | Self::Other(source) => StoreError::backend(operation, source),
            Self::Ended => StoreError::no_transaction(operation),
            Self::Told(error) => error,
        }
    }

    /// What the caller is told of it, if it was on its way to be done.
    pub(crate) fn told_in_doubt(self, operation: &'static str) -> StoreError {
        match self {
            Self::Lost(source) => StoreError::unknown(operation, source),
            failure => failure.told(operation),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }

    /// Whether the server has broken a deadlock.
    pub(crate) fn is_deadlock(&self) -> bool {
        matches!(self, Self::Deadlock(_))
    }

    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::ReadOnly(_))
    }

    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Full(_))
    }

    /// Whether the same may succeed if it is done again from the start, at once.
    pub(crate) fn is_again(&self) -> bool {
        matches!(self, Self::Again(_) | Self::Deadlock(_) | Self::OldSnapshot(_))
    }

    /// Whether the transaction cannot be committed any more: it has ended, its connection is gone, its server takes no writes, or the server has
    /// given up and may have undone the whole of it.
    pub(crate) fn breaks_transaction(&self) -> bool {
        matches!(
            self,
            Self::Lost(_)
                | Self::Again(_)
                | Self::Deadlock(_)
                | Self::OldSnapshot(_)
                | Self::Late(_)
                | Self::ReadOnly(_)
                | Self::Ended
        )
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Told(error)
    }
}

impl Failure {
    /// What an error of a statement means.
    pub(crate) async fn of(conn: &mut AsyncMysqlConnection, error: DieselError) -> Self {
        match Numbered::of(conn, error).await {
            Ok(error) => Self::numbered(error),
            Err(failure) => failure,
        }
    }

    /// The number of an error, if it is one of those `expected`. Otherwise what the error means.
    pub(crate) async fn unless(
        expected: &[i64],
        conn: &mut AsyncMysqlConnection,
        error: DieselError,
    ) -> Result<i64, Self> {
        let error = Numbered::of(conn, error).await?;
        if expected.contains(&error.number) { Ok(error.number) } else { Err(Self::numbered(error)) }
    }

    fn full_of_statements(error: DieselError) -> Self {
        Self::Full(Box::new(Advised { advice: STATEMENTS, source: error.into() }))
    }

    /// What an error with a number means.
    fn numbered(error: Numbered) -> Self {
        let Numbered { number, message, error } = error;
        let message = message.as_str();
        match number {
            1053 | 1927 | 4031 => Self::Lost(error.into()), // The session is ended.
            1205 | 1317 | 1969 | 3024 => Self::Late(error.into()),
            1020 => Self::OldSnapshot(error.into()),
            1213 => Self::Deadlock(error.into()),
            1180 | 3101 => Self::Again(error.into()), // The storage engine, or a cluster, has refused the commit.
            1047 | 1836 | 3032 | 3100 => Self::ReadOnly(error.into()),
            1021 | 1114 => Self::Full(error.into()),
            1030 if is_out_of_space(message) => Self::Full(error.into()),
            1461 => Self::full_of_statements(error),
            1290 if is_read_only(message) => Self::ReadOnly(error.into()),
            _ if is_outside_of_cluster(message) => Self::ReadOnly(error.into()),
            _ => match advice(number) {
                Some(advice) => Self::Other(Box::new(Advised { advice, source: error.into() })),
                None => Self::Other(error.into()),
            },
        }
    }
}

/// An error of the server's, with its number.
struct Numbered {
    number: i64,
    message: String,
    error: DieselError,
}

impl Numbered {
    /// diesel-async hands on the numbers of few errors, so the server is asked for it: its words are in the language of the session.
    /// Fails with what the error means, if that is known without a number.
    async fn of(conn: &mut AsyncMysqlConnection, error: DieselError) -> Result<Self, Failure> {
        let message = match &error {
            DieselError::DatabaseError(DatabaseErrorKind::UniqueViolation, _) => {
                return Err(Failure::Taken(error.into()));
            }
            DieselError::DatabaseError(DatabaseErrorKind::ReadOnlyTransaction, _) => {
                return Err(Failure::ReadOnly(error.into())); // 1792
            }
            DieselError::DatabaseError(_, information) => information.message().to_owned(),
            DieselError::BrokenTransactionManager => return Err(Failure::Lost(error.into())),
            _ => return Err(Failure::Other(error.into())),
        };
        if is_of_the_driver(&message) {
            return Err(Failure::Lost(error.into()));
        }
        if message.contains("max_prepared_stmt_count") {
            return Err(Failure::full_of_statements(error)); // To ask for its number takes a prepared statement.
        }
        match number(conn, &message).await {
            Ok(number) => Ok(Self { number, message, error }),
            // A session that was ended, or is refused everything, cannot be asked.
            Err(_) if is_outside_of_cluster(&message) => Err(Failure::ReadOnly(error.into())),
            Err(_) => Err(Failure::Lost(error.into())),
        }
    }
}

/// What can be done about an error that does not go away by itself.
fn advice(number: i64) -> Option<&'static str> {
    Some(match number {
        1044 | 1045 | 1142 | 1143 | 1227 | 1370 => {
            "the user of this connection lacks a right: grant what docs/mysql.md lists under Rights"
        }
        1054 | 1146 | 1176 => "the tables are missing or of an older version: run MysqlStore::migrate",
        1264 | 1406 => {
            "a column has no room for the value: give the tables the columns that MysqlStore::migrate makes"
        }
        1104 => {
            "max_join_size of the session is too small for a statement of the store: SET SESSION sql_big_selects = 1 on this connection"
        }
        1665 => STATEMENT_LOG,
        _ => return None,
    })
}

const STATEMENTS: &str =
    "the server keeps no more prepared statements: raise max_prepared_stmt_count, or open fewer connections";

/// What to do about a binary log that takes no writes at READ COMMITTED.
pub(crate) const STATEMENT_LOG: &str = "the server logs statements (binlog_format = STATEMENT) and so refuses every write at READ \
    COMMITTED (error 1665): set binlog_format to ROW or MIXED on the server, then connect anew";

/// Keeps the first and the last condition of the last statement: warnings may come before its error, or after it. Any other statement
/// would clear them.
const CONDITIONS: [&str; 3] = [
    "GET DIAGNOSTICS @leasehold_count = NUMBER",
    "GET DIAGNOSTICS CONDITION 1 @leasehold_first = MYSQL_ERRNO",
    "GET DIAGNOSTICS CONDITION @leasehold_count @leasehold_last = MYSQL_ERRNO, @leasehold_words = MESSAGE_TEXT",
];
/// The words as bytes: as text they would come in the character set of the session, which need not be UTF-8.
const NUMBERS: &str = "SELECT CAST(@leasehold_first AS SIGNED), CAST(@leasehold_last AS SIGNED), CAST(@leasehold_words AS BINARY)";

/// The server's number of the error that was its last answer. MySQL does not prepare `SHOW ERRORS`, and diesel-async reads only the rows of
/// prepared statements.
async fn number(conn: &mut AsyncMysqlConnection, message: &str) -> QueryResult<i64> {
    for text in CONDITIONS {
        conn.batch_execute(text).await?;
    }
    let numbers = Statement::<(BigInt, BigInt, Binary)>::new(NUMBERS, Vec::new());
    let found: Vec<(i64, i64, Vec<u8>)> = RunQueryDsl::load(numbers, conn).await?;
    let (first, last, words) = found.into_iter().next().ok_or(DieselError::NotFound)?;
    // The words of a condition may be cut.
    Ok(if message.as_bytes().starts_with(&words) { last } else { first })
}

/// An error, and what to do about it.
#[derive(Debug)]
struct Advised {
    advice: &'static str,
    source: BoxError,
}

impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.advice)
    }
}

impl Error for Advised {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// Errors of the driver, in its own words, leave the connection in an unknown state.
fn is_of_the_driver(message: &str) -> bool {
    ["Input/output error", "Driver error", "Other error"].iter().any(|words| message.starts_with(words))
}

/// 1290 names the option of the server that forbids the statement, in every language.
fn is_read_only(message: &str) -> bool {
    ["--read-only", "--read_only", "--super-read-only", "--super_read_only"]
        .iter()
        .any(|option| message.contains(option))
}

/// The system's number for a disk that is full.
fn is_out_of_space(message: &str) -> bool {
    message.split(|c: char| !c.is_ascii_digit()).any(|number| number == "28")
}

/// Galera says under several numbers that it has lost its cluster, or is not yet a part of it, and never translates it.
fn is_outside_of_cluster(message: &str) -> bool {
    message.to_ascii_lowercase().contains("not connected to primary component")
        || message.starts_with("WSREP has not yet prepared node for application use")
}

#[cfg(test)]
mod tests {
    use diesel::result::{DatabaseErrorKind, Error};

    use super::{Failure, Numbered};

    fn of(number: i64, message: &str) -> Failure {
        let error = Error::DatabaseError(DatabaseErrorKind::Unknown, Box::new(message.to_owned()));
        Failure::numbered(Numbered { number, message: message.to_owned(), error })
    }

    #[test]
    fn a_server_that_takes_no_writes_is_unavailable() {
        for (number, message) in [
            (
                1290,
                "The MySQL server is running with the --read-only option so it cannot execute this statement",
            ),
            (1290, "The MySQL server is running with the --super-read-only option so it cannot execute this"),
            (
                1290,
                "Der MariaDB-Server läuft mit der Option --read-only und kann diese Anweisung nicht ausführen",
            ),
            (
                1290,
                "The MySQL server is running with the --read_only option so it cannot execute this statement",
            ),
            (1836, "Running in read-only mode"),
            (3032, "The server is currently in offline mode"),
            (1047, "WSREP has not yet prepared node for application use"),
            (
                1105,
                "Error while appending streaming replication fragment(provider status: Not connected to Primary Component)",
            ),
            (3100, "Error on observer while running replication hook 'before_commit'."),
        ] {
            assert!(matches!(of(number, message), Failure::ReadOnly(_)), "{message}");
            let told = of(number, message).told_in_doubt("enqueue");
            assert!(told.is_retryable() && !told.is_unknown(), "{message}: {told:?}");
        }
    }

    #[test]
    fn a_server_that_is_full_is_unavailable() {
        for (number, message) in [
            (1021, "Disk full (/tmp); waiting for someone to free some space..."),
            (1114, "The table 'job_queue' is full"),
            (1030, "Got error 28 - 'No space left on device' from storage engine"),
            (1461, "Can't create more than max_prepared_stmt_count statements (current value: 16382)"),
        ] {
            let told = of(number, message).told_in_doubt("enqueue");
            assert!(told.is_retryable() && !told.is_unknown(), "{message}: {told:?}");
            assert!(!of(number, message).is_again(), "{message}");
        }
    }

    #[test]
    fn a_transaction_that_a_cluster_has_refused_is_done_again() {
        for number in [1213, 3101, 1180] {
            assert!(of(number, "in any words").is_again(), "{number}");
        }
        assert!(matches!(of(1213, "in any words"), Failure::Deadlock(_)));
    }

    #[test]
    fn what_only_looks_alike_is_an_error_to_the_caller() {
        for (number, message) in [
            (
                1290,
                "The MySQL server is running with the --secure-file-priv option so it cannot execute this",
            ),
            (
                1290,
                "The MySQL server is running with the --skip-grant-tables option so it cannot execute this",
            ),
            (1030, "Got error 122 from storage engine"),
            (1644, "Deadlock found when trying to get lock; try restarting transaction"),
        ] {
            assert!(matches!(of(number, message), Failure::Other(_)), "{message}");
        }
    }

    #[test]
    fn what_does_not_go_away_by_itself_says_what_to_do() {
        for (number, advice) in [
            (1142, "grant"),
            (1146, "run MysqlStore::migrate"),
            (1054, "run MysqlStore::migrate"),
            (1406, "MysqlStore::migrate"),
            (1104, "sql_big_selects = 1"),
            (1461, "max_prepared_stmt_count"),
            (1665, "binlog_format to ROW"),
        ] {
            let told = of(number, "in any words").told("settle");
            let source = std::error::Error::source(&told).map(ToString::to_string).unwrap_or_default();
            assert!(source.contains(advice), "{number}: {source}");
        }
    }
}
