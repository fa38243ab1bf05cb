//! How fast the store is, beside what the same statements can do through the bare driver.
//!
//! `cargo xtask bench mysql [--json] [--quick] [--only NAME] [--rounds N] [--lanes N]`, the same with `mariadb`, and
//! `cargo xtask bench mysql --storm [SECONDS]`.
//!
//! It starts a private server with default durability, or takes the one that `LEASEHOLD_BENCH_MYSQL_URL` or
//! `LEASEHOLD_BENCH_MARIADB_URL` names. Each round measures everything once, ours and the limit in turn and each in a
//! database of its own, so that what disturbs the machine disturbs both. `docs/benchmarks.md` says what is measured, and how
//! to read it.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints its results")]

mod backlog;
mod bare;
mod drain;
mod enqueue;
mod ground;
mod measure;
mod pickup;
mod storm;
mod tx_settle;

use std::time::Duration;

pub(crate) use leasehold_bench::{Failure, Rates, Result, load};
use leasehold_bench::{rounds, table};
use leasehold_servers::{Mysql, MysqlFlavor, Settings};

use crate::measure::Measure;

type Options = leasehold_bench::options::Options<Measure>;

/// Room for a million jobs, as a server for a million jobs has. What it comes with is for trying it out.
const MEMORY: [(&str, &str); 1] = [("innodb-buffer-pool-size", "1G")];

/// How long a storm lasts if nothing is said.
const STORM: u64 = 60;

/// What every measure is given.
struct Bench {
    url: String,
    options: Options,
    /// The server, if it is ours: it stops when this is dropped.
    server: Option<Mysql>,
}

fn main() -> Result {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let (flavor, variable) = match args.first().map(String::as_str) {
        Some("mariadb") => (MysqlFlavor::Mariadb, "LEASEHOLD_BENCH_MARIADB_URL"),
        _ => (MysqlFlavor::Mysql, "LEASEHOLD_BENCH_MYSQL_URL"),
    };
    args.retain(|arg| arg != "mysql" && arg != "mariadb");
    let storm = args.iter().position(|arg| arg == "--storm").map(|place| args.split_off(place));
    let options = Options::parse(args.into_iter(), &Measure::ALL)?;
    let given = std::env::var(variable).ok().filter(|url| !url.is_empty());
    let server = match given {
        Some(_) => None,
        None => Some(Mysql::start_with(flavor, Settings::Durable, &MEMORY)?),
    };
    let url = given.or_else(|| server.as_ref().map(Mysql::url)).unwrap_or_default();
    let bench = Bench { url, options, server };
    let runtime = tokio::runtime::Runtime::new()?;
    if let Some(storm) = storm {
        let seconds = storm.get(1).map_or(Ok(STORM), |seconds| seconds.parse())?;
        let told = runtime.block_on(storm::storm(&bench.url, Duration::from_secs(seconds), 64))?;
        println!("{told}");
        return Ok(());
    }
    let measure_all = rounds(&bench.options.measures, bench.options.rounds, async |measure: Measure| {
        measure.round(&bench).await
    });
    let rounds = runtime.block_on(measure_all)?;
    runtime.shutdown_timeout(Duration::from_secs(2));
    table::print(&rounds, bench.options.json);
    Ok(())
}
