//! What the benchmarks of the backends have in common: the jobs, what is done with them, and how the results are printed.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints its results")]

pub mod load;
pub mod options;
mod rounds;
pub mod table;

pub use crate::rounds::{named, rounds};

/// Whatever goes wrong ends the run: a number that was measured while something was wrong is no number.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// With that.
pub type Result<T = ()> = std::result::Result<T, Failure>;

/// Jobs per second.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// The store's.
    pub ours: f64,
    /// The same work as bare SQL, or ours without what is to cost nothing.
    pub limit: f64,
}

/// What is measured.
pub trait Measured {
    /// Its name.
    fn name(self) -> &'static str;
    /// The ratio that this project asks of itself.
    fn bar(self) -> f64;
    /// What its numbers count.
    fn unit(self) -> &'static str
    where
        Self: Sized,
    {
        "jobs/s"
    }
}
