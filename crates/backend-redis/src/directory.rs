//! What a handle knows of the queues and their policies, and how it stays true.
//!
//! Each shard has a stamp: which server, which version of the policies, and which numbering of queues. Every script compares
//! it with the one that its caller went by: whoever is behind is sent away, catches up and comes again. What is known
//! of queues is no more than a cache of numbers and names.

use std::collections::{BTreeSet, HashMap};

use leasehold_core::{EffectivePolicy, Policies, QueueName, QueuePattern, QueuePolicy, QueuePrefix};
use serde_json::{Map, Value};

use crate::keys::{Layout, Shard};

/// How many queues are remembered. Those forgotten are asked for again.
const NAMES: usize = 65_536;

/// What policies say in this version.
const FIELDS: [&str; 10] = [
    "paused",
    "concurrency_limit",
    "rate",
    "max_lease",
    "backoff",
    "max_attempts",
    "order",
    "retention",
    "archive",
    "on_expiry",
];

/// The stamp of a shard that nothing is known of.
const NONE: &str = "-";

/// Queues and policies.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// By number.
    names: HashMap<u32, QueueName>,
    policies: Policies,
    /// What newer versions have said in policies and this one does not know, by pattern.
    unknown: HashMap<String, Map<String, Value>>,
    /// Patterns whose policies cannot be read. Their queues are paused: nobody knows what may be leased.
    unreadable: BTreeSet<String>,
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

    /// A pattern whose policy cannot be read.
    pub(crate) fn unreadable(&self) -> Option<&str> {
        self.unreadable.first().map(String::as_str)
    }

    /// A policy as it is stored: with what newer versions have said beside it.
    pub(crate) fn encode(&self, pattern: &QueuePattern, policy: &QueuePolicy) -> serde_json::Result<String> {
        let unknown = self.unknown.get(&pattern.to_string());
        if policy.is_empty() && unknown.is_none() {
            return Ok(String::new());
        }
        let mut fields = match serde_json::to_value(policy)? {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        fields.extend(unknown.cloned().unwrap_or_default());
        serde_json::to_string(&fields)
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
        self.policies = Policies::default();
        (self.unknown, self.unreadable) = (HashMap::new(), BTreeSet::new());
        for (name, text) in policies {
            // No queue matches what is no pattern.
            let Ok(pattern) = name.parse::<QueuePattern>() else { continue };
            let policy = match decode(text) {
                Ok((policy, unknown)) => {
                    if !unknown.is_empty() {
                        self.unknown.insert(name.clone(), unknown);
                    }
                    policy
                }
                Err(error) => {
                    tracing::error!(%error, pattern = name, "a stored policy cannot be read: its queues are paused");
                    self.unreadable.insert(name.clone());
                    QueuePolicy { paused: Some(true), ..QueuePolicy::default() }
                }
            };
            self.policies.set(pattern, policy);
        }
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

/// A stored policy, and what a newer version has said in it.
fn decode(text: &str) -> serde_json::Result<(QueuePolicy, Map<String, Value>)> {
    let fields: Map<String, Value> = serde_json::from_str(text)?;
    let (known, unknown) = fields.into_iter().partition(|(name, _)| FIELDS.contains(&name.as_str()));
    Ok((serde_json::from_value(Value::Object(known))?, unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_policy_is_known() {
        let Ok(Value::Object(fields)) = serde_json::to_value(QueuePolicy::default()) else { panic!() };
        let names: BTreeSet<&str> = fields.keys().map(String::as_str).collect();
        assert_eq!(names, BTreeSet::from(FIELDS));
    }

    #[test]
    fn what_a_newer_version_has_said_is_kept() {
        let mut directory = Directory::default();
        let stored = [("q".to_owned(), r#"{"paused":true,"something_new":[1]}"#.to_owned())];
        directory.adopt("1".to_owned(), "1".to_owned(), &HashMap::from(stored));
        let (pattern, queue) = ("q".parse().unwrap(), QueueName::new("q").unwrap());
        assert!(directory.policy(&queue).paused);
        assert_eq!(directory.unreadable(), None);
        for policy in [QueuePolicy::default(), QueuePolicy { paused: Some(false), ..QueuePolicy::default() }]
        {
            let text = directory.encode(&pattern, &policy).unwrap();
            let (again, unknown) = decode(&text).unwrap();
            assert_eq!((again, unknown.len()), (policy, 1));
        }
    }

    #[test]
    fn a_policy_that_cannot_be_read_pauses_its_queues() {
        for text in ["", "{", "[]", r#"{"paused":"yes"}"#, r#"{"order":"by_chance"}"#] {
            let mut directory = Directory::default();
            let stored = HashMap::from([("q*".to_owned(), text.to_owned())]);
            directory.adopt("1".to_owned(), "1".to_owned(), &stored);
            assert!(directory.policy(&QueueName::new("q1").unwrap()).paused, "{text}");
            assert!(!directory.policy(&QueueName::new("other").unwrap()).paused, "{text}");
            assert_eq!(directory.unreadable(), Some("q*"), "{text}");
        }
    }
}
