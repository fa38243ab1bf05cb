//! The tests of the Redis backend on real servers. Its conformance suites are the target `conformance`.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests may")]

mod chaos;
mod cluster;
mod connections;
mod large;
mod lists;
mod many_queues;
mod numbers;
mod refusals;
mod resharding;
mod server;
