//! Whose turn it is.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use leasehold_core::{QueueName, QueuePrefix};

/// How many prefixes are remembered. More are hardly ever in use at once; those forgotten start again.
const PREFIXES: usize = 1024;

/// Which queue of each prefix was served last (D11). Losing it costs a turn and no promise.
#[derive(Debug, Default)]
pub struct Turns(Mutex<HashMap<QueuePrefix, QueueName>>);

impl Turns {
    /// The queue that was served last.
    pub fn last(&self, prefix: &QueuePrefix) -> Option<QueueName> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(prefix).cloned()
    }

    /// This queue was served.
    pub fn served(&self, prefix: &QueuePrefix, queue: QueueName) {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if turns.len() >= PREFIXES {
            turns.clear();
        }
        turns.insert(prefix.clone(), queue);
    }
}
