//! The servers that tests need: started before them, stopped after them. A missing server is an error, never a skip.
//!
//! Each has a variable by which tests find it. One that is set already is respected, and its server not started.

use std::error::Error as _;
use std::io::{self, Write};
use std::process::Command;

use leasehold_servers::{
    Error, Mysql, MysqlFlavor, PgBouncer, Postgres, PostgresVersion, Redis, RedisCluster, RedisVersion,
};

use crate::step::{self, Failure, Outcome};

const POSTGRES: &str = "LEASEHOLD_TEST_POSTGRES_URL";
const POSTGRES_18: &str = "LEASEHOLD_TEST_POSTGRES18_URL";
const PGBOUNCER: &str = "LEASEHOLD_TEST_PGBOUNCER_URL";
const PGBOUNCER_18: &str = "LEASEHOLD_TEST_PGBOUNCER18_URL";
const MYSQL: &str = "LEASEHOLD_TEST_MYSQL_URL";
const MARIADB: &str = "LEASEHOLD_TEST_MARIADB_URL";
const REDIS: &str = "LEASEHOLD_TEST_REDIS_URL";
const VALKEY: &str = "LEASEHOLD_TEST_VALKEY_URL";
const REDIS_CLUSTER: &str = "LEASEHOLD_TEST_REDIS_CLUSTER_URL";

/// All of them, in the order in which they are started.
const SERVERS: [Entry; 9] = [
    Entry { name: "PostgreSQL 15", variable: POSTGRES, start: |_| postgres(PostgresVersion::V15) },
    Entry { name: "PgBouncer for 15", variable: PGBOUNCER, start: |up| pgbouncer(up, POSTGRES) },
    Entry { name: "PostgreSQL 18", variable: POSTGRES_18, start: |_| postgres(PostgresVersion::V18) },
    Entry { name: "PgBouncer for 18", variable: PGBOUNCER_18, start: |up| pgbouncer(up, POSTGRES_18) },
    Entry { name: "MySQL 9", variable: MYSQL, start: |_| mysql(MysqlFlavor::Mysql) },
    Entry { name: "MariaDB 10.11", variable: MARIADB, start: |_| mysql(MysqlFlavor::Mariadb) },
    Entry { name: "Redis 7", variable: REDIS, start: |_| redis(RedisVersion::Redis7) },
    Entry { name: "Valkey", variable: VALKEY, start: |_| redis(RedisVersion::Valkey) },
    Entry { name: "Redis Cluster", variable: REDIS_CLUSTER, start: |_| redis_cluster() },
];

struct Entry {
    name: &'static str,
    /// Where tests look for its address.
    variable: &'static str,
    /// Is told what is up already.
    start: fn(&Running) -> Outcome<Server>,
}

/// A server that we have started; it stops when it is dropped.
enum Server {
    Postgres(Postgres),
    PgBouncer(PgBouncer),
    Mysql(Mysql),
    Redis(Redis),
    RedisCluster(RedisCluster),
}

impl Server {
    fn url(&self) -> String {
        match self {
            Self::Postgres(server) => server.url(),
            Self::PgBouncer(server) => server.url(),
            Self::Mysql(server) => server.url(),
            Self::Redis(server) => server.url(),
            Self::RedisCluster(server) => server.url(),
        }
    }
}

/// The servers that we have started. They stop when this is dropped, and when we are killed.
#[derive(Default)]
pub(crate) struct Running {
    servers: Vec<(&'static str, Server)>,
}

impl Running {
    /// Starts every server whose variable is not set.
    pub(crate) fn start() -> Outcome<Self> {
        let mut running = Self::default();
        for entry in &SERVERS {
            if is_set(entry.variable) {
                step::not_run(entry.name, &format!("{} is set", entry.variable));
                continue;
            }
            let server = step::step(entry.name, || (entry.start)(&running))?;
            running.servers.push((entry.variable, server));
        }
        Ok(running)
    }

    /// Lets `command` find them. Variables that were set before are inherited anyway.
    pub(crate) fn export<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.envs(self.variables())
    }

    fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.servers.iter().map(|(variable, server)| (*variable, server.url()))
    }

    fn find(&self, variable: &str) -> Option<&Server> {
        self.servers.iter().find(|(other, _)| *other == variable).map(|(_, server)| server)
    }
}

/// `cargo xtask servers`: runs them in the foreground, and prints how to find them.
pub(crate) fn run() -> Outcome {
    let running = Running::start()?;
    let exports: String = running.variables().map(|(name, url)| format!("export {name}={url}\n")).collect();
    io::stdout().write_all(exports.as_bytes()).map_err(|error| {
        Failure::new(format!("nobody reads what we print: {error}"), "see standard output")
    })?;
    eprintln!("  paste these lines into another shell; Ctrl-C or Ctrl-D here stops the servers");
    // Only its end matters. An error is an end too.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    Ok(())
}

/// The failure of something that `leasehold-servers` was to do.
pub(crate) fn failure(error: &Error) -> Failure {
    let why = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    Failure::new(
        format!("{error}{why}"),
        "see what the error names; or set the LEASEHOLD_TEST_… variable of a server that you have",
    )
}

/// An empty variable counts as none.
fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

fn postgres(version: PostgresVersion) -> Outcome<Server> {
    if version == PostgresVersion::V15 {
        // For tests that start a server of their own which speaks German. Here nothing else is installed at the same time.
        leasehold_servers::german().map_err(|error| failure(&error))?;
    }
    Postgres::start(version, &[]).map(Server::Postgres).map_err(|error| failure(&error))
}

fn mysql(flavor: MysqlFlavor) -> Outcome<Server> {
    Mysql::start(flavor, &[]).map(Server::Mysql).map_err(|error| failure(&error))
}

fn redis(version: RedisVersion) -> Outcome<Server> {
    Redis::start(version, &[]).map(Server::Redis).map_err(|error| failure(&error))
}

fn redis_cluster() -> Outcome<Server> {
    // On a busy machine a master may be silent for seconds. It has no replica: to call it dead would end every test.
    let patience = [("cluster-node-timeout", "20000")];
    let cluster = RedisCluster::start(RedisVersion::Redis7, 0, &patience);
    cluster.map(Server::RedisCluster).map_err(|error| failure(&error))
}

/// In front of the server that was started for the variable `behind`.
fn pgbouncer(up: &Running, behind: &str) -> Outcome<Server> {
    let Some(Server::Postgres(postgres)) = up.find(behind) else {
        return Err(Failure::new(
            format!("a PgBouncer of ours stands before a server of ours, but {behind} is set"),
            "set the variable of its PgBouncer too, or neither",
        ));
    };
    PgBouncer::start(postgres).map(Server::PgBouncer).map_err(|error| failure(&error))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_server_has_a_variable_of_its_own() {
        let variables: BTreeSet<&str> = SERVERS.iter().map(|entry| entry.variable).collect();
        assert_eq!(variables.len(), SERVERS.len());
        assert!(variables.iter().all(|name| name.starts_with("LEASEHOLD_TEST_") && name.ends_with("_URL")));
    }

    #[test]
    fn a_pgbouncer_before_somebody_elses_server_is_refused() {
        let failure = pgbouncer(&Running::default(), POSTGRES).err().map(|failure| failure.to_string());
        assert!(failure.is_some_and(|text| text.contains("LEASEHOLD_TEST_POSTGRES_URL is set")));
    }
}
