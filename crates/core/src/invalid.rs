//! The refusal of bad input.

use thiserror::Error;

/// Input that was refused before anything was done: which field, and what is wrong with it.
///
/// ```
/// use leasehold_core::{Problem, QueueName};
///
/// let refused = QueueName::new("x".repeat(129)).unwrap_err();
/// assert_eq!(refused.field, "queue");
/// assert_eq!(refused.problem, Problem::TooLong { bytes: 129, limit: 128 });
/// assert_eq!(refused.to_string(), "queue is 129 bytes long, the limit is 128");
/// ```
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{field} {problem}")]
pub struct Invalid {
    /// The name of the field, as in the API.
    pub field: &'static str,
    /// What is wrong with its value.
    pub problem: Problem,
}

impl Invalid {
    /// A refusal of `field`.
    pub fn new(field: &'static str, problem: Problem) -> Self {
        Self { field, problem }
    }

    /// The same refusal under the name of the field that the caller knows.
    #[must_use]
    pub fn of(self, field: &'static str) -> Self {
        Self { field, ..self }
    }

    pub(crate) fn out_of_range(
        field: &'static str,
        value: impl ToString,
        min: impl ToString,
        max: impl ToString,
    ) -> Self {
        let (value, min, max) = (value.to_string(), min.to_string(), max.to_string());
        Self::new(field, Problem::OutOfRange { value, min, max })
    }
}

/// What is wrong with a refused value, with the limit that it broke.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Problem {
    /// Something must be there.
    #[error("must not be empty")]
    Empty,
    /// More bytes than the limit.
    #[error("is {bytes} bytes long, the limit is {limit}")]
    TooLong {
        /// Length of the refused value.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// More elements than the limit.
    #[error("has {count} elements, the limit is {limit}")]
    TooMany {
        /// Number of elements of the refused value.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// A byte outside printable ASCII (0x20 to 0x7e).
    #[error("must be printable ASCII, byte {at} is not")]
    NotPrintableAscii {
        /// Index of the first such byte.
        at: usize,
    },
    /// A character that has a meaning of its own.
    #[error("must not contain {character:?}, which is reserved for patterns")]
    Reserved {
        /// The character.
        character: char,
    },
    /// U+0000, which not every database can keep in text.
    #[error("must not contain the character U+0000")]
    Nul,
    /// A number or duration outside its range.
    #[error("is {value}, allowed is {min} to {max}")]
    OutOfRange {
        /// The refused value.
        value: String,
        /// The smallest allowed value.
        min: String,
        /// The largest allowed value.
        max: String,
    },
    /// A JSON number that cannot be kept exactly as a 64-bit integer or float.
    #[error("contains the number {number}, which cannot be kept exactly")]
    InexactNumber {
        /// The number as written.
        number: String,
    },
    /// JSON nested deeper than the limit.
    #[error("is nested deeper than {limit} levels")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// Something that does not become JSON.
    #[error("is not JSON: {reason}")]
    NotJson {
        /// Why not.
        reason: String,
    },
    /// The same thing said more than once.
    #[error("must not name {what} more than once")]
    Repeated {
        /// What was named before.
        what: String,
    },
    /// Text that does not have the expected form.
    #[error("must have the form {expected}")]
    Malformed {
        /// The form.
        expected: &'static str,
    },
}

/// So that values which are already checked can be given where text could be.
impl From<std::convert::Infallible> for Invalid {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}
