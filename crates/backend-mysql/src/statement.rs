//! One statement with its arguments, as diesel sends it.

use std::borrow::Cow;
use std::marker::PhantomData;

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::mysql::Mysql;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::result::QueryResult;
use diesel::sql_types::{BigInt, Datetime, Double, Nullable, Text as SqlText};
use diesel_async::methods::{ExecuteDsl, LoadQuery};
use diesel_async::{AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use futures_util::future::{BoxFuture, FutureExt};

use crate::error::Failure;

/// Runs a statement that has no arguments and no rows.
pub(crate) async fn say(conn: &mut AsyncMysqlConnection, text: &str) -> Result<(), Failure> {
    match conn.batch_execute(text).await {
        Ok(()) => Ok(()),
        Err(error) => Err(Failure::of(conn, error).await),
    }
}

/// An argument of a statement. Long lists are JSON arrays.
#[derive(Debug, Clone)]
pub(crate) enum Param<'a> {
    Text(Option<Cow<'a, str>>),
    Int(Option<i64>),
    Double(Option<f64>),
    Time(Option<NaiveDateTime>),
}

impl Param<'_> {
    /// At most so many bytes are sent of it.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.as_ref().map_or(0, |text| text.len()),
            Self::Int(_) | Self::Double(_) => 8,
            Self::Time(_) => 12,
        }
    }
}

impl<'a> From<&'a str> for Param<'a> {
    fn from(value: &'a str) -> Self {
        Self::Text(Some(Cow::Borrowed(value)))
    }
}

impl<'a> From<Option<&'a str>> for Param<'a> {
    fn from(value: Option<&'a str>) -> Self {
        Self::Text(value.map(Cow::Borrowed))
    }
}

impl From<String> for Param<'_> {
    fn from(value: String) -> Self {
        Self::Text(Some(Cow::Owned(value)))
    }
}

impl<'a> From<Cow<'a, str>> for Param<'a> {
    fn from(value: Cow<'a, str>) -> Self {
        Self::Text(Some(value))
    }
}

impl From<i64> for Param<'_> {
    fn from(value: i64) -> Self {
        Self::Int(Some(value))
    }
}

impl From<u32> for Param<'_> {
    fn from(value: u32) -> Self {
        Self::Int(Some(value.into()))
    }
}

impl From<usize> for Param<'_> {
    fn from(value: usize) -> Self {
        Self::Int(Some(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

impl From<Option<i64>> for Param<'_> {
    fn from(value: Option<i64>) -> Self {
        Self::Int(value)
    }
}

impl From<Option<f64>> for Param<'_> {
    fn from(value: Option<f64>) -> Self {
        Self::Double(value)
    }
}

impl From<DateTime<Utc>> for Param<'_> {
    fn from(value: DateTime<Utc>) -> Self {
        Self::Time(Some(value.naive_utc()))
    }
}

impl From<Option<DateTime<Utc>>> for Param<'_> {
    fn from(value: Option<DateTime<Utc>>) -> Self {
        Self::Time(value.map(|time| time.naive_utc()))
    }
}

/// Ids as a JSON array.
impl FromIterator<i64> for Param<'_> {
    fn from_iter<I: IntoIterator<Item = i64>>(ids: I) -> Self {
        let mut array = String::from("[");
        for id in ids {
            if array.len() > 1 {
                array.push(',');
            }
            array.push_str(&id.to_string());
        }
        array.push(']');
        array.into()
    }
}

/// Texts as a JSON array.
impl<'t> FromIterator<&'t str> for Param<'_> {
    fn from_iter<I: IntoIterator<Item = &'t str>>(texts: I) -> Self {
        serde_json::Value::from_iter(texts).to_string().into()
    }
}

/// A statement whose rows have the SQL types `Row`, by position.
///
/// diesel prepares what it does not know anew on every call. A statement of ours is one of a fixed set of texts, so it is
/// prepared once per connection: that saves a round trip.
pub(crate) struct Statement<'a, Row> {
    text: &'a str,
    params: Vec<Param<'a>>,
    row: PhantomData<fn() -> Row>,
}

