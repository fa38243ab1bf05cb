//! What the tables hold, as SQLite keeps it: any bytes as text, and times as microseconds.

use diesel::sql_types::{BigInt, Nullable, Text};
use leasehold_sql::Stored;

pub(crate) type JobSql = (
    BigInt,
    Text,
    Text,
    BigInt,
    Nullable<Text>,
    Text,
    Text,
    BigInt,
    BigInt,
    BigInt,
    Nullable<BigInt>,
    Nullable<Text>,
    BigInt,
    Nullable<BigInt>,
    Nullable<Text>,
    BigInt,
    BigInt,
    BigInt,
);

/// A row of `job_queue`.
pub(crate) type JobRow = leasehold_sql::JobRow<Stored, Stored, i64, i64>;

pub(crate) type FinishedSql = (
    BigInt,
    Text,
    Text,
    BigInt,
    Nullable<Text>,
    Text,
    Text,
    BigInt,
    BigInt,
    BigInt,
    Text,
    Nullable<Text>,
    Nullable<Text>,
    BigInt,
    Nullable<Text>,
    BigInt,
    Nullable<BigInt>,
    BigInt,
);

/// A row of `job_history`.
pub(crate) type FinishedRow = leasehold_sql::FinishedRow<Stored, Stored, i64, i64>;
