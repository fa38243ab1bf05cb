//! The tests of the contract's types.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests may")]

mod book;
mod decisions;
mod derived;
mod filters;
mod input;
mod mock;
mod properties;
mod words;
