//! The conformance suite on Postgres 18, with claims that always remember where they left off.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

fn main() {
    leasehold_conformance::main(support::Server::direct("postgres 18", "LEASEHOLD_TEST_POSTGRES18_URL"));
}
