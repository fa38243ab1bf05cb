//! `cargo xtask mutants`: small faults that a program puts into the code. One that no test notices shows where a test is missing.
//!
//! Not part of `verify`: each fault is a run of tests. A sample is drawn by a seed, so that it can be drawn again.

mod accepted;
mod change;
mod image;
mod lua;
mod rust;
mod sql;
mod text;
mod token;
mod trial;

use clap::Args;

use crate::step::Outcome;

/// What to change, and how much of it.
#[derive(Debug, Args)]
pub(crate) struct Selection {
    /// A package whose Rust code is changed, such as leasehold-worker; or a backend whose statements or scripts are: sqlite, postgres,
    /// mysql, redis
    what: String,
    /// How many mutants are drawn. Default: all of them
    #[arg(long)]
    sample: Option<usize>,
    /// What the sample is drawn by. Default: 1
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only files whose path has this in it (of a backend)
    #[arg(long, default_value = "")]
    file: String,
    /// Only print the mutants (of a backend)
    #[arg(long)]
    list: bool,
    /// What the tests of a package are given after `--`, such as `--skip ui`
    #[arg(last = true)]
    args: Vec<String>,
}

pub(crate) fn run(selection: &Selection) -> Outcome {
    match text::Backend::named(&selection.what) {
        Some(backend) => trial::run(backend, selection),
        None => rust::run(selection),
    }
}

/// Takes `sample` of them, the same for the same seed.
fn draw<T>(mut mutants: Vec<T>, sample: Option<usize>, seed: u64) -> Vec<T> {
    let wanted = sample.unwrap_or(mutants.len()).min(mutants.len());
    let mut state = seed;
    for place in 0..wanted {
        let left = (mutants.len() - place) as u64;
        mutants.swap(place, place + (next(&mut state) % left) as usize);
    }
    mutants.truncate(wanted);
    mutants
}

/// SplitMix64: all that a sample needs of chance.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_sample() {
        let all: Vec<u32> = (0..50).collect();
        let one = draw(all.clone(), Some(10), 7);
        assert_eq!(one, draw(all.clone(), Some(10), 7));
        assert_ne!(one, draw(all.clone(), Some(10), 8));
        let mut distinct = one;
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 10);
        assert_eq!(draw(all, None, 1).len(), 50);
    }
}
