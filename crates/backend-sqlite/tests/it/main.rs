//! The tests of the SQLite backend. Its conformance suites are the target `conformance`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "tests may")]

mod corrupt;
mod files;
mod hints;
mod log;
mod migrations;
mod plans;
mod processes;
mod transactions;
mod writer;

#[path = "../support/mod.rs"]
mod support;
