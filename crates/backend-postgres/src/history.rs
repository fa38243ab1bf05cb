//! Finished jobs: redriven, pruned.

use diesel::sql_types::{BigInt, Nullable, Text};
use diesel_async::AsyncPgConnection;
use leasehold_core::{FinalStatus, JobId, Prune, PruneAge, Redrive, Redriven};
use leasehold_sql::micros;

use crate::error::Failure;
use crate::selection::{Selection, ids};
use crate::sql::Statements;
use crate::statement::{Param, Statement};

/// How often a redrive that lost a race for a unique key is tried again.
const RACES: u32 = 100;

/// Puts dead letters back into their queues. Answers with those that are back and their queues, too.
pub(crate) async fn redrive(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    request: &Redrive,
) -> Result<(Redriven, Vec<(JobId, String)>), Failure> {
    for _ in 0..RACES {
        match redrive_once(conn, sql, request).await {
            Err(failure) if failure.is_race() => {}
            answer => return answer,
        }
    }
    redrive_once(conn, sql, request).await
}

async fn redrive_once(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    request: &Redrive,
) -> Result<(Redriven, Vec<(JobId, String)>), Failure> {
    let selection = Selection::of(&request.queues);
    let params = vec![
        selection.names(),
        selection.from(),
        selection.to(),
        request.kind.as_ref().map(|kind| kind.as_str()).into(),
        ids(request.ids.as_deref()),
        (request.limit.get() as i32).into(),
    ];
    let rows: Vec<(i64, Option<String>)> =
        Statement::<(BigInt, Nullable<Text>)>::new(&sql.redrive, params).rows(conn).await?;
    let mut answer = Redriven::default();
    let mut queues = Vec::new();
    for (id, queue) in rows {
        let list = if queue.is_some() { &mut answer.jobs } else { &mut answer.conflicts };
        list.push(JobId::new(id));
        queues.extend(queue.map(|queue| (JobId::new(id), queue)));
    }
    answer.jobs.sort_unstable();
    answer.conflicts.sort_unstable();
    queues.sort_unstable();
    Ok((answer, queues))
}

/// Forgets finished jobs and passed idempotency keys; says how many.
pub(crate) async fn prune(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    request: &Prune,
) -> Result<u64, Failure> {
    let selection = Selection::of(&request.queues);
    let age = match request.age {
        PruneAge::OlderThan(age) => Some(micros(age)),
        PruneAge::Retention => None,
    };
    let params = vec![
        age.into(),
        selection.names(),
        selection.from(),
        selection.to(),
        statuses(request.statuses.as_deref()),
        ids(request.ids.as_deref()),
        (request.limit.get() as i32).into(),
        request.forgets_keys().into(),
    ];
    let counts: Vec<i64> = Statement::<BigInt>::planned_anew(&sql.prune, params).rows(conn).await?;
    Ok(counts.into_iter().sum::<i64>().unsigned_abs())
}

/// Statuses as a statement takes them: null for any.
pub(crate) fn statuses<'a>(statuses: Option<&[FinalStatus]>) -> Param<'a> {
    match statuses {
        Some(statuses) => statuses.iter().map(|status| status.as_str()).collect(),
        None => Param::Texts(None),
    }
}
