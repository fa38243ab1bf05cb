//! Finished jobs: redriven, pruned.

use diesel::sql_types::{BigInt, Nullable, Text};
use leasehold_core::{FinalStatus, JobId, Prune, PruneAge, QueueName, Queues, Redrive, Redriven, time};
use leasehold_sql::Stored;

use crate::error::Failure;
use crate::policy::rules;
use crate::room::make_room;
use crate::selection::{Selection, ids};
use crate::session::Session;
use crate::statement::Param;

/// How many dead letters are looked at in one go, at least.
const PAGE: usize = 100;

/// Puts dead letters back into their queues, by id from the smallest (X1).
pub(crate) fn redrive(session: &mut Session<'_>, request: &Redrive) -> Result<Redriven, Failure> {
    let limit = request.limit.as_usize();
    let mut answer = Redriven::default();
    let mut after = 0;
    loop {
        let dead = dead(session, request, after, limit.max(PAGE))?;
        let Some((last, ..)) = dead.last() else {
            return Ok(answer);
        };
        after = *last;
        for (id, queue, key) in dead {
            if answer.jobs.len() == limit {
                return Ok(answer);
            }
            if let Some(id) = redrive_one(session, id, &queue, key.as_deref())? {
                answer.jobs.push(JobId::new(id));
            } else if answer.conflicts.len() < limit {
                answer.conflicts.push(JobId::new(id)); // X4
            }
        }
    }
}

type Dead = (i64, Stored, Option<Stored>);

fn dead(session: &mut Session<'_>, request: &Redrive, after: i64, page: usize) -> Result<Vec<Dead>, Failure> {
    let selection = Selection::of(&request.queues);
    let sql = session.sql;
    let params = vec![
        selection.names(),
        selection.from(),
        selection.to(),
        request.kind.as_ref().map(|kind| kind.as_str()).into(),
        ids(request.ids.as_deref()),
        after.into(),
        (page as i64).into(),
    ];
    session.rows::<(BigInt, Text, Nullable<Text>), _>(&sql.dead, params)
}

/// The id of the dead letter, if it is back: not if a live job has its key.
fn redrive_one(
    session: &mut Session<'_>,
    mut id: i64,
    queue: &str,
    key: Option<&str>,
) -> Result<Option<i64>, Failure> {
    let sql = session.sql;
    if let Some(key) = key {
        let taken = session.row::<BigInt, i64>(&sql.taken, vec![queue.into(), key.into()])?;
        if taken.is_some() {
            return Ok(None);
        }
    }
    if let Err(failure) = session.count(&sql.redrive, vec![id.into(), session.now.into()]) {
        let Failure::Taken(_) = failure else { return Err(failure) };
        id += make_room(session, &[id])?; // C7
        session.count(&sql.redrive, vec![id.into(), session.now.into()])?;
    }
    session.count(&sql.forget, vec![std::iter::once(id).collect()])?;
    session.wake(queue);
    Ok(Some(id))
}

/// Forgets finished jobs, queue by queue, then passed idempotency keys; says how many.
pub(crate) fn prune(session: &mut Session<'_>, request: &Prune) -> Result<u64, Failure> {
    let mut rules = rules(session)?;
    let mut left = u64::from(request.limit.get());
    for queue in queues(session, &request.queues)? {
        let age = match request.age {
            PruneAge::OlderThan(age) => Some(age),
            PruneAge::Retention => rules.of_stored(&queue).retention, // U3
        };
        let Some(age) = age.filter(|_| left > 0) else {
            continue;
        };
        let params = vec![
            queue.into(),
            time::earlier(session.now, age.get()).into(),
            statuses(request.statuses.as_deref()),
            ids(request.ids.as_deref()),
            (left as i64).into(),
        ];
        let sql = session.sql;
        left -= session.count(&sql.prune, params)?.min(left);
    }
    if request.forgets_keys() && left > 0 {
        let sql = session.sql;
        left -= session.count(&sql.forget_keys, vec![session.now.into(), (left as i64).into()])?.min(left); // U4
    }
    Ok(u64::from(request.limit.get()) - left)
}

/// The queues asked for that may have finished jobs.
fn queues(session: &mut Session<'_>, queues: &Queues) -> Result<Vec<String>, Failure> {
    if let Queues::Named(names) = queues {
        return Ok(names.iter().map(QueueName::to_string).collect());
    }
    let selection = Selection::of(queues);
    let sql = session.sql;
    let names = session.rows::<Text, Stored>(&sql.finished_queues, vec![selection.from(), selection.to()])?;
    Ok(names.iter().map(|name| name.to_string()).collect())
}

/// Statuses as a statement takes them: null for any.
pub(crate) fn statuses<'a>(statuses: Option<&[FinalStatus]>) -> Param<'a> {
    match statuses {
        Some(statuses) => statuses.iter().map(|status| status.as_str()).collect(),
        None => Param::Text(None),
    }
}
