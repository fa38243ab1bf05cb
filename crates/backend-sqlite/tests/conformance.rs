//! The conformance suite on a file.
#![allow(clippy::unwrap_used, reason = "tests may")]

mod support;

fn main() {
    leasehold_conformance::main(support::File);
}
