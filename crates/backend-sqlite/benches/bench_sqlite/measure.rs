//! What is measured.

use std::str::FromStr;

use crate::Options;
use leasehold_bench::{Measured, Rates, named};

use crate::{Failure, Result, backlog, drain, enqueue, tx_settle};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    EnqueueSingle,
    EnqueueBatch,
    Drain,
    Backlog,
    TxSettle,
    /// Not a rate: measured and printed apart.
    Pickup,
}

impl Measure {
    pub(crate) const ALL: [Self; 6] =
        [Self::EnqueueSingle, Self::EnqueueBatch, Self::Drain, Self::Backlog, Self::TxSettle, Self::Pickup];

    /// Measures it once, ours first.
    pub(crate) async fn round(self, options: &Options) -> Result<Rates> {
        match self {
            Self::EnqueueSingle => enqueue::single(options).await,
            Self::EnqueueBatch => enqueue::batch(options).await,
            Self::Drain => drain::round(options).await,
            Self::Backlog => backlog::round(options).await,
            Self::TxSettle => tx_settle::round(options).await,
            Self::Pickup => Err("pickup is no rate".into()),
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
            Self::EnqueueSingle => 1.0,
            Self::EnqueueBatch => 0.6,
            Self::Drain => 0.8,
            Self::Backlog => 0.9,
            Self::TxSettle => 0.7,
            Self::Pickup => 1.0,
        }
    }
}

impl FromStr for Measure {
    type Err = Failure;
    fn from_str(name: &str) -> Result<Self> {
        named(&Self::ALL, name)
    }
}
