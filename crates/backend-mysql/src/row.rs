//! What the tables hold, as MySQL sends it: names and keys as bytes, documents as text.

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::deserialize::{self, FromSql, FromSqlRow};
use diesel::mysql::{Mysql, MysqlValue};
use diesel::sql_types::{BigInt, Datetime, Integer, Nullable, Text};
use leasehold_sql::{Stored, StoredTime};

/// A time as MySQL sends it. May be one that no calendar has, such as `0000-00-00`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromSqlRow)]
pub(crate) struct Time(Option<NaiveDateTime>);

impl StoredTime for Time {
    fn get(self) -> Option<DateTime<Utc>> {
        self.0.map(|time| time.and_utc())
    }
}

impl FromSql<Datetime, Mysql> for Time {
    fn from_sql(value: MysqlValue<'_>) -> deserialize::Result<Self> {
        Ok(Self(FromSql::<Datetime, Mysql>::from_sql(value).ok()))
    }
}

pub(crate) type JobSql = (
    BigInt,
    Text,
    Text,
    Integer,
    Nullable<Text>,
    Text,
    Text,
    Integer,
    Integer,
    Datetime,
    Nullable<Datetime>,
    Nullable<Text>,
    BigInt,
    Nullable<Datetime>,
    Nullable<Text>,
    Integer,
    Datetime,
    Datetime,
);

/// A row of `job_queue`.
pub(crate) type JobRow = leasehold_sql::JobRow<Stored, Stored, i32, Time>;

pub(crate) type FinishedSql = (
    BigInt,
    Text,
    Text,
    Integer,
    Nullable<Text>,
    Text,
    Text,
    Integer,
    Integer,
    BigInt,
    Text,
    Nullable<Text>,
    Nullable<Text>,
    Integer,
    Nullable<Text>,
    Datetime,
    Nullable<Datetime>,
    Datetime,
);

/// A row of `job_history`.
pub(crate) type FinishedRow = leasehold_sql::FinishedRow<Stored, Stored, i32, Time>;
