//! The conformance suite on MySQL by a user who may do no more than the docs say that a worker needs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

const GRANTS: &str = "GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.job_queue TO {user};
    GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.job_history TO {user};
    GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.job_queue_config TO {user};
    GRANT SELECT, INSERT, UPDATE ON {database}.job_queue_limit TO {user};
    GRANT INSERT, SELECT ON {database}.job_idempotency TO {user};
    GRANT SELECT ON {database}.job_migration TO {user}";

fn main() {
    let server = support::Server::restricted("mysql 9, least privileges", support::MYSQL, GRANTS);
    leasehold_conformance::main(server);
}
