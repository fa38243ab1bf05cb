//! The tests of the suite itself. The stores that it must catch are the target `saboteurs`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod coverage;
mod report;
