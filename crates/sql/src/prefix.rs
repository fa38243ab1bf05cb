//! What the names of the tables begin with.

use std::fmt;
use std::str::FromStr;

use leasehold_core::{Invalid, Problem};

/// Long enough for a name, short enough to be read in front of one.
const PREFIX_BYTES: usize = 48;

/// What the names of the tables begin with: nothing by default, or up to 48 letters, digits and underscores of ASCII, no
/// digit first. To most databases upper and lower case are the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TablePrefix(String);

impl TablePrefix {
    /// Checks `prefix`.
    ///
    /// # Errors
    /// [`Invalid`] with the field `prefix`.
    pub fn new(prefix: impl Into<String>) -> Result<Self, Invalid> {
        let prefix = prefix.into();
        let problem = match prefix.as_bytes() {
            [] => return Ok(Self(prefix)),
            bytes if bytes.len() > PREFIX_BYTES => {
                Problem::TooLong { bytes: bytes.len(), limit: PREFIX_BYTES }
            }
            [first, rest @ ..]
                if is_letter(*first) && rest.iter().all(|b| is_letter(*b) || b.is_ascii_digit()) =>
            {
                return Self::unreserved(prefix);
            }
            _ => Problem::Malformed { expected: "letters, digits and underscores, no digit first" },
        };
        Err(Invalid::new("prefix", problem))
    }

    /// The prefix.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn unreserved(prefix: String) -> Result<Self, Invalid> {
        if prefix.to_ascii_lowercase().starts_with("sqlite_") {
            return Err(Invalid::new(
                "prefix",
                Problem::Malformed { expected: "a name that does not begin with sqlite_" },
            ));
        }
        Ok(Self(prefix))
    }
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

impl fmt::Display for TablePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TablePrefix {
    type Err = Invalid;
    fn from_str(prefix: &str) -> Result<Self, Invalid> {
        Self::new(prefix)
    }
}

impl TryFrom<&str> for TablePrefix {
    type Error = Invalid;
    fn try_from(prefix: &str) -> Result<Self, Invalid> {
        Self::new(prefix)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may")]
mod tests {
    use super::TablePrefix;

    #[test]
    fn prefixes_that_a_database_would_refuse_or_misread_are_refused() {
        for good in ["", "app_", "Jobs2_", "_", &"a".repeat(48)] {
            assert_eq!(TablePrefix::new(good).unwrap().as_str(), good);
        }
        for bad in ["2jobs", "my-jobs", "a\"b", "a.b", "sqlite_", "SQLite_x", "größe", &"a".repeat(49)] {
            assert_eq!(TablePrefix::new(bad).unwrap_err().field, "prefix", "{bad}");
        }
    }
}
