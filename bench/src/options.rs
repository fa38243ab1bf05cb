//! What the command line says.

use std::str::FromStr;

use crate::{Failure, Result};

/// How many lanes drain, each with a claim and a settlement under way.
const LANES: usize = 4;

/// What is to be measured, and how often.
pub struct Options<M> {
    /// Whether to print JSON.
    pub json: bool,
    /// What to measure.
    pub measures: Vec<M>,
    /// How often.
    pub rounds: usize,
    /// How many lanes drain.
    pub lanes: usize,
    /// How much work a round is.
    pub sizes: Sizes,
}

/// How much work a round is.
pub struct Sizes {
    /// Jobs that are enqueued one by one.
    pub single: usize,
    /// Jobs that are enqueued in batches.
    pub batch: usize,
    /// Jobs that are drained.
    pub drain: usize,
    /// Jobs that stay behind, few and many.
    pub backlogs: [usize; 2],
    /// Jobs that are drained in front of them.
    pub front: usize,
    /// Jobs that are settled in transactions.
    pub transactions: usize,
}

const FULL: Sizes = Sizes {
    single: 5_000,
    batch: 200_000,
    drain: 200_000,
    backlogs: [10_000, 1_000_000],
    front: 50_000,
    transactions: 3_000,
};

/// To see that everything works.
const QUICK: Sizes = Sizes {
    single: 200,
    batch: 4_000,
    drain: 4_000,
    backlogs: [1_000, 10_000],
    front: 2_000,
    transactions: 200,
};

impl<M> Options<M>
where
    M: Copy + FromStr<Err = Failure>,
{
    /// Reads the arguments; `all` is measured if nothing else is said.
    pub fn parse(mut args: impl Iterator<Item = String>, all: &[M]) -> Result<Self> {
        let measures = all.to_vec();
        let mut options = Self { json: false, measures, rounds: 5, lanes: LANES, sizes: FULL };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => options.json = true,
                "--quick" => (options.sizes, options.rounds) = (QUICK, 1),
                "--only" => options.measures = vec![value(&arg, &mut args)?.parse()?],
                "--rounds" => options.rounds = number(&arg, &mut args)?,
                "--lanes" => options.lanes = number(&arg, &mut args)?,
                _ => return Err(format!("{arg}: there is no such option").into()),
            }
        }
        Ok(options)
    }
}

/// What stands after an option.
///
/// # Errors
/// If nothing does.
pub fn value(option: &str, args: &mut impl Iterator<Item = String>) -> Result<String> {
    args.next().ok_or_else(|| format!("{option} needs a value").into())
}

/// A number that stands after an option.
///
/// # Errors
/// If none does, or 0.
pub fn number(option: &str, args: &mut impl Iterator<Item = String>) -> Result<usize> {
    let number = value(option, args)?.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| Failure::from(format!("{option} needs a number from 1 on")))
}
