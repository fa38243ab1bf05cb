//! Taking back what dead workers have left.

use diesel::prelude::Queryable;
use diesel::sql_types::{BigInt, Integer, Nullable, Text, Timestamptz};
use diesel_async::AsyncPgConnection;
use leasehold_core::{BatchSize, ReclaimFate, Reclaimed, Result, StoreError};
use leasehold_sql::{StoredTime, readable, reclaimed};

use crate::error::Failure;
use crate::row::Time;
use crate::sql::Statements;
use crate::statement::Statement;

/// Reclaims Expired and Exhausted jobs.
pub(crate) async fn reclaim(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    limit: BatchSize,
) -> Result<Vec<Reclaimed>, Failure> {
    type Row = (BigInt, Text, Text, Integer, Nullable<Text>, Nullable<Timestamptz>);
    let params = vec![(limit.get() as i32).into()];
    let rows: Vec<ReclaimedRow> = Statement::<Row>::new(&sql.reclaim, params).rows(conn).await?;
    Ok(readable(rows))
}

#[derive(Queryable)]
struct ReclaimedRow {
    id: i64,
    queue_name: String,
    kind: String,
    attempts: i32,
    locked_by: Option<String>,
    available_at: Option<Time>,
}

impl TryFrom<ReclaimedRow> for Reclaimed {
    type Error = StoreError;
    fn try_from(row: ReclaimedRow) -> Result<Self> {
        let fate = match row.available_at {
            Some(time) => ReclaimFate::Requeued { available_at: time.or_epoch() },
            None => ReclaimFate::DeadLettered,
        };
        let worker = row.locked_by.as_deref();
        reclaimed(row.id, &row.queue_name, &row.kind, row.attempts.into(), worker, fate)
    }
}
