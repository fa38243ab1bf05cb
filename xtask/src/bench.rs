//! `cargo xtask bench`: each backend has a program below `benches` that measures it, and so has the worker. They are built
//! only here and by clippy: `cargo test` does not build benches.

use std::process::Command;

use clap::ValueEnum;

use crate::artifact::{self, Kind};
use crate::servers;
use crate::step::{self, Failure, Outcome};
use crate::workspace::{cargo, root};

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

    /// The program that measures it.
    fn program(self) -> String {
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
    let mut build =
        cargo(["build", "--release", "--package", backend.package(), "--bench", &backend.program()]);
    let programs = artifact::build("build", &mut build)?;
    let Some(program) = programs.iter().find(|program| program.kind == Kind::Bench) else {
        let what = format!("Cargo has built no {}", backend.program());
        return Err(Failure::new(what, "see the [[bench]] targets of its Cargo.toml"));
    };
    let mut command = Command::new(&program.path);
    command.current_dir(root());
    if matches!(backend, Backend::Mariadb) {
        command.arg("mariadb");
    }
    if json {
        command.arg("--json");
    }
    command.args(more);
    step::run("bench", &mut command, "read what the benchmark printed last")
}
