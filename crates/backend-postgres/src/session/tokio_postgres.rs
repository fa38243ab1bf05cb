//! Sending statements by tokio-postgres.
//!
//! It keeps no prepared statements, and a connection that is the user's is no place to keep ours. So a statement goes
//! out with the types of its arguments: one message, one answer.

use async_trait::async_trait;
use postgres_types::{ToSql, Type};
use tokio_postgres::{Row, Transaction};

use leasehold_core::JobId;

use super::{Completed, Keyed, Session, Told};
use crate::error::Failure;
use crate::events::{Place, Places};
use crate::statement::Param;

type Typed<'a> = (&'a (dyn ToSql + Sync), Type);

/// The same for a transaction and for a reference to it, on which several statements can be sent at once.
macro_rules! session {
    ($conn:ty) => {
        #[async_trait]
        impl Session for $conn {
            async fn numbers(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Vec<i64>, Failure> {
                rows(self, text, &params, |row| row.try_get(0)).await
            }

            async fn keyed(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Vec<Keyed>, Failure> {
                rows(self, text, &params, keyed).await
            }

            async fn told(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Vec<Told>, Failure> {
                rows(self, text, &params, told).await
            }

            async fn completed(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Completed, Failure> {
                let rows = rows(self, text, &params, completed).await?;
                Ok(rows.into_iter().next().unwrap_or_default())
            }

            async fn places(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Places, Failure> {
                Ok(rows(self, text, &params, place).await?.into_iter().collect())
            }

            async fn count(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<u64, Failure> {
                let params: Vec<_> = params.iter().map(typed).collect();
                Ok(self.execute_typed(text, &params).await?)
            }
        }
    };
}

session!(Transaction<'_>);
session!(&Transaction<'_>);

async fn rows<T>(
    transaction: &Transaction<'_>,
    text: &str,
    params: &[Param<'_>],
    read: impl Fn(&Row) -> Result<T, tokio_postgres::Error>,
) -> Result<Vec<T>, Failure> {
    let params: Vec<_> = params.iter().map(typed).collect();
    let rows = transaction.query_typed(text, &params).await?;
    Ok(rows.iter().map(read).collect::<Result<_, _>>()?)
}

fn keyed(row: &Row) -> Result<Keyed, tokio_postgres::Error> {
    Ok(Keyed {
        id: row.try_get(0)?,
        queue: row.try_get(1)?,
        key: row.try_get(2)?,
        deduplicated: row.try_get::<_, Option<bool>>(3)?.unwrap_or_default(),
    })
}

fn completed(row: &Row) -> Result<Completed, tokio_postgres::Error> {
    Ok(Completed { jobs: row.try_get::<_, Option<Vec<i64>>>(0)?.unwrap_or_default(), wake: row.try_get(1)? })
}

fn place(row: &Row) -> Result<(JobId, Place), tokio_postgres::Error> {
    let place = Place {
        queue: row.try_get(1)?,
        epoch: row.try_get(2)?,
        is_leased: row.try_get(3)?,
        at: Some(row.try_get(4)?),
    };
    Ok((JobId::new(row.try_get(0)?), place))
}

fn told(row: &Row) -> Result<Told, tokio_postgres::Error> {
    Ok(Told {
        place: row.try_get(0)?,
        fate: row.try_get(1)?,
        available_at: row.try_get(2)?,
        wake: row.try_get(3)?,
    })
}

fn typed<'a>(param: &'a Param<'_>) -> Typed<'a> {
    match param {
        Param::Text(value) => (value, Type::TEXT),
        Param::Int(value) => (value, Type::INT4),
        Param::BigInt(value) => (value, Type::INT8),
        Param::Double(value) => (value, Type::FLOAT8),
        Param::Bool(value) => (value, Type::BOOL),
        Param::Time(value) => (value, Type::TIMESTAMPTZ),
        Param::Texts(values) => (values, Type::TEXT_ARRAY),
        Param::Smalls(values) => (values, Type::INT2_ARRAY),
        Param::Ints(values) => (values, Type::INT4_ARRAY),
        Param::BigInts(values) => (values, Type::INT8_ARRAY),
        Param::Doubles(values) => (values, Type::FLOAT8_ARRAY),
        Param::Times(values) => (values, Type::TIMESTAMPTZ_ARRAY),
    }
}
