//! The conformance suite on MySQL and on MariaDB; on MariaDB with `innodb_snapshot_isolation`; and on MySQL as a user with no
//! more rights than the docs ask for.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

#[path = "../support/mod.rs"]
mod support;

use leasehold_conformance::Suites;
use support::{MARIADB, MYSQL, Server};

const GRANTS: &str = "GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.job_queue TO {user};
    GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.job_history TO {user};
    GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.job_queue_config TO {user};
    GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.job_queue_limit TO {user};
    GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.job_unique TO {user};
    GRANT SELECT, INSERT, DELETE ON {database}.job_idempotency TO {user};
    GRANT SELECT ON {database}.job_migration TO {user}";

/// A missing right shows in the first statement of an operation: races, the model and the like would show nothing more.
const STATEMENTS: &[&str] = &[
    "enqueue",
    "dequeue",
    "settle",
    "heartbeat",
    "reclaim",
    "admin",
    "redrive",
    "list",
    "receipts",
    "stats",
    "explain",
    "next",
    "prune",
    "pause",
    "policy",
    "limits",
    "rate",
    "fifo",
    "transaction",
];

/// What `innodb_snapshot_isolation` can change: transactions above READ COMMITTED.
const BY_SNAPSHOT: &[&str] = &["transaction"];

fn main() {
    let restricted = Server::restricted("mysql 9, least privileges", MYSQL, GRANTS);
    Suites::new()
        .whole("mysql9", Server::new("mysql 9", MYSQL))
        .whole("mariadb", Server::new("mariadb 10.11", MARIADB))
        .part("snapshots", Server::new("mariadb 10.11, snapshots", MARIADB).with_snapshots(), BY_SNAPSHOT)
        .part("grants", restricted, STATEMENTS)
        .main();
}
