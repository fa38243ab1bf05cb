//! The tests of the worker.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "tests may")]

mod building;
mod context;
mod counting;
mod documents;
mod endings;
mod giving_up;
mod heart;
mod kit;
mod leases;
mod locked;
mod logs;
mod panics;
mod reports;
mod sharing;
mod simulation;
mod suspicions;
mod ui;
mod watching;

#[cfg(unix)]
mod processes;

#[path = "../support/mod.rs"]
mod support;
