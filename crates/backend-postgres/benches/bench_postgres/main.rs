//! How fast the store is, beside what bare SQL can do on the same server.
//!
//! `cargo xtask bench postgres [--json] [--quick] [--only NAME] [--rounds N] [--lanes N] [--clients N]`
//!
//! It starts a private Postgres 15 with default durability, or takes the one that `LEASEHOLD_BENCH_POSTGRES_URL` names.
//! Each round measures everything once, ours and the limit in turn and each in a schema of its own, so that what
//! disturbs the machine disturbs both. `docs/benchmarks.md` says what is measured, and how to read it.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints its results")]

mod backlog;
mod drain;
mod enqueue;
mod ground;
mod many_policies;
mod measure;
mod options;
mod pgbench;
mod prefix_later;
mod redrive;
mod server;
mod snapshot;
mod tx_settle;

use std::time::Duration;

pub(crate) use leasehold_bench::{Failure, Rates, Result, load};
use leasehold_bench::{rounds, table};

use crate::measure::Measure;
use crate::options::Options;
use crate::server::Server;

/// What every measure is given.
struct Bench {
    server: Server,
    options: Options,
}

fn main() -> Result {
    let bench = Bench { options: Options::parse(std::env::args().skip(1))?, server: Server::start()? };
    let runtime = tokio::runtime::Runtime::new()?;
    let measure_all = rounds(&bench.options.measures, bench.options.rounds, async |measure: Measure| {
        measure.round(&bench).await
    });
    let rounds = runtime.block_on(measure_all)?;
    // What notifies others looks now and then whether its store is still there.
    runtime.shutdown_timeout(Duration::from_secs(2));
    table::print(&rounds, bench.options.json);
    Ok(())
}
