//! The names of keys.
//!
//! All keys of one queue have the tag `{prefix:queue}`, and so are in one hash slot; what is common to all queues has the
//! tag `{prefix}`. On one server a script may touch several tags at once, and does: the queues of a call, the version of the
//! policies, the sequence of jobs. In a cluster it could not.

use std::fmt;

use leasehold_core::{Invalid, Problem, QueueName};

const LIMIT: usize = 64;

/// What the names of all keys begin with: 1 to 64 letters, digits, `_`, `-` or `.`; `leasehold` if nothing is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPrefix(String);

impl KeyPrefix {
    /// Checks `prefix`.
    ///
    /// # Errors
    /// [`Invalid`] with the field `prefix`.
    pub fn new(prefix: impl Into<String>) -> Result<Self, Invalid> {
        let prefix = prefix.into();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if prefix.is_empty() || prefix.len() > LIMIT || !prefix.bytes().all(fits) {
            let expected = "1 to 64 letters, digits, `_`, `-` or `.`";
            return Err(Invalid::new("prefix", Problem::Malformed { expected }));
        }
        Ok(Self(prefix))
    }

    /// The keys of one queue begin so.
    pub(crate) fn queue(&self, queue: &QueueName) -> String {
        format!("{{{self}:{queue}}}")
    }

    /// The number of changes to the policies.
    pub(crate) fn version(&self) -> String {
        self.common("version")
    }

    /// What tells a server that has lost everything from one that has not.
    pub(crate) fn instance(&self) -> String {
        self.common("instance")
    }

    /// Patterns, and their policies as JSON.
    pub(crate) fn policies(&self) -> String {
        self.common("policies")
    }

    /// The names of all queues; the first has the number 1.
    pub(crate) fn queues(&self) -> String {
        self.common("queues")
    }

    /// The number of each queue.
    pub(crate) fn numbers(&self) -> String {
        self.common("numbers")
    }

    /// How many jobs there were.
    pub(crate) fn sequence(&self) -> String {
        self.common("sequence")
    }

    /// Where it is published what happened.
    pub(crate) fn events(&self) -> String {
        self.common("events")
    }

    fn common(&self, name: &str) -> String {
        format!("{{{self}}}:{name}")
    }
}

impl Default for KeyPrefix {
    fn default() -> Self {
        Self("leasehold".to_owned())
    }
}

impl fmt::Display for KeyPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_no_tag_of_its_own() {
        for bad in ["", "a b", "{a}", "a:b", &"a".repeat(65)] {
            assert!(KeyPrefix::new(bad).is_err(), "{bad}");
        }
        let prefix = KeyPrefix::new("my-app").unwrap();
        assert_eq!(prefix.version(), "{my-app}:version");
        assert_eq!(prefix.queue(&QueueName::new("mail").unwrap()), "{my-app:mail}");
    }
}
