//! The conformance suite on Redis 7.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

fn main() {
    leasehold_conformance::main(support::Server::new("redis 7", "LEASEHOLD_TEST_REDIS_URL"));
}
