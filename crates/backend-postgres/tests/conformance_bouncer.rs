//! The conformance suite on Postgres 15 behind PgBouncer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

fn main() {
    leasehold_conformance::main(support::Server::bounced(
        "postgres 15 behind pgbouncer",
        "LEASEHOLD_TEST_PGBOUNCER_URL",
    ));
}
