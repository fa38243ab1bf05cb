//! One statement with its arguments, as diesel sends it.

use std::borrow::Cow;
use std::marker::PhantomData;

use chrono::{DateTime, Utc};
use diesel::query_builder::{AstPass, BoxedSqlQuery, Query, QueryFragment, QueryId, SqlQuery};
use diesel::query_dsl::methods::{ExecuteDsl, LoadQuery};
use diesel::result::QueryResult;
use diesel::sql_types::{BigInt, Double, Nullable, Text as SqlText};
use diesel::sqlite::{Sqlite, SqliteConnection};
use diesel::{RunQueryDsl, connection::DefaultLoadingMode};

use crate::error::Failure;

/// An argument of a statement. Times are microseconds, lists are JSON arrays.
#[derive(Debug, Clone)]
pub(crate) enum Param<'a> {
    Text(Option<Cow<'a, str>>),
    Int(Option<i64>),
    Double(Option<f64>),
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
        Self::Int(Some(value.timestamp_micros()))
    }
}

impl From<Option<DateTime<Utc>>> for Param<'_> {
    fn from(value: Option<DateTime<Utc>>) -> Self {
        Self::Int(value.map(|time| time.timestamp_micros()))
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
/// prepared once per connection.
pub(crate) struct Statement<'a, Row> {
    query: BoxedSqlQuery<'a, Sqlite, SqlQuery>,
    row: PhantomData<fn() -> Row>,
}

impl<'a, Row: 'a> Statement<'a, Row> {
    pub(crate) fn new(text: &str, params: Vec<Param<'a>>) -> Self {
        let query = diesel::sql_query(text).into_boxed();
        Self { query: params.into_iter().fold(query, bind), row: PhantomData }
    }

    /// Runs it, and reads its rows.
    pub(crate) fn rows<U>(self, conn: &mut SqliteConnection) -> Result<Vec<U>, Failure>
    where
        Self: LoadQuery<'a, SqliteConnection, U, DefaultLoadingMode>,
    {
        Ok(RunQueryDsl::load(self, conn)?)
    }

    /// Runs it, and tells how many rows were changed.
    pub(crate) fn count(self, conn: &mut SqliteConnection) -> Result<u64, Failure>
    where
        Self: ExecuteDsl<SqliteConnection>,
    {
        Ok(RunQueryDsl::execute(self, conn)? as u64)
    }
}

fn bind<'a>(
    query: BoxedSqlQuery<'a, Sqlite, SqlQuery>,
    param: Param<'a>,
) -> BoxedSqlQuery<'a, Sqlite, SqlQuery> {
    match param {
        Param::Text(value) => query.bind::<Nullable<SqlText>, _>(value),
        Param::Int(value) => query.bind::<Nullable<BigInt>, _>(value),
        Param::Double(value) => query.bind::<Nullable<Double>, _>(value),
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

impl<Row> QueryFragment<Sqlite> for Statement<'_, Row> {
    fn walk_ast<'b>(&'b self, out: AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
        self.query.walk_ast(out)
    }

    fn is_safe_to_cache_prepared(&self, _: &Sqlite) -> QueryResult<bool> {
        Ok(true)
    }
}

impl<Row, C> RunQueryDsl<C> for Statement<'_, Row> {}
