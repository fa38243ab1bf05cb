//! The values of metric labels. There are as many as the builder was told, whatever is enqueued.

use std::borrow::Cow;
use std::collections::HashSet;

use leasehold_core::{Kind, QueueName, Queues, WorkerId};

/// The label of every kind that has no handler of its own.
const OTHER: &str = "other";

/// What the labels of a worker's metrics are made from.
pub(crate) struct Labels {
    pub(crate) worker: WorkerId,
    /// By source.
    pub(crate) queues: Vec<Queues>,
    /// Those that have a handler.
    pub(crate) kinds: HashSet<Kind>,
}

impl Labels {
    pub(crate) fn worker(&self) -> String {
        self.worker.to_string()
    }

    /// A queue that was named to the builder goes by its name, one that matches a pattern by the pattern.
    pub(crate) fn queue<'a>(&'a self, source: usize, queue: &'a QueueName) -> Cow<'a, str> {
        match self.queues.get(source) {
            Some(queues) => queue_label(queues, queue),
            None => Cow::Borrowed(OTHER),
        }
    }

    /// A kind without a handler could be any text.
    pub(crate) fn kind(&self, kind: &Kind) -> String {
        if self.kinds.contains(kind) { kind.to_string() } else { OTHER.to_owned() }
    }
}

/// See [`Labels::queue`].
pub(crate) fn queue_label<'a>(queues: &Queues, queue: &'a QueueName) -> Cow<'a, str> {
    match queues {
        Queues::Named(_) => Cow::Borrowed(queue.as_str()),
        Queues::Matching(prefix) => Cow::Owned(format!("{prefix}*")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_no_more_than_the_builder_named() {
        let labels = Labels {
            worker: WorkerId::new("w").unwrap(),
            queues: vec![Queues::named(["mail"]).unwrap(), "tenant:*".parse().unwrap()],
            kinds: HashSet::from([Kind::new("send").unwrap()]),
        };
        let (mail, tenant) = (QueueName::new("mail").unwrap(), QueueName::new("tenant:7").unwrap());
        assert_eq!(labels.queue(0, &mail), "mail");
        assert_eq!(labels.queue(1, &tenant), "tenant:*");
        assert_eq!(labels.queue(2, &mail), OTHER);
        assert_eq!(labels.kind(&Kind::new("send").unwrap()), "send");
        assert_eq!(labels.kind(&Kind::new("else").unwrap()), OTHER);
        assert_eq!(labels.worker(), "w");
    }
}
