//! Sending statements by sqlx, which keeps them prepared on the connection.

use async_trait::async_trait;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::{Arguments, Row};

use leasehold_core::JobId;

use super::{Completed, Keyed, Session, Told};
use crate::error::Failure;
use crate::events::{Place, Places};
use crate::statement::Param;

#[async_trait]
impl Session for PgConnection {
    async fn numbers(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Vec<i64>, Failure> {
        rows(self, text, params, |row| row.try_get(0)).await
    }

    async fn keyed(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Vec<Keyed>, Failure> {
        rows(self, text, params, keyed).await
    }

    async fn told(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Vec<Told>, Failure> {
        rows(self, text, params, told).await
    }

    async fn completed(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Completed, Failure> {
        let rows = rows(self, text, params, completed).await?;
        Ok(rows.into_iter().next().unwrap_or_default())
    }

    async fn places(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Places, Failure> {
        Ok(rows(self, text, params, place).await?.into_iter().collect())
    }

    async fn count(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<u64, Failure> {
        Ok(sqlx::query_with(text, arguments(params)?).execute(self).await?.rows_affected())
    }
}

async fn rows<T>(
    conn: &mut PgConnection,
    text: &str,
    params: Vec<Param<'_>>,
    read: impl Fn(&PgRow) -> sqlx::Result<T>,
) -> Result<Vec<T>, Failure> {
    let rows = sqlx::query_with(text, arguments(params)?).fetch_all(conn).await?;
    Ok(rows.iter().map(read).collect::<sqlx::Result<_>>()?)
}

fn keyed(row: &PgRow) -> sqlx::Result<Keyed> {
    Ok(Keyed {
        id: row.try_get(0)?,
        queue: row.try_get(1)?,
        key: row.try_get(2)?,
        deduplicated: row.try_get::<Option<bool>, _>(3)?.unwrap_or_default(),
    })
}

fn completed(row: &PgRow) -> sqlx::Result<Completed> {
    Ok(Completed { jobs: row.try_get::<Option<Vec<i64>>, _>(0)?.unwrap_or_default(), wake: row.try_get(1)? })
}

fn place(row: &PgRow) -> sqlx::Result<(JobId, Place)> {
    let place = Place {
        queue: row.try_get(1)?,
        epoch: row.try_get(2)?,
        is_leased: row.try_get(3)?,
        at: Some(row.try_get(4)?),
    };
    Ok((JobId::new(row.try_get(0)?), place))
}

fn told(row: &PgRow) -> sqlx::Result<Told> {
    Ok(Told {
        place: row.try_get(0)?,
        fate: row.try_get(1)?,
        available_at: row.try_get(2)?,
        wake: row.try_get(3)?,
    })
}

fn arguments(params: Vec<Param<'_>>) -> Result<PgArguments, Failure> {
    let mut arguments = PgArguments::default();
    for param in params {
        add(&mut arguments, param).map_err(Failure::Other)?;
    }
    Ok(arguments)
}

fn add(arguments: &mut PgArguments, param: Param<'_>) -> Result<(), sqlx::error::BoxDynError> {
    match param {
        Param::Text(value) => arguments.add(value),
        Param::Int(value) => arguments.add(value),
        Param::BigInt(value) => arguments.add(value),
        Param::Double(value) => arguments.add(value),
        Param::Bool(value) => arguments.add(value),
        Param::Time(value) => arguments.add(value),
        Param::Texts(values) => arguments.add(values),
        Param::Smalls(values) => arguments.add(values),
        Param::Ints(values) => arguments.add(values),
        Param::BigInts(values) => arguments.add(values),
        Param::Doubles(values) => arguments.add(values),
        Param::Times(values) => arguments.add(values),
    }
}
