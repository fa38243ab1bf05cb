//! The conformance suite on Postgres 15, on 18, and on both behind PgBouncer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

#[path = "../support/mod.rs"]
mod support;

use leasehold_conformance::Suites;
use leasehold_postgres::FirstTry;
use support::Server;

/// What another planner, another version of the server or events by NOTIFY can change: every statement that is written for
/// speed, locks, and events. The types of input and the texts of refusals cannot differ.
const BY_VERSION: &[&str] = &[
    "enqueue",
    "dequeue",
    "left_behind",
    "order",
    "settle",
    "reclaim",
    "redrive",
    "stats",
    "next",
    "limits",
    "rate",
    "fifo",
    "events",
    "wake",
    "race",
    "bulk",
    "transaction",
    "interleave",
    "model",
];

/// What a pool of server connections between the store and the server can change: statements that are kept prepared,
/// settings of a session, transactions and connections that are given up.
const BY_POOLING: &[&str] = &[
    "enqueue",
    "dequeue",
    "left_behind",
    "settle",
    "race",
    "bulk",
    "cancel",
    "transaction",
    "interleave",
    "wake",
];

/// What the statements for claims must answer alike, whichever is tried first.
const BY_CLAIM: &[&str] = &["dequeue", "left_behind", "order", "pause"];

fn main() {
    let direct = |name| Server::direct(name, "LEASEHOLD_TEST_POSTGRES_URL");
    Suites::new()
        .whole(
            "pg15",
            Server::direct("postgres 15", "LEASEHOLD_TEST_POSTGRES_URL").with_events().on_a_hostile_path(),
        )
        .part("pg18", Server::direct("postgres 18", "LEASEHOLD_TEST_POSTGRES18_URL"), BY_VERSION)
        .whole("bouncer15", Server::bounced("postgres 15 behind pgbouncer", "LEASEHOLD_TEST_PGBOUNCER_URL"))
        .part(
            "bouncer18",
            Server::bounced("postgres 18 behind pgbouncer", "LEASEHOLD_TEST_PGBOUNCER18_URL"),
            BY_POOLING,
        )
        .part("small15", direct("postgres 15, every queue for small").trying_first(FirstTry::Small), BY_CLAIM)
        .part(
            "limited15",
            direct("postgres 15, every queue for limited").trying_first(FirstTry::Limited),
            BY_CLAIM,
        )
        .main();
}
