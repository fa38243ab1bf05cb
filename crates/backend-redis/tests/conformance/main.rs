//! The conformance suite on Redis 7, on Valkey and on a cluster.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

#[path = "../support/mod.rs"]
mod support;

use leasehold_conformance::Suites;
use support::Server;

/// What another implementation of the server can change: its scripting engine and its publish and subscribe.
const BY_SERVER: &[&str] = &[
    "enqueue",
    "dequeue",
    "order",
    "settle",
    "heartbeat",
    "reclaim",
    "redrive",
    "limits",
    "rate",
    "fifo",
    "events",
    "wake",
    "race",
    "bulk",
    "model",
];

fn main() {
    Suites::new()
        .whole("redis7", Server::new("redis 7", "LEASEHOLD_TEST_REDIS_URL"))
        .whole("cluster", Server::new("redis cluster", "LEASEHOLD_TEST_REDIS_CLUSTER_URL"))
        .part("valkey", Server::new("valkey", "LEASEHOLD_TEST_VALKEY_URL"), BY_SERVER)
        .main();
}
