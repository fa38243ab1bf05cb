//! How fast the store is, beside what the same statements can do on a bare connection.
//!
//! `cargo xtask bench sqlite [--json] [--quick] [--only NAME] [--rounds N] [--lanes N]`
//!
//! Each round measures everything once, ours and the limit in turn and each in a file of its own, so that what
//! disturbs the machine disturbs both. `docs/benchmarks.md` says what is measured, and how to read it.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints its results")]

mod backlog;
mod bare;
mod drain;
mod enqueue;
mod ground;
mod measure;
mod tx_settle;

pub(crate) use leasehold_bench::{Failure, Rates, Result, load};
use leasehold_bench::{rounds, table};

use crate::measure::Measure;

/// What the command line says.
pub(crate) type Options = leasehold_bench::options::Options<Measure>;

fn main() -> Result {
    let options = Options::parse(std::env::args().skip(1), &Measure::ALL)?;
    let measure_all =
        rounds(&options.measures, options.rounds, async |measure: Measure| measure.round(&options).await);
    let rounds = tokio::runtime::Runtime::new()?.block_on(measure_all)?;
    table::print(&rounds, options.json);
    Ok(())
}
