//! The conformance suite on Postgres 15.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

use leasehold_postgres::WakeupMode;

fn main() {
    let url = support::url("LEASEHOLD_TEST_POSTGRES_URL");
    leasehold_conformance::main(support::Server { name: "postgres", url, wakeups: WakeupMode::Notify });
}
