//! Versions of Rust.

use std::fmt;
use std::str::FromStr;

/// A version of Rust: `1.88` and `1.88.0` are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RustVersion([u32; 3]);

impl RustVersion {
    /// Whether `other` differs at most in its third number.
    pub(crate) fn same_release(self, other: Self) -> bool {
        self.0[..2] == other.0[..2]
    }
}

impl FromStr for RustVersion {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a version of Rust");
        let mut numbers = [0; 3];
        let words: Vec<&str> = text.split('.').collect();
        if words.len() > numbers.len() {
            return Err(wrong());
        }
        for (number, word) in numbers.iter_mut().zip(words) {
            *number = word.parse().map_err(|_| wrong())?;
        }
        Ok(Self(numbers))
    }
}

impl fmt::Display for RustVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        match patch {
            0 => write!(f, "{major}.{minor}"),
            _ => write!(f, "{major}.{minor}.{patch}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RustVersion;

    fn version(text: &str) -> RustVersion {
        text.parse().unwrap()
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(version("1.88"), version("1.88.0"));
        assert!(version("1.9") < version("1.10"));
        assert!(version("1.88.1") > version("1.88"));
        assert!(version("2") > version("1.99.9"));
    }

    #[test]
    fn a_patch_is_the_same_release() {
        assert!(version("1.88").same_release(version("1.88.3")));
        assert!(!version("1.88").same_release(version("1.89")));
    }

    #[test]
    fn what_is_no_version_is_refused() {
        for text in ["", "stable", "1.", "1.88.0.1", "1.88-beta"] {
            assert!(text.parse::<RustVersion>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn versions_are_written_short() {
        assert_eq!(version("1.88.0").to_string(), "1.88");
        assert_eq!(version("1.88.2").to_string(), "1.88.2");
    }
}
