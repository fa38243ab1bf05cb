//! Taking back what dead workers have left.

use diesel::prelude::Queryable;
use diesel::sql_types::{BigInt, Integer, Nullable, Text, Timestamptz};
use diesel_async::AsyncPgConnection;
use leasehold_core::backend::stored;
use leasehold_core::{
    BatchSize, JobId, Kind, QueueName, ReclaimFate, Reclaimed, Result, StoreError, WorkerId,
};

use crate::error::Failure;
use crate::row::{Time, readable};
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
        let id = JobId::new(row.id);
        let worker = row.locked_by.map(|worker| stored(WorkerId::new(worker), "locked_by", id));
        Ok(Self {
            id,
            queue: stored(QueueName::new(row.queue_name), "queue_name", id)?,
            kind: stored(Kind::new(row.kind), "kind", id)?,
            attempts: row.attempts.unsigned_abs(),
            worker: worker.transpose()?,
            fate: match row.available_at {
                Some(time) => ReclaimFate::Requeued { available_at: time.or_epoch() },
                None => ReclaimFate::DeadLettered,
            },
        })
    }
}
