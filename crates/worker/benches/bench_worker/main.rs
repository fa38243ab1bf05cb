//! How fast the worker is, beside what the same store does without it.
//!
//! `cargo xtask bench worker [--json] [--quick] [--only NAME] [--rounds N]`
//!
//! It starts a private Postgres 15 with default durability. Each round measures everything once, ours and the limit in
//! turn and each in a schema of its own, so that what disturbs the machine disturbs both. `docs/benchmarks.md` says what
//! is measured, and how to read it.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints its results")]

mod bare;
mod drain;
mod ground;
mod idle;
mod latency;
mod measure;
mod options;
mod table;

use std::time::Duration;

use leasehold_servers::{Postgres, PostgresVersion, Settings};

use crate::measure::{Measure, Reading};
use crate::options::Options;

/// Whatever goes wrong ends the run: a number that was measured while something was wrong is no number.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Result<T = ()> = std::result::Result<T, Failure>;

/// What every measure is given.
struct Bench {
    server: Postgres,
    options: Options,
}

/// Statements are counted where they are run.
const SETTINGS: [(&str, &str); 1] = [("shared_preload_libraries", "pg_stat_statements")];

fn main() -> Result {
    let options = Options::parse(std::env::args().skip(1))?;
    let server = Postgres::start_with(PostgresVersion::V15, Settings::Durable, &SETTINGS)?;
    let bench = Bench { server, options };
    let runtime = tokio::runtime::Runtime::new()?;
    let rounds = runtime.block_on(bench.rounds())?;
    // What notifies others looks now and then whether its store is still there.
    runtime.shutdown_timeout(Duration::from_secs(2));
    table::print(&rounds, bench.options.json);
    Ok(())
}

impl Bench {
    /// The readings of each measure, round by round.
    async fn rounds(&self) -> Result<Vec<(Measure, Vec<Vec<Reading>>)>> {
        let mut rounds: Vec<_> = self.options.measures.iter().map(|measure| (*measure, Vec::new())).collect();
        for round in 1..=self.options.rounds {
            for (measure, rounds) in &mut rounds {
                eprint!("round {round} of {}: {:<8} … ", self.options.rounds, measure.name());
                let readings = measure.round(self).await?;
                let said: Vec<_> = readings.iter().map(Reading::to_string).collect();
                eprintln!("{}", said.join("; "));
                rounds.push(readings);
            }
        }
        Ok(rounds)
    }
}
