//! What operators have said about queues.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use leasehold_core::{
    Delay, EffectivePolicy, Policies, QueueName, QueuePattern, QueuePolicy, QueuePrefix, Queues,
};

use crate::state::State;

/// Replaces the policy of a pattern, and works out anew what holds for its queues (P9).
pub(crate) fn set_policy(state: &mut State, pattern: &QueuePattern, policy: QueuePolicy) {
    state.policies.set(pattern, policy);
    for slot in state.queues.among(&Queues::from(pattern.clone())) {
        let queue = &mut state.queues[slot];
        let before = std::mem::replace(&mut queue.policy, state.policies.effective(&queue.name));
        if before.rate != queue.policy.rate {
            queue.full_at = None; // A changed rate limit starts with a full bucket.
        }
        state.queues.touch_with_news(slot); // W1: it may be a resume, or a wider limit.
    }
}

/// Pauses or resumes a pattern, and leaves the rest of its policy alone (P10).
pub(crate) fn set_paused(state: &mut State, pattern: &QueuePattern, paused: bool) {
    let mut policy = state.policies.all.set_for(pattern);
    policy.paused = match paused {
        true => Some(true),
        // To say nothing is not enough where a wider pattern says that the queue is paused.
        false => state.policies.paused_by_wider(pattern).then_some(false),
    };
    set_policy(state, pattern, policy);
}

/// All policies, with an index: finding what holds for a queue takes no longer for there being many.
#[derive(Default)]
pub(crate) struct PolicyBook {
    pub(crate) all: Policies,
    exact: HashMap<QueueName, QueuePolicy>,
    prefixes: HashMap<QueuePrefix, QueuePolicy>,
    /// How many prefixes there are of each length.
    lengths: BTreeMap<usize, usize>,
    /// What holds where nothing was said; shared, so that queues without a policy pay nothing.
    default: Arc<EffectivePolicy>,
}

impl PolicyBook {
    /// What holds for a queue: its own policy, then the prefixes from the longest to the shortest (P8).
    pub(crate) fn effective(&self, queue: &QueueName) -> Arc<EffectivePolicy> {
        let own = self.exact.get(queue);
        let mut said = own.into_iter().chain(self.prefixes_of(queue.as_str())).peekable();
        if said.peek().is_none() {
            return self.default.clone();
        }
        Arc::new(said.fold(QueuePolicy::default(), |sum, policy| sum.or(policy)).into())
    }

    /// The shortest retention that anybody has set.
    pub(crate) fn shortest_retention(&self) -> Option<Delay> {
        self.all.iter().filter_map(|(_, policy)| policy.retention).min()
    }

    fn set(&mut self, pattern: &QueuePattern, policy: QueuePolicy) {
        match pattern {
            QueuePattern::Exact(name) if policy.is_empty() => drop(self.exact.remove(name)),
            QueuePattern::Exact(name) => drop(self.exact.insert(name.clone(), policy.clone())),
            QueuePattern::Prefix(prefix) => self.set_prefix(prefix, &policy),
        }
        self.all.set(pattern.clone(), policy);
    }

    fn set_prefix(&mut self, prefix: &QueuePrefix, policy: &QueuePolicy) {
        let length = prefix.as_str().len();
        if self.prefixes.remove(prefix).is_some() {
            self.lengths.entry(length).and_modify(|count| *count -= 1);
            self.lengths.retain(|_, count| *count > 0);
        }
        if !policy.is_empty() {
            self.prefixes.insert(prefix.clone(), policy.clone());
            *self.lengths.entry(length).or_default() += 1;
        }
    }

    /// Whether a queue of this pattern is paused by a prefix that is not the pattern itself. The longest that says
    /// anything about it decides.
    fn paused_by_wider(&self, pattern: &QueuePattern) -> bool {
        let paused = match pattern {
            QueuePattern::Exact(name) => self.prefixes_of(name.as_str()).find_map(|policy| policy.paused),
            QueuePattern::Prefix(prefix) => {
                let own = self.prefixes.contains_key(prefix);
                self.prefixes_of(prefix.as_str()).skip(usize::from(own)).find_map(|policy| policy.paused)
            }
        };
        paused == Some(true)
    }

    /// The policies of the prefixes with which `text` begins, from the longest to the shortest.
    fn prefixes_of<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a QueuePolicy> {
        let lengths = self.lengths.range(..=text.len()).rev();
        lengths.filter_map(|(length, _)| self.prefixes.get(text.get(..*length)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_of_policies_that_were_removed() {
        let mut book = PolicyBook::default();
        let paused = QueuePolicy { paused: Some(true), ..QueuePolicy::default() };
        let patterns = ["a*", "b*", "abc*", "abc"].map(|pattern| pattern.parse::<QueuePattern>().unwrap());
        for policy in [paused.clone(), paused, QueuePolicy::default()] {
            patterns.iter().for_each(|pattern| book.set(pattern, policy.clone()));
            let lengths: Vec<_> = book.lengths.clone().into_iter().collect();
            let (prefixes, expected) = match policy.is_empty() {
                true => (0, vec![]),
                false => (3, vec![(1, 2), (3, 1)]),
            };
            assert_eq!((book.prefixes.len(), lengths), (prefixes, expected));
        }
        assert!(book.exact.is_empty() && book.all.is_empty());
    }
}
