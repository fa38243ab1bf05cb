//! How fast the store is, beside what bare Lua scripts can do with the same jobs through the same driver.
//!
//! `cargo xtask bench redis [--json] [--quick] [--only NAME] [--rounds N] [--lanes N]`
//!
//! It starts a private server that appends to a file once a second, or takes the one that `LEASEHOLD_BENCH_REDIS_URL` names, whose
//! data are lost. Each round measures everything once, ours and the limit in turn and each on an empty server, so that what
//! disturbs the machine disturbs both. `docs/benchmarks.md` says what is measured, and how to read it.

#![allow(clippy::print_stderr, reason = "a benchmark tells how far it is")]

mod bare;
mod drain;
mod enqueue;
mod ground;
mod latency;
mod many_queues;
mod measure;

use std::time::Duration;

pub(crate) use leasehold_bench::{Failure, Rates, Result, load};
use leasehold_bench::{rounds, table};
use leasehold_servers::{Redis, RedisVersion};

use crate::measure::Measure;

type Options = leasehold_bench::options::Options<Measure>;

/// What every measure is given.
struct Bench {
    url: String,
    options: Options,
}

fn main() -> Result {
    let options = Options::parse(std::env::args().skip(1), &Measure::ALL)?;
    let given = std::env::var("LEASEHOLD_BENCH_REDIS_URL").ok().filter(|url| !url.is_empty());
    let server = match given {
        Some(_) => None,
        None => Some(Redis::start(RedisVersion::Redis7, &[])?),
    };
    let url = given.or_else(|| server.as_ref().map(Redis::url)).unwrap_or_default();
    let bench = Bench { url, options };
    let runtime = tokio::runtime::Runtime::new()?;
    let measure_all = rounds(&bench.options.measures, bench.options.rounds, async |measure: Measure| {
        measure.round(&bench).await
    });
    let rounds = runtime.block_on(measure_all)?;
    runtime.shutdown_timeout(Duration::from_secs(2));
    table::print(&rounds, bench.options.json);
    Ok(())
}
