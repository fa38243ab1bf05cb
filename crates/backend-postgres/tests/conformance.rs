//! The conformance suite on Postgres 15.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

fn main() {
    leasehold_conformance::main(support::Server::direct("postgres 15", "LEASEHOLD_TEST_POSTGRES_URL"));
}
