//! What a handle knows of the queues and their policies, and how it stays true.
//!
//! Queues are numbered when their first job is enqueued, and a number never changes hands, so what is known stays
//! known. Policies have a version, which every script compares with the one that its caller went by: whoever is behind
//! is sent away, catches up and comes again.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use leasehold_core::{EffectivePolicy, JobId, Policies, QueueName, QueuePattern, QueuePolicy, Queues};

use crate::id;

/// Queues and policies.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// By number, less one.
    names: Vec<Option<QueueName>>,
    numbers: BTreeMap<QueueName, u32>,
    policies: Policies,
    version: String,
    /// Which server, as far as what it holds goes; empty before anything is known.
    pub(crate) instance: String,
}

impl Directory {
    /// How many queues are known: all up to this number.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether all this was learned from a server that has lost it since.
    pub(crate) fn is_of_another(&self, instance: &str) -> bool {
        !self.instance.is_empty() && self.instance != instance
    }

    pub(crate) fn version(&self) -> &str {
        if self.version.is_empty() { "0" } else { &self.version }
    }

    pub(crate) fn policies(&self) -> &Policies {
        &self.policies
    }

    pub(crate) fn policy(&self, queue: &QueueName) -> EffectivePolicy {
        if self.policies.is_empty() { EffectivePolicy::default() } else { self.policies.effective(queue) }
    }

    pub(crate) fn number(&self, queue: &QueueName) -> Option<u32> {
        self.numbers.get(queue).copied()
    }

    /// The queue of a job, if it is known.
    pub(crate) fn queue_of(&self, job: JobId) -> Option<&QueueName> {
        self.names.get(id::queue(job)? - 1)?.as_ref()
    }

    /// The queues asked for, by name: those that were named, known or not, or the known ones that match.
    pub(crate) fn select(&self, queues: &Queues) -> Vec<QueueName> {
        match queues {
            Queues::Named(names) => names.to_vec(),
            Queues::Matching(prefix) => {
                let from = match QueueName::new(prefix.as_str()) {
                    Ok(name) => Bound::Included(name),
                    Err(_) => Bound::Unbounded,
                };
                let range = self.numbers.range((from, Bound::Unbounded)).map(|(name, _)| name);
                range.take_while(|name| prefix.matches(name)).cloned().collect()
            }
        }
    }

    /// Learns the names of the queues from number `known + 1` on. Somebody may have learned them in the meantime.
    pub(crate) fn learn(&mut self, known: usize, names: Vec<String>) {
        for (index, name) in names.into_iter().enumerate().skip(self.names.len().saturating_sub(known)) {
            let number = u32::try_from(known + index + 1).unwrap_or(u32::MAX);
            let name = QueueName::new(name)
                .inspect_err(|error| tracing::error!(%error, number, "a stored queue was passed over"))
                .ok();
            if let Some(name) = &name {
                self.numbers.insert(name.clone(), number);
            }
            self.names.push(name);
        }
    }

    /// Takes over the policies of another version.
    pub(crate) fn adopt(&mut self, version: String, policies: HashMap<String, String>) {
        self.policies =
            Policies::new(policies.iter().filter_map(|(pattern, policy)| decode(pattern, policy)));
        self.version = version;
    }
}

fn decode(pattern: &str, policy: &str) -> Option<(QueuePattern, QueuePolicy)> {
    let policy = serde_json::from_str::<QueuePolicy>(policy)
        .inspect_err(|error| tracing::error!(%error, pattern, "a stored policy was passed over"));
    Some((pattern.parse().ok()?, policy.ok()?))
}
