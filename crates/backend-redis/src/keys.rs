//! The names of keys.
//!
//! Each queue belongs to a shard, by a hash of its name. All keys of a queue begin with the tag of its shard, `{prefix:7}`,
//! and so do the indexes of the queues of that shard: a script sees the queues of one shard, and all its keys are in one slot
//! of a cluster. What is common to all shards is with shard 0.

use std::fmt;

use leasehold_core::{Invalid, JobId, Problem, QueueName};

use crate::id;

const LIMIT: usize = 64;

/// The most shards that a prefix can have.
pub(crate) const MOST_SHARDS: u32 = 256;

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

    /// Where it is published what happened.
    pub(crate) fn events(&self) -> String {
        format!("{{{self}}}:events")
    }

    /// A key that is common to all queues. It is with shard 0, which every prefix has.
    pub(crate) fn common(&self, name: &str) -> String {
        format!("{{{self}:0}}:{name}")
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

/// One of the shards of a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Shard(u32);

impl Shard {
    pub(crate) const FIRST: Self = Self(0);

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where the keys of a prefix are.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) prefix: KeyPrefix,
    shards: u32,
}

impl Layout {
    pub(crate) fn new(prefix: KeyPrefix, shards: u32) -> Self {
        Self { prefix, shards: shards.clamp(1, MOST_SHARDS) }
    }

    pub(crate) fn count(&self) -> u32 {
        self.shards
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = Shard> + use<> {
        (0..self.shards).map(Shard)
    }

    pub(crate) fn shard(&self, queue: &QueueName) -> Shard {
        let hash = queue.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        // The low digits of this hash (FNV-1a) differ least where names do.
        Shard(u32::try_from((hash ^ (hash >> 32)) % u64::from(self.shards)).unwrap_or_default())
    }

    /// The shard of a job, and the number of its queue there; `None` if no job has this id.
    pub(crate) fn place(&self, job: JobId) -> Option<(Shard, u32)> {
        let number = id::queue(job)?;
        Some((Shard(number % self.shards), number))
    }

    /// The keys of a shard begin so.
    pub(crate) fn base(&self, shard: Shard) -> String {
        format!("{{{}:{}}}", self.prefix, shard.0)
    }

    /// The keys of one queue begin so.
    pub(crate) fn queue(&self, queue: &QueueName) -> String {
        format!("{{{}:{}}}:{queue}", self.prefix, self.shard(queue).0)
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
        assert_eq!(prefix.common("version"), "{my-app:0}:version");
        assert_eq!(Layout::new(prefix, 1).queue(&QueueName::new("mail").unwrap()), "{my-app:0}:mail");
    }

    /// What is stored depends on it.
    #[test]
    fn the_shard_of_a_queue_never_changes() {
        let layout = Layout::new(KeyPrefix::default(), 16);
        let shard = |name: &str| layout.shard(&QueueName::new(name).unwrap()).index();
        assert_eq!(["mail", "room:1", "room:2", "~"].map(shard), [12, 7, 2, 13]);
    }

    #[test]
    fn queues_spread_over_the_shards() {
        let layout = Layout::new(KeyPrefix::default(), 16);
        let mut counts = [0; 16];
        for number in 0..16_000 {
            counts[layout.shard(&QueueName::new(format!("room:{number}")).unwrap()).index()] += 1;
        }
        assert!(counts.iter().all(|count| (700..1300).contains(count)), "{counts:?}");
    }
}
