//! How a check says what it saw.

use std::fmt;

use leasehold_core::contract::Clause;
use leasehold_core::{BoxError, Invalid, StoreError};
use serde::Serialize;
use std::error::Error;

/// Why a check failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The clause that is broken; `None` if the harness failed and nothing can be said of the store.
    pub clause: Option<&'static str>,
    /// What was promised.
    pub promised: String,
    /// What was seen instead.
    pub observed: String,
    /// The check that saw it.
    pub check: &'static str,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.clause {
            Some(clause) => writeln!(f, "clause {clause} is broken")?,
            None => writeln!(f, "the harness failed")?,
        }
        writeln!(f, "  promised: {}", self.promised)?;
        writeln!(f, "  observed: {}", self.observed)?;
        write!(f, "  check:    {}", self.check)
    }
}

/// What goes wrong inside a check, before it is known which check it was.
#[derive(Debug)]
pub(crate) enum Problem {
    /// A clause is broken.
    Broken(Clause, String),
    /// Something that the check took for granted is not so; blamed on the first clause of the check.
    Surprise(String),
    /// The store gave an error where it should have answered; blamed on the first clause of the check.
    Store(StoreError),
    /// The harness gave an error.
    Harness(BoxError),
    /// The check cannot be made on this backend.
    NotApplicable(&'static str),
}

/// What a check answers.
pub(crate) type Outcome<T = ()> = Result<T, Problem>;

impl Problem {
    pub(crate) fn blame(self, check: &'static str, first: Clause) -> Failure {
        let (clause, observed) = match self {
            Self::Broken(clause, observed) => (clause, observed),
            Self::Surprise(observed) => (first, observed),
            Self::Store(error) => (first, format!("unexpected error: {}", chain(&error))),
            Self::Harness(error) => return harness_failure(chain(&*error), check),
            Self::NotApplicable(reason) => return harness_failure(reason.to_owned(), check),
        };
        Failure { clause: Some(clause.id), promised: clause.promise.to_owned(), observed, check }
    }
}

fn harness_failure(observed: String, check: &'static str) -> Failure {
    Failure { clause: None, promised: "a working harness".to_owned(), observed, check }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::Store(invalid.into())
    }
}

impl From<BoxError> for Problem {
    fn from(error: BoxError) -> Self {
        Self::Harness(error)
    }
}

/// An error with everything that caused it.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Fails the check unless `$condition` holds: `ensure!(D2, a == b, "saw {a}")`.
macro_rules! ensure {
    ($clause:ident, $condition:expr, $($observed:tt)+) => {
        if !$condition {
            return Err($crate::failure::Problem::Broken(
                leasehold_core::contract::$clause,
                format!($($observed)+),
            ));
        }
    };
}

/// Fails the check unless two values are equal: `ensure_eq!(S4, "attempts", job.attempts, 1)`.
macro_rules! ensure_eq {
    ($clause:ident, $what:expr, $seen:expr, $expected:expr) => {
        match (&$seen, &$expected) {
            (seen, expected) => {
                $crate::failure::ensure!(
                    $clause,
                    seen == expected,
                    "{}: {seen:?}, expected {expected:?}",
                    $what
                );
            }
        }
    };
}

pub(crate) use {ensure, ensure_eq};
