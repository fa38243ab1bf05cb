//! The tests of the MySQL and MariaDB backend on real servers. Its conformance suites are the target `conformance`.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests may")]

mod abandoned;
mod binary_log;
mod chaos;
mod character_sets;
mod corrupt;
mod ended;
mod failover;
mod from_pool;
mod full;
mod gather;
mod isolation;
mod languages;
mod migrations;
mod packets;
mod pickup;
mod plans;
mod safe_updates;
mod sessions;
mod storm;
mod waiting;

#[path = "../support/mod.rs"]
mod support;
