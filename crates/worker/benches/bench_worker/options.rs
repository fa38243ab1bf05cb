//! What the command line says.

use crate::measure::Measure;
use crate::{Failure, Result};

pub(crate) struct Options {
    pub(crate) json: bool,
    pub(crate) measures: Vec<Measure>,
    pub(crate) rounds: usize,
    pub(crate) sizes: Sizes,
}

/// How much work a round is.
pub(crate) struct Sizes {
    /// Jobs that are drained.
    pub(crate) drain: usize,
    /// Jobs that are waited for, one by one.
    pub(crate) pickups: usize,
    /// Poll intervals without a job.
    pub(crate) intervals: u32,
}

const FULL: Sizes = Sizes { drain: 200_000, pickups: 400, intervals: 10 };

/// To see that everything works.
const QUICK: Sizes = Sizes { drain: 10_000, pickups: 20, intervals: 2 };

impl Options {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self { json: false, measures: Measure::ALL.to_vec(), rounds: 5, sizes: FULL };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => options.json = true,
                "--quick" => (options.sizes, options.rounds) = (QUICK, 1),
                "--only" => options.measures = vec![value(&arg, &mut args)?.parse()?],
                "--rounds" => options.rounds = number(&arg, &mut args)?,
                _ => return Err(format!("{arg}: there is no such option").into()),
            }
        }
        Ok(options)
    }
}

fn value(option: &str, args: &mut impl Iterator<Item = String>) -> Result<String> {
    args.next().ok_or_else(|| format!("{option} needs a value").into())
}

fn number(option: &str, args: &mut impl Iterator<Item = String>) -> Result<usize> {
    let number = value(option, args)?.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| Failure::from(format!("{option} needs a number from 1 on")))
}
