//! The conformance suite on a cluster of three masters.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

fn main() {
    leasehold_conformance::main(support::Server::new("redis cluster", "LEASEHOLD_TEST_REDIS_CLUSTER_URL"));
}
