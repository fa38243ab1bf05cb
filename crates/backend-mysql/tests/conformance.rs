//! The conformance suite on MySQL 9.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

fn main() {
    leasehold_conformance::main(support::Server::new("mysql 9", support::MYSQL));
}
