//! The queues, ids and pages that a request asks for, as statements take them.

use leasehold_core::{BatchSize, Direction, FinalStatus, JobId, Queues};
use leasehold_sql::beyond;

use crate::statement::Param;

/// The arguments of `{queues}`.
pub(crate) fn queues(queues: &Queues) -> Vec<Param<'_>> {
    match queues {
        Queues::Named(names) => match &names[..] {
            [name] => vec![name.as_str().into()],
            names => vec![names.iter().map(|name| name.as_str()).collect()],
        },
        Queues::Matching(prefix) if prefix.as_str().is_empty() => Vec::new(),
        Queues::Matching(prefix) => vec![prefix.as_str().into(), beyond(prefix.as_str()).into()],
    }
}

/// An argument that stands twice: `? IS NULL OR column = ?`.
pub(crate) fn twice(param: Param<'_>) -> [Param<'_>; 2] {
    [param.clone(), param]
}

/// Words of a list, without commas in them, as FIND_IN_SET takes them: null for any.
pub(crate) fn words<'a>(words: Option<impl IntoIterator<Item = &'static str>>) -> Param<'a> {
    Param::Text(words.map(|words| words.into_iter().collect::<Vec<_>>().join(",").into()))
}

/// Statuses as a statement takes them: null for any.
pub(crate) fn statuses<'a>(statuses: Option<&[FinalStatus]>) -> Param<'a> {
    words(statuses.map(|statuses| statuses.iter().map(|status| status.as_str())))
}

/// Ids as a statement takes them: null for any.
pub(crate) fn ids<'a>(ids: Option<&[JobId]>) -> Param<'a> {
    match ids {
        Some(ids) => ids.iter().map(|id| id.get()).collect(),
        None => Param::Text(None),
    }
}

/// Where a list begins: beyond the id, or beyond every id at its end.
pub(crate) fn start(after: Option<JobId>, direction: Direction) -> Param<'static> {
    let outside = match direction {
        Direction::OldestFirst => i64::MIN,
        Direction::NewestFirst => i64::MAX,
    };
    after.map_or(outside, JobId::get).into()
}

/// One more than a page has: to know whether there is another.
pub(crate) fn one_more(limit: BatchSize) -> Param<'static> {
    limit.get().saturating_add(1).into()
}
