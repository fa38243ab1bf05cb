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
mod pickup;
mod tx_settle;

pub(crate) use leasehold_bench::{Failure, Rates, Result, load};
use leasehold_bench::{rounds, table};

use crate::measure::Measure;

/// What the command line says.
pub(crate) type Options = leasehold_bench::options::Options<Measure>;

fn main() -> Result {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Runtime::new()?;
    if runtime.block_on(pickup::is_other_process(&args))? {
        return Ok(());
    }
    let options = Options::parse(args.into_iter(), &Measure::ALL)?;
    let (apart, measures): (Vec<_>, Vec<_>) =
        options.measures.iter().copied().partition(|measure| *measure == Measure::Pickup);
    if !measures.is_empty() {
        let measure_all =
            rounds(&measures, options.rounds, async |measure: Measure| measure.round(&options).await);
        table::print(&runtime.block_on(measure_all)?, options.json);
    }
    if !apart.is_empty() {
        runtime.block_on(pickup::run(&options))?;
    }
    Ok(())
}
