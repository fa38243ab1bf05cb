//! A text and a time, as databases keep them.

use std::ops::Deref;

use chrono::{DateTime, Utc};
use diesel::backend::Backend;
use diesel::deserialize::{self, FromSql, FromSqlRow};
use diesel::sql_types::{Binary, Text};
use leasehold_core::{JobId, Result, StoreError};

/// A text out of a table.
pub trait StoredText {
    /// The text, if it is one.
    ///
    /// # Errors
    /// [`Corrupt`](StoreError::Corrupt), naming `column` and `id`.
    fn text(self, column: &str, id: JobId) -> Result<String>;
}

impl StoredText for String {
    fn text(self, _: &str, _: JobId) -> Result<String> {
        Ok(self)
    }
}

/// A time out of a table. May be one that no calendar has.
pub trait StoredTime: Copy {
    /// The time, whole and within the calendar.
    fn get(self) -> Option<DateTime<Utc>>;

    /// The time of which it is known that the store has made it.
    fn or_epoch(self) -> DateTime<Utc> {
        self.get().unwrap_or(DateTime::UNIX_EPOCH)
    }
}

/// Microseconds since 1970.
impl StoredTime for i64 {
    fn get(self) -> Option<DateTime<Utc>> {
        DateTime::from_timestamp_micros(self)
    }
}

/// A text of a database that keeps any bytes; what is no UTF-8 is nobody's name and no document.
#[derive(Debug, FromSqlRow)]
pub struct Stored(std::result::Result<String, String>);

/// The text, in which what cannot be read is marked: good enough for a log, and no valid name.
impl Deref for Stored {
    type Target = str;
    fn deref(&self) -> &str {
        match &self.0 {
            Ok(text) | Err(text) => text,
        }
    }
}

impl StoredText for Stored {
    fn text(self, column: &str, id: JobId) -> Result<String> {
        self.0.map_err(|_| StoreError::corrupt(format!("{column} of job {id} is no UTF-8")))
    }
}

impl<DB> FromSql<Text, DB> for Stored
where
    DB: Backend,
    Vec<u8>: FromSql<Binary, DB>,
{
    fn from_sql(value: DB::RawValue<'_>) -> deserialize::Result<Self> {
        let bytes = Vec::<u8>::from_sql(value)?;
        let marked =
            |error: std::string::FromUtf8Error| String::from_utf8_lossy(error.as_bytes()).into_owned();
        Ok(Self(String::from_utf8(bytes).map_err(marked)))
    }
}
