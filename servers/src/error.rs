//! What can go wrong.

use std::io;

/// Why there is no server: what was tried, and where somebody can help, what to do.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    what: String,
    #[source]
    source: Option<io::Error>,
}

impl Error {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), source: None }
    }

    /// For `map_err`: what we were about to do when the system refused.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self { what, source: Some(source) }
    }
}
