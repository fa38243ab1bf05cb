//! The conformance suite on Postgres 18 behind PgBouncer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

fn main() {
    leasehold_conformance::main(support::Server::bounced(
        "postgres 18 behind pgbouncer",
        "LEASEHOLD_TEST_PGBOUNCER18_URL",
    ));
}
