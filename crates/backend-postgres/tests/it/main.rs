//! The tests of the Postgres backend on real servers. Its conformance suites are the target `conformance`.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests may")]

mod chaos;
mod commits;
mod corrupt;
mod counts;
mod default_isolation;
mod enqueue;
mod failover;
mod gather;
mod hints;
mod ids;
mod isolation;
mod language;
mod large;
mod later;
mod limited;
mod lost;
mod migrations;
mod plans;
mod small_queues;
mod torture;
mod waiting;

#[cfg(all(feature = "sqlx", feature = "tokio-postgres"))]
mod conformance_drivers;
#[cfg(all(feature = "sqlx", feature = "tokio-postgres"))]
mod drivers;

#[path = "../support/mod.rs"]
mod support;
