//! An administrator's word on one job.

use diesel::sql_types::{Bool, Text};
use diesel_async::AsyncPgConnection;
use leasehold_core::{Intervention, JobId, StoreError};

use crate::enqueue::{at, delay_us};
use crate::error::Failure;
use crate::sql::Statements;
use crate::statement::Statement;

/// Does what the administrator says, whoever holds the job. Answers with the job's queue, and whether anything was changed; or why
/// there is none (A5).
pub(crate) async fn intervene(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    id: JobId,
    intervention: &Intervention,
) -> Result<Result<(String, bool), StoreError>, Failure> {
    let number = id.get().into();
    let statement = match intervention {
        Intervention::RetryLater(schedule) => {
            let params = vec![number, delay_us(*schedule).into(), at(*schedule).into()];
            Statement::<(Text, Bool)>::new(&sql.retry_later, params)
        }
        Intervention::Discard { reason } => {
            Statement::new(&sql.discard, vec![number, reason.as_str().into()])
        }
        Intervention::Promote => Statement::new(&sql.promote, vec![number]),
    };
    let queues: Vec<(String, bool)> = statement.rows(conn).await?;
    match queues.into_iter().next() {
        Some(queue) => Ok(Ok(queue)),
        None => Ok(Err(missing(conn, sql, id).await?)),
    }
}

async fn missing(conn: &mut AsyncPgConnection, sql: &Statements, id: JobId) -> Result<StoreError, Failure> {
    let finished: Vec<bool> =
        Statement::<Bool>::new(&sql.is_finished, vec![id.get().into()]).rows(conn).await?;
    Ok(match finished.first() {
        Some(true) => StoreError::conflict(format!("job {id} is finished")),
        _ => StoreError::NotFound(id),
    })
}
