//! The server on which everything is measured.

use std::path::PathBuf;

use leasehold_servers::{Postgres, PostgresVersion, Settings, postgres15};

use crate::Result;

/// Room for a million jobs, as a server for a million jobs has. What Postgres comes with is for trying it out.
const MEMORY: [(&str, &str); 1] = [("shared_buffers", "1GB")];

pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) pgbench: PathBuf,
    /// Dropped, it is gone.
    _own: Option<Postgres>,
}

impl Server {
    /// The server that the environment names, or one of our own, as durable as Postgres comes.
    pub(crate) fn start() -> Result<Self> {
        let pgbench = postgres15()?.join("pgbench");
        if let Ok(url) = std::env::var("LEASEHOLD_BENCH_POSTGRES_URL") {
            return Ok(Self { url, pgbench, _own: None });
        }
        let own = Postgres::start_with(PostgresVersion::V15, Settings::Durable, &MEMORY)?;
        Ok(Self { url: own.url(), pgbench, _own: Some(own) })
    }
}
