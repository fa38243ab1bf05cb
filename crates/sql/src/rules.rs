//! What holds for each queue, for the length of an operation.

use std::collections::HashMap;

use leasehold_core::{EffectivePolicy, Policies, QueueName};

/// Policies as they were read once for an operation. While nobody has set one it costs next to nothing.
#[derive(Debug, Default)]
pub struct Rules {
    policies: Policies,
    known: HashMap<QueueName, EffectivePolicy>,
    default: EffectivePolicy,
}

impl Rules {
    /// The rules that these policies make.
    pub fn new(policies: Policies) -> Self {
        Self { policies, ..Self::default() }
    }

    /// Whether nobody has said anything.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    /// What holds for a queue.
    pub fn of(&mut self, queue: &QueueName) -> &EffectivePolicy {
        if self.policies.is_empty() {
            return &self.default;
        }
        self.known.entry(queue.clone()).or_insert_with(|| self.policies.effective(queue))
    }

    /// The same for a name as it is stored; what cannot be a name has no policy.
    pub fn of_stored(&mut self, queue: &str) -> &EffectivePolicy {
        match QueueName::new(queue) {
            Ok(queue) if !self.policies.is_empty() => self.of(&queue),
            _ => &self.default,
        }
    }
}
