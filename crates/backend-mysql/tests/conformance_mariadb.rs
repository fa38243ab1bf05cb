//! The conformance suite on MariaDB 10.11.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

fn main() {
    leasehold_conformance::main(support::Server::new("mariadb 10.11", support::MARIADB));
}
