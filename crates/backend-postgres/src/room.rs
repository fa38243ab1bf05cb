//! Ids that are there twice: a live job has the id of a finished one.
//!
//! It happens when the sequence of ids starts anew, as after a switch-over by logical replication, which does not bring sequences along.
//! Such a job could never end, and one of them would fail a whole reclaim. So the finished job gets another id, the sequence is moved on,
//! and the statement is run again.

use diesel::sql_types::BigInt;
use diesel_async::AsyncPgConnection;

use crate::Shared;
use crate::error::Failure;
use crate::sql::Statements;
use crate::statement::Statement;

const FAILED: &str =
    "an id is taken, and `make_room()` failed: has the store's role UPDATE on the sequence of ids?";

/// Runs an operation on a connection, and once more if an id was taken.
macro_rules! with_room {
    ($conn:expr, $sql:expr, $operation:expr) => {{
        let answer = $operation.await;
        let is_taken = matches!(answer, Err($crate::error::Failure::Taken(_)));
        if is_taken && $crate::room::has_made_room($conn, $sql).await { $operation.await } else { answer }
    }};
}
pub(crate) use with_room;

/// Makes room; if that fails, says why.
pub(crate) async fn has_made_room(conn: &mut AsyncPgConnection, sql: &Statements) -> bool {
    let made = make_room(conn, sql).await;
    if let Err(failure) = &made {
        tracing::warn!(?failure, "{FAILED}");
    }
    made.is_ok()
}

async fn make_room(conn: &mut AsyncPgConnection, sql: &Statements) -> Result<(), Failure> {
    let moved: Vec<i64> = Statement::<BigInt>::new(&sql.make_room, Vec::new()).rows(conn).await?;
    tracing::warn!(
        finished_jobs = moved.first(),
        "live jobs had the ids of finished ones, which were given other ids: was the sequence of ids reset?"
    );
    Ok(())
}

impl Shared {
    /// After a statement in a user's transaction has found an id taken: makes room on a connection of the store's, so that the
    /// transaction can be run again.
    pub(crate) async fn make_room_for(&self, failure: Failure) -> Failure {
        let Failure::Taken(error) = failure else { return failure };
        let made = match self.connection("make_room").await {
            Ok(mut conn) => {
                let answer = make_room(&mut conn, &self.sql).await;
                conn.judge(answer, crate::error::Effect::Write)
            }
            Err(error) => Err(error),
        };
        match made {
            Ok(()) => Failure::Again(error),
            Err(reason) => {
                tracing::warn!(%reason, "{FAILED}");
                Failure::Taken(error)
            }
        }
    }
}
