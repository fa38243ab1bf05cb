//! The queues, ids and pages that a request asks for, as statements take them.

use leasehold_core::{BatchSize, JobId, QueueName, Queues};
use leasehold_sql::beyond;

use crate::statement::Param;

/// Queues by name, or by the bounds of their names.
pub(crate) struct Selection<'a> {
    names: Option<&'a [QueueName]>,
    bounds: Option<(&'a str, String)>,
}

impl<'a> Selection<'a> {
    pub(crate) fn of(queues: &'a Queues) -> Self {
        match queues {
            Queues::Named(names) => Self { names: Some(names), bounds: None },
            Queues::Matching(prefix) => {
                Self { names: None, bounds: Some((prefix.as_str(), beyond(prefix.as_str()))) }
            }
        }
    }

    /// The names; null if there are bounds.
    pub(crate) fn names(&self) -> Param<'a> {
        match self.names {
            Some(names) => names.iter().map(|name| name.as_str()).collect(),
            None => Param::Texts(None),
        }
    }

    /// The smallest name; null if there are names.
    pub(crate) fn from(&self) -> Param<'a> {
        self.bounds.as_ref().map(|(from, _)| *from).into()
    }

    /// What is larger than every name; null if there are names.
    pub(crate) fn to(&self) -> Param<'_> {
        self.bounds.as_ref().map(|(_, to)| to.as_str()).into()
    }
}

/// Ids as a statement takes them: null for any.
pub(crate) fn ids<'a>(ids: Option<&[JobId]>) -> Param<'a> {
    match ids {
        Some(ids) => ids.iter().map(|id| id.get()).collect(),
        None => Param::BigInts(None),
    }
}

/// One more than a page has: to know whether there is another.
pub(crate) fn one_more(limit: BatchSize) -> Param<'static> {
    (limit.get() as i32).saturating_add(1).into()
}
