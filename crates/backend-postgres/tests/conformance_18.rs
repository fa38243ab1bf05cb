//! The conformance suite on Postgres 18, with claims that always remember where they left off, and with events.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

fn main() {
    let server = support::Server::direct("postgres 18", "LEASEHOLD_TEST_POSTGRES18_URL");
    leasehold_conformance::main(server.with_events());
}
