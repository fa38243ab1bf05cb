//! The tests of the memory backend. Its conformance suite is the target `conformance`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests may")]

mod clock;
mod effects;
mod hints;
mod recount;
mod transactions;
mod turns;

#[path = "../support/mod.rs"]
mod support;
