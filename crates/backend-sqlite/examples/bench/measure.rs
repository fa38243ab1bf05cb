//! What is measured.

use std::str::FromStr;

use crate::options::Options;
use crate::{Failure, Result, backlog, drain, enqueue, tx_settle};

/// Jobs per second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rates {
    pub(crate) ours: f64,
    /// The same work on a bare connection, or ours without what is to cost nothing.
    pub(crate) limit: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    EnqueueSingle,
    EnqueueBatch,
    Drain,
    Backlog,
    TxSettle,
}

impl Measure {
    pub(crate) const ALL: [Self; 5] =
        [Self::EnqueueSingle, Self::EnqueueBatch, Self::Drain, Self::Backlog, Self::TxSettle];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::EnqueueSingle => "enqueue_single",
            Self::EnqueueBatch => "enqueue_batch",
            Self::Drain => "drain",
            Self::Backlog => "backlog",
            Self::TxSettle => "tx_settle",
        }
    }

    /// The ratio that this project asks of itself.
    pub(crate) fn bar(self) -> f64 {
        match self {
            Self::EnqueueSingle => 1.0,
            Self::EnqueueBatch => 0.6,
            Self::Drain => 0.8,
            Self::Backlog => 0.9,
            Self::TxSettle => 0.7,
        }
    }

    /// Measures it once, ours first.
    pub(crate) async fn round(self, options: &Options) -> Result<Rates> {
        match self {
            Self::EnqueueSingle => enqueue::single(options).await,
            Self::EnqueueBatch => enqueue::batch(options).await,
            Self::Drain => drain::round(options).await,
            Self::Backlog => backlog::round(options).await,
            Self::TxSettle => tx_settle::round(options).await,
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
