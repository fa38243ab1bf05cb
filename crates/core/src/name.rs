//! Names and keys: text that has been checked once and is valid from then on.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bounded::Delay;
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

        text_conversions!($name);
    };
}

/// What every checked text can be made from and turned into, by its `new` and its `as_str`.
macro_rules! text_conversions {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self.as_str(), f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                self.as_str()
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
                name.as_str().to_owned()
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
    /// The beginning of queue names, as in the pattern `game:*`: 0 to 128 bytes of printable ASCII without `*`.
    /// The empty prefix matches every queue.
    QueuePrefix, "queue", prefix
);

/// A key under which [`TxStore::once_in`](crate::TxStore::once_in) remembers that something was done:
/// 1 to 255 bytes of UTF-8 without U+0000, compared byte for byte.
///
/// The key has a retention: how long a store keeps it at least. Default: 30 days. It is no part of the key's identity: two
/// keys with the same text are the same key, and a store goes by the retention of the call that was answered true.
/// Serialized, a key is its text alone.
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_core::IdempotencyKey;
///
/// let key = IdempotencyKey::new("charge order 17")?;
/// assert_eq!(key.kept_for(), Duration::from_secs(30 * 24 * 60 * 60));
/// let longer = key.clone().retention(Duration::from_secs(365 * 24 * 60 * 60))?;
/// assert_eq!(longer, key);
/// # Ok::<(), leasehold_core::Invalid>(())
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IdempotencyKey {
    text: Arc<str>,
    retention: Delay,
}

impl IdempotencyKey {
    /// Checks `text`. The retention is 30 days.
    ///
    /// # Errors
    /// [`Invalid`] with the field `idempotency_key`.
    pub fn new(text: impl AsRef<str>) -> Result<Self, Invalid> {
        let text = text.as_ref();
        key(text).map_err(|problem| Invalid::new("idempotency_key", problem))?;
        Ok(Self { text: text.into(), retention: Delay::KEY_RETENTION })
    }

    /// The same key, kept for at least this long: nothing to a hundred years, in whole microseconds.
    ///
    /// Choose it longer than the time for which the same call can come again.
    ///
    /// # Errors
    /// [`Invalid`] with the field `retention`.
    pub fn retention(self, length: Duration) -> Result<Self, Invalid> {
        let retention = Delay::new(length).map_err(|invalid| invalid.of("retention"))?;
        Ok(Self { retention, ..self })
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The retention: how long the key is kept at least, from the call of `once_in` on.
    pub fn kept_for(&self) -> Duration {
        self.retention.get()
    }
}

text_conversions!(IdempotencyKey);

impl PartialEq for IdempotencyKey {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for IdempotencyKey {}

impl PartialOrd for IdempotencyKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for IdempotencyKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl Hash for IdempotencyKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

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
