//! Private database servers for tests and benchmarks.
//!
//! A server is fetched if it is missing, started in a directory of its own on a port of its own, and gone when its
//! handle is dropped or its owner has died, however it died. Nobody else's server is ever used, changed or stopped.
//!
//! ```no_run
//! use leasehold_servers::{Postgres, PostgresVersion};
//!
//! # fn main() -> Result<(), leasehold_servers::Error> {
//! let server = Postgres::start(PostgresVersion::V15, &[("log_statement", "all")])?;
//! assert!(server.query("select version()")?.is_some_and(|version| version.starts_with("PostgreSQL 15")));
//! server.kill()?; // as a crash would
//! server.restart()?; // the same data, the same port
//! # Ok(()) }
//! ```
//!
//! Every call blocks, for seconds if something is to be fetched. Inside an async test that is no harm.
//!
//! # How it works
//!
//! `postgres`, `pgbouncer`, `mysql`, `redis` and `redis_cluster` are the handles, over one `server`: a process with its directory, which a `guard` outside
//! our process clears away. `install` has where programs come from, `cache` keeps what was fetched, `place` says where
//! all that is, and `account` who runs it, since no server wants to be root. `wire` speaks as much of the protocol of
//! Postgres as it takes to see that a server answers, and `mysql::wire` as much of MySQL's.

mod account;
mod cache;
mod command;
mod directory;
mod error;
mod guard;
mod install;
mod log;
mod mysql;
mod pgbouncer;
mod place;
mod port;
mod postgres;
mod process;
mod redis;
mod redis_cluster;
mod server;
mod settings;
mod wire;

pub use error::Error;
pub use install::{german, mariadb, mysql, pgbouncer, postgres15, postgres18, redis, valkey};
pub use mysql::{Mysql, MysqlFlavor};
pub use pgbouncer::PgBouncer;
pub use postgres::{Postgres, PostgresVersion};
pub use redis::{Redis, RedisVersion};
pub use redis_cluster::RedisCluster;
pub use settings::Settings;
