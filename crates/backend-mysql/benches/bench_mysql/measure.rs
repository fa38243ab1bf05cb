//! What is measured.

use std::str::FromStr;

use leasehold_bench::{Measured, Rates, named};

use crate::{Bench, Failure, Result, backlog, drain, enqueue, pickup, tx_settle};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    EnqueueSingle,
    EnqueueBatch,
    Drain,
    Backlog,
    TxSettle,
    Pickup,
}

impl Measure {
    pub(crate) const ALL: [Self; 6] =
        [Self::EnqueueSingle, Self::EnqueueBatch, Self::Drain, Self::Backlog, Self::TxSettle, Self::Pickup];

    /// Measures it once, ours first.
    pub(crate) async fn round(self, bench: &Bench) -> Result<Rates> {
        match self {
            Self::EnqueueSingle => enqueue::single(bench).await,
            Self::EnqueueBatch => enqueue::batch(bench).await,
            Self::Drain => drain::round(bench).await,
            Self::Backlog => backlog::round(bench).await,
            Self::TxSettle => tx_settle::round(bench).await,
            Self::Pickup => pickup::round(bench).await,
        }
    }
}

impl Measured for Measure {
    fn name(self) -> &'static str {
        match self {
            Self::EnqueueSingle => "enqueue_single",
            Self::EnqueueBatch => "enqueue_batch",
            Self::Drain => "drain",
            Self::Backlog => "backlog",
            Self::TxSettle => "tx_settle",
            Self::Pickup => "pickup",
        }
    }

    fn bar(self) -> f64 {
        match self {
            Self::EnqueueSingle => 0.6,
            Self::EnqueueBatch => 0.6,
            Self::Drain => 0.8,
            Self::Backlog => 0.9,
            Self::TxSettle => 0.7,
            Self::Pickup => 0.97,
        }
    }
}

impl FromStr for Measure {
    type Err = Failure;
    fn from_str(name: &str) -> Result<Self> {
        named(&Self::ALL, name)
    }
}
