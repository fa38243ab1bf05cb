//! What the tables hold, as Postgres sends it.

use chrono::{DateTime, Utc};
use diesel::deserialize::{self, FromSql, FromSqlRow};
use diesel::pg::{Pg, PgValue};
use diesel::sql_types::{BigInt, Integer, Json as SqlJson, Nullable, Text, Timestamptz};
use leasehold_core::{JobId, Result};
use leasehold_sql::{StoredText, StoredTime};

/// Microseconds from 1970 to 2000, where Postgres begins to count.
const YEAR_2000: i64 = 946_684_800_000_000;

/// A time as Postgres sends it. May be one that no calendar has, such as `infinity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromSqlRow)]
pub(crate) struct Time(i64);

impl StoredTime for Time {
    fn get(self) -> Option<DateTime<Utc>> {
        DateTime::from_timestamp_micros(self.0.checked_add(YEAR_2000)?)
    }
}

impl FromSql<Timestamptz, Pg> for Time {
    fn from_sql(value: PgValue<'_>) -> deserialize::Result<Self> {
        Ok(Self(i64::from_be_bytes(value.as_bytes().try_into()?)))
    }
}

/// The text of a JSON document.
#[derive(Debug, FromSqlRow)]
pub(crate) struct Document(String);

impl FromSql<SqlJson, Pg> for Document {
    fn from_sql(value: PgValue<'_>) -> deserialize::Result<Self> {
        Ok(Self(std::str::from_utf8(value.as_bytes())?.to_owned()))
    }
}

impl StoredText for Document {
    fn text(self, _: &str, _: JobId) -> Result<String> {
        Ok(self.0)
    }
}

pub(crate) type JobSql = (
    BigInt,
    Text,
    Text,
    Integer,
    Nullable<Text>,
    SqlJson,
    SqlJson,
    Integer,
    Integer,
    Timestamptz,
    Nullable<Timestamptz>,
    Nullable<Text>,
    BigInt,
    Nullable<Timestamptz>,
    Nullable<SqlJson>,
    Integer,
    Timestamptz,
    Timestamptz,
);

/// A row of `job_queue`.
pub(crate) type JobRow = leasehold_sql::JobRow<String, Document, i32, Time>;

pub(crate) type FinishedSql = (
    BigInt,
    Text,
    Text,
    Integer,
    Nullable<Text>,
    SqlJson,
    SqlJson,
    Integer,
    Integer,
    BigInt,
    Text,
    Nullable<SqlJson>,
    Nullable<SqlJson>,
    Integer,
    Nullable<Text>,
    Timestamptz,
    Nullable<Timestamptz>,
    Timestamptz,
);

/// A row of `job_history`.
pub(crate) type FinishedRow = leasehold_sql::FinishedRow<String, Document, i32, Time>;
