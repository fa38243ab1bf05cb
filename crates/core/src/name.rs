//! Names and keys: text that has been checked once and is valid from then on.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, Problem};
use crate::limits;

macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $field:literal, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `text`.
            ///
            /// # Errors
            #[doc = concat!("[`Invalid`] with the field `", $field, "`.")]
            pub fn new(text: impl AsRef<str>) -> Result<Self, Invalid> {
                let text = text.as_ref();
                $check(text).map_err(|problem| Invalid::new($field, problem))?;
                Ok(Self(text.into()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Invalid;
            fn from_str(text: &str) -> Result<Self, Invalid> {
                Self::new(text)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = Invalid;
            fn try_from(text: &str) -> Result<Self, Invalid> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Invalid;
            fn try_from(text: String) -> Result<Self, Invalid> {
                Self::new(text)
            }
        }

        impl From<&$name> for $name {
            fn from(name: &$name) -> Self {
                name.clone()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }
    };
}

checked_text!(
    /// The name of a queue: 1 to 128 bytes of printable ASCII without `*`, which belongs to patterns.
    ///
    /// Names are compared byte for byte: `mail`, `Mail` and `mail ` (with a space) are three queues.
    QueueName, "queue", queue_name
);
checked_text!(
    /// The kind of a job, by which a worker finds its handler: 1 to 128 bytes of printable ASCII.
    Kind, "kind", printable
);
checked_text!(
    /// The name of a worker: 1 to 128 bytes of printable ASCII. It is information, never authority.
    WorkerId, "worker", printable
);
checked_text!(
    /// A key of which a queue has at most one live job: 1 to 255 bytes of UTF-8 without U+0000.
    ///
    /// Keys are compared byte for byte, with no folding of case, accents or trailing spaces.
    UniqueKey, "unique_key", key
);
checked_text!(
    /// A key under which [`TxStore::once_in`](crate::TxStore::once_in) remembers that something was done:
    /// 1 to 255 bytes of UTF-8 without U+0000, compared byte for byte.
    IdempotencyKey, "idempotency_key", key
);
checked_text!(
    /// The beginning of queue names, as in the pattern `game:*`: 0 to 128 bytes of printable ASCII without `*`.
    /// The empty prefix matches every queue.
    QueuePrefix, "queue", prefix
);

impl QueuePrefix {
    /// Whether `queue` begins with this prefix.
    pub fn matches(&self, queue: &QueueName) -> bool {
        queue.as_str().starts_with(self.as_str())
    }
}

fn queue_name(text: &str) -> Result<(), Problem> {
    printable(text)?;
    no_star(text)
}

fn prefix(text: &str) -> Result<(), Problem> {
    if text.is_empty() { Ok(()) } else { queue_name(text) }
}

pub(crate) fn printable(text: &str) -> Result<(), Problem> {
    length(text, limits::NAME_BYTES)?;
    match text.bytes().position(|byte| !(0x20..=0x7e).contains(&byte)) {
        Some(at) => Err(Problem::NotPrintableAscii { at }),
        None => Ok(()),
    }
}

fn no_star(text: &str) -> Result<(), Problem> {
    if text.contains('*') { Err(Problem::Reserved { character: '*' }) } else { Ok(()) }
}

fn key(text: &str) -> Result<(), Problem> {
    length(text, limits::KEY_BYTES)?;
    no_nul(text)
}

pub(crate) fn no_nul(text: &str) -> Result<(), Problem> {
    if text.contains('\0') { Err(Problem::Nul) } else { Ok(()) }
}

fn length(text: &str, limit: usize) -> Result<(), Problem> {
    match text.len() {
        0 => Err(Problem::Empty),
        bytes if bytes > limit => Err(Problem::TooLong { bytes, limit }),
        _ => Ok(()),
    }
}
