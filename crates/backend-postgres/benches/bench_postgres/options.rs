//! What the command line says.

use leasehold_bench::options::{number, value};

use crate::Result;
use crate::measure::Measure;

/// How many lanes drain, each with a claim and a settlement under way: as many connections as pgbench has, so that neither
/// gets the larger share of a busy machine.
const LANES: usize = 4;
/// How many clients of pgbench drain: the fastest of 2, 4 and 8 in five interleaved runs on two busy cores.
const CLIENTS: usize = 8;

pub(crate) struct Options {
    pub(crate) json: bool,
    pub(crate) measures: Vec<Measure>,
    pub(crate) rounds: usize,
    pub(crate) lanes: usize,
    pub(crate) clients: usize,
    pub(crate) sizes: Sizes,
}

/// How much work a round is.
pub(crate) struct Sizes {
    /// Jobs that are enqueued one by one.
    pub(crate) single: usize,
    /// Jobs that are enqueued in batches.
    pub(crate) batch: usize,
    /// Jobs that are drained.
    pub(crate) drain: usize,
    /// Jobs that stay behind, few and many.
    pub(crate) backlogs: [usize; 2],
    /// Jobs that are drained in front of them.
    pub(crate) front: usize,
    /// Jobs that are processed under a snapshot before the measurement.
    pub(crate) before: usize,
    /// Jobs that are processed then.
    pub(crate) after: usize,
    /// Jobs that are settled in transactions.
    pub(crate) transactions: usize,
    /// Dead letters of which some are redriven, few and many.
    pub(crate) dead_letters: [usize; 2],
    /// Queues of a batch, with one job each.
    pub(crate) queues: usize,
}

const FULL: Sizes = Sizes {
    single: 20_000,
    batch: 200_000,
    drain: 200_000,
    backlogs: [10_000, 1_000_000],
    front: 50_000,
    before: 200_000,
    after: 150_000, // In three seconds chance would decide.
    transactions: 10_000,
    dead_letters: [1_000, 500_000],
    queues: 10_000,
};

/// To see that everything works.
const QUICK: Sizes = Sizes {
    single: 200,
    batch: 4_000,
    drain: 4_000,
    backlogs: [1_000, 10_000],
    front: 2_000,
    before: 4_000,
    after: 2_000,
    transactions: 500,
    dead_letters: [1_000, 5_000],
    queues: 1_000,
};

impl Options {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let measures = Measure::ALL.to_vec();
        let mut options =
            Self { json: false, measures, rounds: 5, lanes: LANES, clients: CLIENTS, sizes: FULL };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => options.json = true,
                "--quick" => (options.sizes, options.rounds) = (QUICK, 1),
                "--only" => options.measures = vec![value(&arg, &mut args)?.parse()?],
                "--rounds" => options.rounds = number(&arg, &mut args)?,
                "--lanes" => options.lanes = number(&arg, &mut args)?,
                "--clients" => options.clients = number(&arg, &mut args)?,
                _ => return Err(format!("{arg}: there is no such option").into()),
            }
        }
        Ok(options)
    }
}