impl<'a, Row: 'a> Statement<'a, Row> {
    pub(crate) fn new(text: &'a str, params: Vec<Param<'a>>) -> Self {
        Self { text, params, row: PhantomData }
    }

    /// Sends it, and reads its rows. Boxed, or the compiler cannot see that the future may be sent between threads.
    pub(crate) fn rows<'c, U>(
        self,
        conn: &'c mut AsyncMysqlConnection,
    ) -> BoxFuture<'c, Result<Vec<U>, Failure>>
    where
        'a: 'c,
        U: Send + 'c,
        Self: LoadQuery<'a, AsyncMysqlConnection, U>,
    {
        async move {
            match RunQueryDsl::load(self, &mut *conn).await {
                Ok(rows) => Ok(rows),
                Err(error) => Err(Failure::of(conn, error).await),
            }
        }
        .boxed()
    }

    /// The same; `None` if the server has answered with an error of one of these numbers.
    pub(crate) fn rows_unless<'c, U>(
        self,
        expected: &'static [i64],
        conn: &'c mut AsyncMysqlConnection,
    ) -> BoxFuture<'c, Result<Option<Vec<U>>, Failure>>
    where
        'a: 'c,
        U: Send + 'c,
        Self: LoadQuery<'a, AsyncMysqlConnection, U>,
    {
        async move {
            match RunQueryDsl::load(self, &mut *conn).await {
                Ok(rows) => Ok(Some(rows)),
                Err(error) => Failure::unless(expected, conn, error).await.map(|_| None),
            }
        }
        .boxed()
    }

    /// Sends it, and reads how many rows were changed.
    pub(crate) fn count<'c>(self, conn: &'c mut AsyncMysqlConnection) -> BoxFuture<'c, Result<u64, Failure>>
    where
        'a: 'c,
        Self: ExecuteDsl<AsyncMysqlConnection>,
    {
        async move {
            match RunQueryDsl::execute(self, &mut *conn).await {
                Ok(count) => Ok(count as u64),
                Err(error) => Err(Failure::of(conn, error).await),
            }
        }
        .boxed()
    }

    /// The same; `None` if the server has answered with an error of one of these numbers.
    pub(crate) fn count_unless<'c>(
        self,
        expected: &'static [i64],
        conn: &'c mut AsyncMysqlConnection,
    ) -> BoxFuture<'c, Result<Option<u64>, Failure>>
    where
        'a: 'c,
        Self: ExecuteDsl<AsyncMysqlConnection>,
    {
        async move {
            match RunQueryDsl::execute(self, &mut *conn).await {
                Ok(count) => Ok(Some(count as u64)),
                Err(error) => Failure::unless(expected, conn, error).await.map(|_| None),
            }
        }
        .boxed()
    }
}

/// No static id: the cache goes by the text and the types of the arguments.
impl<Row> QueryId for Statement<'_, Row> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<Row> Query for Statement<'_, Row> {
    type SqlType = Row;
}

impl<Row> QueryFragment<Mysql> for Statement<'_, Row> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Mysql>) -> QueryResult<()> {
        out.push_sql(self.text);
        for param in &self.params {
            match param {
                Param::Text(value) => out.push_bind_param_value_only::<Nullable<SqlText>, _>(value)?,
                Param::Int(value) => out.push_bind_param_value_only::<Nullable<BigInt>, _>(value)?,
                Param::Double(value) => out.push_bind_param_value_only::<Nullable<Double>, _>(value)?,
                Param::Time(value) => out.push_bind_param_value_only::<Nullable<Datetime>, _>(value)?,
            }
        }
        Ok(())
    }

    fn is_safe_to_cache_prepared(&self, _: &Mysql) -> QueryResult<bool> {
        Ok(true)
    }
}

impl<Row, C> diesel::RunQueryDsl<C> for Statement<'_, Row> {}
