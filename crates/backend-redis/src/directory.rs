//! What a handle knows of the queues and their policies, and how it stays true.
//!
//! Each shard has a stamp: which server, which version of the policies, and which numbering of queues. Every script compares
//! it with the one that its caller went by: whoever is behind is sent away, catches up and comes again. What is known
//! of queues is no more than a cache of numbers and names.

use std::collections::HashMap;

use leasehold_core::{EffectivePolicy, Policies, QueueName, QueuePattern, QueuePolicy, QueuePrefix};

use crate::keys::{Layout, Shard};

/// How many queues are remembered. Those forgotten are asked for again.
const NAMES: usize = 65_536;

/// The stamp of a shard that nothing is known of.
const NONE: &str = "-";

/// Queues and policies.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// By number.
    names: HashMap<u32, QueueName>,
    policies: Policies,
    /// Which server, as far as what it holds goes, and the version of its policies; empty before anything is known.
    pub(crate) instance: String,
    pub(crate) version: String,
    /// By shard.
    stamps: Vec<String>,
}

impl Directory {
    pub(crate) fn stamp(&self, shard: Shard) -> &str {
        self.stamps.get(shard.index()).filter(|stamp| !stamp.is_empty()).map_or(NONE, String::as_str)
    }

    pub(crate) fn policies(&self) -> &Policies {
        &self.policies
    }

    pub(crate) fn policy(&self, queue: &QueueName) -> EffectivePolicy {
        if self.policies.is_empty() { EffectivePolicy::default() } else { self.policies.effective(queue) }
    }

    /// What holds for all queues with this prefix, if it is one and the same.
    pub(crate) fn policy_of_all(&self, prefix: &QueuePrefix) -> Option<EffectivePolicy> {
        let inside = |(pattern, _): &(QueuePattern, QueuePolicy)| match pattern {
            QueuePattern::Exact(queue) => prefix.matches(queue),
            QueuePattern::Prefix(other) => {
                other.as_str().len() > prefix.as_str().len() && other.as_str().starts_with(prefix.as_str())
            }
        };
        if self.policies.iter().any(inside) {
            return None;
        }
        let any = QueueName::new(if prefix.as_str().is_empty() { "any" } else { prefix.as_str() }).ok()?;
        Some(self.policy(&any))
    }

    /// The queue of this number, if it is known.
    pub(crate) fn name(&self, number: u32) -> Option<&QueueName> {
        self.names.get(&number)
    }

    pub(crate) fn learn(&mut self, number: u32, name: &QueueName) {
        if self.names.get(&number) == Some(name) {
            return;
        }
        if self.names.len() >= NAMES {
            self.names.clear();
        }
        self.names.insert(number, name.clone());
    }

    /// Takes over the policies of another version.
    pub(crate) fn adopt(&mut self, instance: String, version: String, policies: &HashMap<String, String>) {
        if !self.instance.is_empty() && self.instance != instance {
            tracing::error!("the server has lost what it had");
            self.names.clear();
        }
        self.policies =
            Policies::new(policies.iter().filter_map(|(pattern, policy)| decode(pattern, policy)));
        (self.instance, self.version) = (instance, version);
    }

    /// Takes over the stamp of a shard. Whether its policies are those that are known.
    pub(crate) fn stamped(&mut self, layout: &Layout, shard: Shard, stamp: String) -> bool {
        let generation = |stamp: &str| stamp.rsplit(' ').next().map(str::to_owned);
        if generation(self.stamp(shard)) != generation(&stamp) {
            let count = layout.count();
            self.names.retain(|number, _| (number % count) as usize != shard.index());
        }
        let current = stamp.starts_with(&format!("{} {} ", self.instance, self.version));
        self.stamps.resize(layout.count() as usize, String::new());
        if current {
            self.stamps[shard.index()] = stamp;
        }
        current
    }
}

fn decode(pattern: &str, policy: &str) -> Option<(QueuePattern, QueuePolicy)> {
    let policy = serde_json::from_str::<QueuePolicy>(policy)
        .inspect_err(|error| tracing::error!(%error, pattern, "a stored policy was passed over"));
    Some((pattern.parse().ok()?, policy.ok()?))
}
