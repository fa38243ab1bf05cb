//! What is measured.

use std::fmt;
use std::str::FromStr;

use crate::{Bench, Failure, Result, drain, idle, latency};

/// One number of ours, beside its limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) ours: f64,
    /// What is done without a worker, or what this project allows itself.
    pub(crate) limit: f64,
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, unit, ours, limit } = self;
        write!(f, "{name}: ours {ours:.2}, limit {limit:.2} {unit}")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    Drain,
    Latency,
    Idle,
}

impl Measure {
    pub(crate) const ALL: [Self; 3] = [Self::Drain, Self::Latency, Self::Idle];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Latency => "latency",
            Self::Idle => "idle",
        }
    }

    /// The ratio that this project asks of itself.
    pub(crate) fn bar(self) -> f64 {
        match self {
            Self::Drain => 0.85,
            Self::Latency => 1.0 / 1.5,
            Self::Idle => 1.0,
        }
    }

    /// How good a number of ours is beside its limit: larger is better.
    pub(crate) fn ratio(self, ours: f64, limit: f64) -> f64 {
        match self {
            Self::Drain => ours / limit,
            Self::Latency | Self::Idle => limit / ours,
        }
    }

    /// Measures it once.
    pub(crate) async fn round(self, bench: &Bench) -> Result<Vec<Reading>> {
        match self {
            Self::Drain => drain::round(bench).await,
            Self::Latency => latency::round(bench).await,
            Self::Idle => idle::round(bench).await,
        }
    }
}

impl FromStr for Measure {
    type Err = Failure;
    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|measure| measure.name() == name);
        found.ok_or_else(|| format!("{name} is not measured: see docs/benchmarks.md").into())
    }
}
