//! `cargo xtask bench`: each backend has an example that measures it, and so has the worker.

use clap::ValueEnum;

use crate::servers;
use crate::step::{self, Outcome};
use crate::workspace::cargo;

/// What can be measured.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Backend {
    /// leasehold-memory
    Memory,
    /// leasehold-postgres
    Postgres,
    /// leasehold-worker, on leasehold-postgres
    Worker,
    /// leasehold-sqlite
    Sqlite,
    /// leasehold-mysql, on MySQL
    Mysql,
    /// leasehold-mysql, on MariaDB
    Mariadb,
    /// leasehold-redis
    Redis,
}

impl Backend {
    fn package(self) -> &'static str {
        match self {
            Self::Memory => "leasehold-memory",
            Self::Postgres => "leasehold-postgres",
            Self::Worker => "leasehold-worker",
            Self::Sqlite => "leasehold-sqlite",
            Self::Mysql | Self::Mariadb => "leasehold-mysql",
            Self::Redis => "leasehold-redis",
        }
    }

    /// The example that measures it. Each has a name of its own: they are all built into one directory.
    fn example(self) -> String {
        self.package().replace("leasehold-", "bench_")
    }

    /// Installs what it needs, so that the benchmark has nothing left to do but to measure.
    fn prepare(self) -> Outcome {
        match self {
            Self::Memory | Self::Sqlite => Ok(()),
            Self::Mysql => step::step("MySQL 9", || {
                leasehold_servers::mysql().map(drop).map_err(|error| servers::failure(&error))
            }),
            Self::Mariadb => step::step("MariaDB 10.11", || {
                leasehold_servers::mariadb().map(drop).map_err(|error| servers::failure(&error))
            }),
            Self::Redis => step::step("Redis 7", || {
                leasehold_servers::redis().map(drop).map_err(|error| servers::failure(&error))
            }),
            Self::Postgres | Self::Worker => step::step("PostgreSQL 15", || {
                leasehold_servers::postgres15().map(drop).map_err(|error| servers::failure(&error))
            }),
        }
    }
}

/// Runs the benchmark of `backend`, with `more` arguments of its own.
pub(crate) fn run(backend: Backend, json: bool, more: &[String]) -> Outcome {
    backend.prepare()?;
    let mut command =
        cargo(["run", "--release", "--package", backend.package(), "--example", &backend.example(), "--"]);
    if matches!(backend, Backend::Mariadb) {
        command.arg("mariadb");
    }
    if json {
        command.arg("--json");
    }
    command.args(more);
    step::run("bench", &mut command, "read what the benchmark printed last")
}
