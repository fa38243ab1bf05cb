//! One statement with its arguments, as diesel sends it.

use std::borrow::Cow;
use std::marker::PhantomData;

use chrono::{DateTime, Utc};
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, BoxedSqlQuery, Query, QueryFragment, QueryId, SqlQuery};
use diesel::result::QueryResult;
use diesel::sql_types::{
    Array, BigInt, Bool, Double, Integer, Nullable, SmallInt, Text as SqlText, Timestamptz,
};

use diesel_async::methods::{ExecuteDsl, LoadQuery};
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use futures_util::future::{BoxFuture, FutureExt};

use crate::error::{self, Failure};

/// Values, each of which may be missing.
pub(crate) type List<T> = Option<Vec<Option<T>>>;

/// An argument of a statement. The same for every driver.
#[derive(Debug, Clone)]
pub(crate) enum Param<'a> {
    Text(Option<Cow<'a, str>>),
    Int(Option<i32>),
    BigInt(Option<i64>),
    Double(Option<f64>),
    Bool(Option<bool>),
    Time(Option<DateTime<Utc>>),
    Texts(List<Cow<'a, str>>),
    Smalls(List<i16>),
    Ints(List<i32>),
    BigInts(List<i64>),
    Doubles(List<f64>),
    Times(List<DateTime<Utc>>),
}

macro_rules! params {
    ($($variant:ident, $many:ident, $type:ty);+ $(;)?) => {
        $(
            impl<'a> From<$type> for Param<'a> {
                fn from(value: $type) -> Self {
                    Self::$variant(Some(value))
                }
            }

            impl<'a> From<Option<$type>> for Param<'a> {
                fn from(value: Option<$type>) -> Self {
                    Self::$variant(value)
                }
            }

            impl<'a> FromIterator<$type> for Param<'a> {
                fn from_iter<I: IntoIterator<Item = $type>>(values: I) -> Self {
                    Self::$many(Some(values.into_iter().map(Some).collect()))
                }
            }

            impl<'a> FromIterator<Option<$type>> for Param<'a> {
                fn from_iter<I: IntoIterator<Item = Option<$type>>>(values: I) -> Self {
                    Self::$many(Some(values.into_iter().collect()))
                }
            }
        )+
    };
}

params! {
    Int, Ints, i32;
    BigInt, BigInts, i64;
    Double, Doubles, f64;
    Time, Times, DateTime<Utc>;
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

impl<'a> FromIterator<&'a str> for Param<'a> {
    fn from_iter<I: IntoIterator<Item = &'a str>>(values: I) -> Self {
        values.into_iter().map(Cow::Borrowed).collect()
    }
}

impl<'a> FromIterator<Option<&'a str>> for Param<'a> {
    fn from_iter<I: IntoIterator<Item = Option<&'a str>>>(values: I) -> Self {
        Self::Texts(Some(values.into_iter().map(|value| value.map(Cow::Borrowed)).collect()))
    }
}

impl<'a> FromIterator<Cow<'a, str>> for Param<'a> {
    fn from_iter<I: IntoIterator<Item = Cow<'a, str>>>(values: I) -> Self {
        Self::Texts(Some(values.into_iter().map(Some).collect()))
    }
}

impl From<bool> for Param<'_> {
    fn from(value: bool) -> Self {
        Self::Bool(Some(value))
    }
}

/// A statement whose rows have the SQL types `Row`, by position.
///
/// diesel prepares what it does not know anew on every call. A statement of ours is one of a fixed set of texts, so it is
/// prepared once per connection: that halves the cost of a small one. Lists and numbers for operators are not: what is planned
/// for the values at hand knows how much there is now, and a plan that was kept from when the queue was empty does not.
pub(crate) struct Statement<'a, Row> {
    query: BoxedSqlQuery<'a, Pg, SqlQuery>,
    is_kept: bool,
    row: PhantomData<fn() -> Row>,
}

impl<'a, Row: 'a> Statement<'a, Row> {
    pub(crate) fn new(text: &str, params: Vec<Param<'a>>) -> Self {
        let query = diesel::sql_query(text).into_boxed();
        Self { query: params.into_iter().fold(query, bind), is_kept: true, row: PhantomData }
    }

    /// One that is planned anew each time, for the values at hand.
    pub(crate) fn planned_anew(text: &str, params: Vec<Param<'a>>) -> Self {
        Self { is_kept: false, ..Self::new(text, params) }
    }

    /// Sends it, and reads its rows. Boxed, or the compiler cannot see that the future may be sent between threads.
    pub(crate) fn rows<'c, U>(self, conn: &'c AsyncPgConnection) -> BoxFuture<'c, Result<Vec<U>, Failure>>
    where
        'a: 'c,
        U: Send + 'c,
        Self: LoadQuery<'a, &'c AsyncPgConnection, U>,
    {
        async move {
            let mut on = conn;
            let rows = RunQueryDsl::load(self, &mut on).await;
            match rows {
                Ok(rows) => Ok(rows),
                Err(error) => Err(error::of_statement(conn, error).await),
            }
        }
        .boxed()
    }

    /// Sends it, and reads how many rows there were or were changed.
    pub(crate) fn count<'c>(self, conn: &'c AsyncPgConnection) -> BoxFuture<'c, Result<u64, Failure>>
    where
        'a: 'c,
        Self: ExecuteDsl<&'c AsyncPgConnection>,
    {
        async move {
            let mut on = conn;
            let count = RunQueryDsl::execute(self, &mut on).await;
            match count {
                Ok(count) => Ok(count as u64),
                Err(error) => Err(error::of_statement(conn, error).await),
            }
        }
        .boxed()
    }
}

fn bind<'a>(query: BoxedSqlQuery<'a, Pg, SqlQuery>, param: Param<'a>) -> BoxedSqlQuery<'a, Pg, SqlQuery> {
    match param {
        Param::Text(value) => query.bind::<Nullable<SqlText>, _>(value),
        Param::Int(value) => query.bind::<Nullable<Integer>, _>(value),
        Param::BigInt(value) => query.bind::<Nullable<BigInt>, _>(value),
        Param::Double(value) => query.bind::<Nullable<Double>, _>(value),
        Param::Bool(value) => query.bind::<Nullable<Bool>, _>(value),
        Param::Time(value) => query.bind::<Nullable<Timestamptz>, _>(value),
        Param::Texts(values) => query.bind::<Nullable<Array<Nullable<SqlText>>>, _>(values),
        Param::Smalls(values) => query.bind::<Nullable<Array<Nullable<SmallInt>>>, _>(values),
        Param::Ints(values) => query.bind::<Nullable<Array<Nullable<Integer>>>, _>(values),
        Param::BigInts(values) => query.bind::<Nullable<Array<Nullable<BigInt>>>, _>(values),
        Param::Doubles(values) => query.bind::<Nullable<Array<Nullable<Double>>>, _>(values),
        Param::Times(values) => query.bind::<Nullable<Array<Nullable<Timestamptz>>>, _>(values),
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

impl<Row> QueryFragment<Pg> for Statement<'_, Row> {
    fn walk_ast<'b>(&'b self, out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        self.query.walk_ast(out)
    }

    fn is_safe_to_cache_prepared(&self, _: &Pg) -> QueryResult<bool> {
        Ok(self.is_kept)
    }
}

impl<Row, C> diesel::RunQueryDsl<C> for Statement<'_, Row> {}
