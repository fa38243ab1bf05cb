//! The conformance suite on Valkey.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

fn main() {
    leasehold_conformance::main(support::Server::new("valkey", "LEASEHOLD_TEST_VALKEY_URL"));
}
