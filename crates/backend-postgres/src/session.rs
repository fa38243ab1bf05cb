//! The few shapes in which statements answer, whatever driver they are sent by.
//!
//! A user's transaction may run on diesel-async, tokio-postgres or sqlx. Those have nothing in common but the SQL, so each
//! says here how to send a statement and read its rows, and the operations are written once on top of that.

mod asking;
#[cfg(feature = "sqlx")]
mod sqlx;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use diesel::sql_types::{Array, BigInt, Bool, Nullable, Text, Timestamptz};
use diesel_async::AsyncPgConnection;
use leasehold_core::JobId;
use leasehold_sql::StoredTime;

use crate::error::Failure;
use crate::events::{Place, Places};
use crate::lent;
use crate::row::Time;
use crate::statement::{Param, Statement};

pub(crate) use self::asking::Asking;

/// An answer of `enqueue_keyed.sql`: the job that has a unique key now.
#[derive(Debug)]
pub(crate) struct Keyed {
    pub(crate) id: i64,
    pub(crate) queue: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) deduplicated: bool,
}

/// An answer of `settle.sql` or `settle_v2.sql`: what became of the item at this place.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) place: i64,
    pub(crate) fate: String,
    pub(crate) available_at: Option<DateTime<Utc>>,
    pub(crate) wake: Option<String>,
}

/// An answer of `settle_one.sql`: what was completed, and the queues in which something became leasable.
#[derive(Debug, Default)]
pub(crate) struct Completed {
    pub(crate) jobs: Vec<i64>,
    pub(crate) wake: Vec<String>,
}

/// A connection on which the operations of a transaction can be run.
#[async_trait]
pub(crate) trait Session: Send {
    /// Rows of one number.
    async fn numbers(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Vec<i64>, Failure>;
    /// Rows of `enqueue_keyed.sql`.
    async fn keyed(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Vec<Keyed>, Failure>;
    /// Rows of `settle.sql` or `settle_v2.sql`.
    async fn told(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Vec<Told>, Failure>;
    /// The one row of `settle_one.sql`, if there is one.
    async fn completed(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Completed, Failure>;
    /// Rows of `places.sql`.
    async fn places(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Places, Failure>;
    /// How many rows there were or were changed.
    async fn count(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<u64, Failure>;
    /// The server is read-only: if the driver allows it, the pool of the connection is told not to lend it again.
    fn give_up(&mut self) {}
}

/// The same for a connection and for a reference to it, on which several statements can be sent at once.
macro_rules! session {
    ($conn:ty; $($more:tt)*) => {
        #[async_trait]
        impl Session for $conn {
            async fn numbers(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Vec<i64>, Failure> {
                Ok(Statement::<BigInt>::new(text, params).rows(self).await?)
            }

            async fn keyed(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Vec<Keyed>, Failure> {
                type Row = (BigInt, Nullable<Text>, Nullable<Text>, Nullable<Bool>);
                let rows: Vec<(i64, Option<String>, Option<String>, Option<bool>)> =
                    Statement::<Row>::new(text, params).rows(self).await?;
                let keyed = |(id, queue, key, deduplicated): (_, _, _, Option<bool>)| Keyed {
                    id,
                    queue,
                    key,
                    deduplicated: deduplicated.unwrap_or_default(),
                };
                Ok(rows.into_iter().map(keyed).collect())
            }

            async fn told(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Vec<Told>, Failure> {
                type Row = (BigInt, Text, Nullable<Timestamptz>, Nullable<Text>);
                let rows: Vec<(i64, String, Option<Time>, Option<String>)> =
                    Statement::<Row>::new(text, params).rows(self).await?;
                let told = |(place, fate, available_at, wake): (_, _, Option<Time>, _)| Told {
                    place,
                    fate,
                    available_at: available_at.map(Time::or_epoch),
                    wake,
                };
                Ok(rows.into_iter().map(told).collect())
            }

            async fn completed(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Completed, Failure> {
                type Row = (Nullable<Array<BigInt>>, Array<Text>);
                let rows: Vec<(Option<Vec<i64>>, Vec<String>)> =
                    Statement::<Row>::new(text, params).rows(self).await?;
                let completed = |(jobs, wake): (Option<_>, _)| Completed { jobs: jobs.unwrap_or_default(), wake };
                Ok(rows.into_iter().next().map(completed).unwrap_or_default())
            }

            async fn places(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<Places, Failure> {
                type Row = (BigInt, Text, BigInt, Bool, Timestamptz);
                let rows: Vec<(i64, String, i64, bool, Time)> =
                    Statement::<Row>::new(text, params).rows(self).await?;
                let place = |(id, queue, epoch, is_leased, at): (i64, _, _, _, Time)| {
                    (JobId::new(id), Place { queue, epoch, is_leased, at: Some(at.or_epoch()) })
                };
                Ok(rows.into_iter().map(place).collect())
            }

            async fn count(&mut self, text: &str, params: Vec<Param<'_>>) -> Result<u64, Failure> {
                Statement::<()>::new(text, params).count(self).await
            }

            $($more)*
        }
    };
}

session!(&AsyncPgConnection;);
session!(AsyncPgConnection;
    fn give_up(&mut self) {
        lent::give_up(self);
    }
);
