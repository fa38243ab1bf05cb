//! Headers: small text that travels with a job, such as the trace context.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, Problem};
use crate::limits;
use crate::name;

/// Names and values that travel with a job. Names are 1 to 128 bytes of printable ASCII, values are UTF-8 without
/// U+0000; at most 64 headers and 16 KiB together.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets one header, in place of one with the same name.
    ///
    /// # Errors
    /// [`Invalid`] with the field `header_name`, `header_value` or `headers`; then nothing was set.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) -> Result<(), Invalid> {
        let mut next = self.0.clone();
        next.insert(name.into(), value.into());
        *self = Self::try_from(next)?;
        Ok(())
    }

    /// The value of one header.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All headers, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl TryFrom<BTreeMap<String, String>> for Headers {
    type Error = Invalid;
    fn try_from(headers: BTreeMap<String, String>) -> Result<Self, Invalid> {
        for (name, value) in &headers {
            name::printable(name).map_err(|problem| Invalid::new("header_name", problem))?;
            name::no_nul(value).map_err(|problem| Invalid::new("header_value", problem))?;
        }
        let (count, limit) = (headers.len(), limits::HEADERS);
        if count > limit {
            return Err(Invalid::new("headers", Problem::TooMany { count, limit }));
        }
        let (bytes, limit) = (headers.iter().map(|(n, v)| n.len() + v.len()).sum(), limits::HEADERS_BYTES);
        if bytes > limit {
            return Err(Invalid::new("headers", Problem::TooLong { bytes, limit }));
        }
        Ok(Self(headers))
    }
}

impl From<Headers> for BTreeMap<String, String> {
    fn from(headers: Headers) -> Self {
        headers.0
    }
}
