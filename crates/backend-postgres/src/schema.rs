//! The name of the schema in which the tables are.

use std::fmt;
use std::str::FromStr;

use leasehold_core::{Invalid, Problem};

/// Postgres cuts longer names off with no more than a notice, so that two of them could be one.
const NAME_BYTES: usize = 63;

/// The name of a Postgres schema: 1 to 63 letters, digits and underscores of ASCII, no digit first. `leasehold` by
/// default. Upper and lower case differ.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Schema(String);

impl Schema {
    /// Checks `name`.
    ///
    /// # Errors
    /// [`Invalid`] with the field `schema`.
    pub fn new(name: impl Into<String>) -> Result<Self, Invalid> {
        let name = name.into();
        let problem = match name.as_bytes() {
            [] => Problem::Empty,
            bytes if bytes.len() > NAME_BYTES => Problem::TooLong { bytes: bytes.len(), limit: NAME_BYTES },
            [first, rest @ ..]
                if is_letter(*first) && rest.iter().all(|b| is_letter(*b) || b.is_ascii_digit()) =>
            {
                return Self::unreserved(name);
            }
            _ => Problem::Malformed { expected: "letters, digits and underscores, no digit first" },
        };
        Err(Invalid::new("schema", problem))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as it stands in a statement.
    pub(crate) fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }

    /// A number for locks and channels that is the schema's own, the same in every process and version (FNV-1a).
    pub(crate) fn number(&self) -> u64 {
        let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        self.0.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, mix)
    }

    fn unreserved(name: String) -> Result<Self, Invalid> {
        if name.starts_with("pg_") {
            return Err(Invalid::new(
                "schema",
                Problem::Malformed { expected: "a name that does not begin with pg_" },
            ));
        }
        Ok(Self(name))
    }
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

impl Default for Schema {
    fn default() -> Self {
        Self("leasehold".to_owned())
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Schema {
    type Err = Invalid;
    fn from_str(name: &str) -> Result<Self, Invalid> {
        Self::new(name)
    }
}

impl TryFrom<&str> for Schema {
    type Error = Invalid;
    fn try_from(name: &str) -> Result<Self, Invalid> {
        Self::new(name)
    }
}

impl TryFrom<String> for Schema {
    type Error = Invalid;
    fn try_from(name: String) -> Result<Self, Invalid> {
        Self::new(name)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may")]
mod tests {
    use super::Schema;

    #[test]
    fn names_that_postgres_would_change_or_refuse_are_refused() {
        for good in ["leasehold", "Jobs_2", "_", &"a".repeat(63)] {
            assert_eq!(Schema::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "2jobs", "my-jobs", "a\"b", "pg_jobs", "größe", &"a".repeat(64)] {
            assert_eq!(Schema::new(bad).unwrap_err().field, "schema", "{bad}");
        }
    }
}
