//! Which queues a request or a policy speaks of.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, Problem};
use crate::limits;
use crate::name::{QueueName, QueuePrefix};

/// One queue by its name, or every queue whose name begins with a prefix. Written `mail` or `game:*`; `*` is all.
///
/// ```
/// use leasehold_core::{QueueName, QueuePattern};
///
/// let games: QueuePattern = "game:*".parse()?;
/// assert!(games.matches(&QueueName::new("game:7")?));
/// assert!(!games.matches(&QueueName::new("mail")?));
/// # Ok::<(), leasehold_core::Invalid>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum QueuePattern {
    /// Exactly this queue.
    Exact(QueueName),
    /// Every queue whose name begins so.
    Prefix(QueuePrefix),
}

impl QueuePattern {
    /// Whether the pattern speaks of `queue`.
    pub fn matches(&self, queue: &QueueName) -> bool {
        match self {
            Self::Exact(name) => name == queue,
            Self::Prefix(prefix) => prefix.matches(queue),
        }
    }
}

impl fmt::Display for QueuePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => name.fmt(f),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

impl FromStr for QueuePattern {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text.strip_suffix('*') {
            Some(prefix) => QueuePrefix::new(prefix).map(Self::Prefix),
            None => QueueName::new(text).map(Self::Exact),
        }
    }
}

impl TryFrom<&str> for QueuePattern {
    type Error = Invalid;
    fn try_from(text: &str) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl TryFrom<String> for QueuePattern {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<QueuePattern> for String {
    fn from(pattern: QueuePattern) -> Self {
        pattern.to_string()
    }
}

impl From<QueueName> for QueuePattern {
    fn from(name: QueueName) -> Self {
        Self::Exact(name)
    }
}

impl From<&QueueName> for QueuePattern {
    fn from(name: &QueueName) -> Self {
        Self::Exact(name.clone())
    }
}

/// The queues that a request looks at: some by name, or all that match a prefix.
///
/// The two differ in more than selection: over *named* queues a claim follows one order of all their jobs; over a
/// *prefix* it gives fair turns between the queues and keeps the order inside each.
///
/// ```
/// use leasehold_core::Queues;
///
/// let two = Queues::named(["mail", "sms"])?;
/// let games: Queues = "game:*".parse()?;
/// # Ok::<(), leasehold_core::Invalid>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Queues {
    /// These queues, in one common order.
    Named(QueueNames),
    /// Every queue that begins so, in fair turns.
    Matching(QueuePrefix),
}

impl Queues {
    /// The queues with these names. Naming one twice is the same as once.
    ///
    /// # Errors
    /// [`Invalid`] with the field `queues` for no name or more than [`limits::BATCH`], `queue` for a bad one.
    pub fn named<N>(names: impl IntoIterator<Item = N>) -> Result<Self, Invalid>
    where
        N: TryInto<QueueName>,
        Invalid: From<N::Error>,
    {
        let names = names.into_iter().map(TryInto::try_into).collect::<Result<Vec<_>, _>>()?;
        QueueNames::new(names).map(Self::Named)
    }

    /// Every queue there is, in fair turns.
    pub fn all() -> Self {
        Self::Matching(QueuePrefix::new("").unwrap_or_else(|_| unreachable!("the empty prefix is valid")))
    }

    /// Whether the request looks at `queue`.
    pub fn contains(&self, queue: &QueueName) -> bool {
        match self {
            Self::Named(names) => names.contains(queue),
            Self::Matching(prefix) => prefix.matches(queue),
        }
    }
}

impl FromStr for Queues {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        text.parse::<QueuePattern>().map(Self::from)
    }
}

impl TryFrom<&str> for Queues {
    type Error = Invalid;
    fn try_from(text: &str) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<QueueName> for Queues {
    fn from(name: QueueName) -> Self {
        Self::Named(QueueNames(vec![name]))
    }
}

impl From<&QueueName> for Queues {
    fn from(name: &QueueName) -> Self {
        name.clone().into()
    }
}

impl From<QueuePattern> for Queues {
    fn from(pattern: QueuePattern) -> Self {
        match pattern {
            QueuePattern::Exact(name) => name.into(),
            QueuePattern::Prefix(prefix) => Self::Matching(prefix),
        }
    }
}

/// One or more queue names, sorted, none twice. Dereferences to a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueNames(Vec<QueueName>);

impl QueueNames {
    fn new(mut names: Vec<QueueName>) -> Result<Self, Invalid> {
        let limit = limits::BATCH as usize;
        match names.len() {
            0 => Err(Invalid::new("queues", Problem::Empty)),
            count if count > limit => Err(Invalid::new("queues", Problem::TooMany { count, limit })),
            _ => {
                names.sort_unstable();
                names.dedup();
                Ok(Self(names))
            }
        }
    }

    fn contains(&self, queue: &QueueName) -> bool {
        self.0.binary_search(queue).is_ok()
    }
}

impl std::ops::Deref for QueueNames {
    type Target = [QueueName];
    fn deref(&self) -> &[QueueName] {
        &self.0
    }
}
