//! The conformance suite on a file, and on a database in memory with a clock that the harness moves.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod memory;
#[path = "../support/mod.rs"]
mod support;

use leasehold_conformance::Suites;

fn main() {
    Suites::new().whole("file", support::File).whole("memory", memory::Memory).main();
}
