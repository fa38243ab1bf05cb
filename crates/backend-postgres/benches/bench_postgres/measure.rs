//! What is measured.

use std::str::FromStr;

use leasehold_bench::{Measured, Rates, named};

use crate::{
    Bench, Failure, Result, backlog, drain, enqueue, many_policies, prefix_later, redrive, snapshot,
    tx_settle,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    EnqueueSingle,
    EnqueueBatch,
    Drain,
    DrainDeadOnly,
    Backlog,
    Snapshot,
    TxSettle,
    Redrive,
    ManyPolicies,
    PrefixLater,
}

impl Measure {
    pub(crate) const ALL: [Self; 10] = [
        Self::EnqueueSingle,
        Self::EnqueueBatch,
        Self::Drain,
        Self::DrainDeadOnly,
        Self::Backlog,
        Self::Snapshot,
        Self::TxSettle,
        Self::Redrive,
        Self::ManyPolicies,
        Self::PrefixLater,
    ];

    /// Measures it once, ours first.
    pub(crate) async fn round(self, bench: &Bench) -> Result<Rates> {
        match self {
            Self::EnqueueSingle => enqueue::single(bench).await,
            Self::EnqueueBatch => enqueue::batch(bench).await,
            Self::Drain => drain::with_history(bench).await,
            Self::DrainDeadOnly => drain::dead_only(bench).await,
            Self::Backlog => backlog::round(bench).await,
            Self::Snapshot => snapshot::round(bench).await,
            Self::TxSettle => tx_settle::round(bench).await,
            Self::Redrive => redrive::round(bench).await,
            Self::ManyPolicies => many_policies::round(bench).await,
            Self::PrefixLater => prefix_later::round(bench).await,
        }
    }
}

impl Measured for Measure {
    fn name(self) -> &'static str {
        match self {
            Self::EnqueueSingle => "enqueue_single",
            Self::EnqueueBatch => "enqueue_batch",
            Self::Drain => "drain",
            Self::DrainDeadOnly => "drain_dead_only",
            Self::Backlog => "backlog",
            Self::Snapshot => "snapshot",
            Self::TxSettle => "tx_settle",
            Self::Redrive => "redrive",
            Self::ManyPolicies => "many_policies",
            Self::PrefixLater => "prefix_later",
        }
    }

    fn bar(self) -> f64 {
        match self {
            Self::EnqueueSingle | Self::EnqueueBatch => 0.6,
            Self::Drain | Self::DrainDeadOnly => 0.8,
            Self::Backlog | Self::Snapshot => 0.9,
            Self::TxSettle => 0.7,
            Self::Redrive | Self::ManyPolicies | Self::PrefixLater => 0.5,
        }
    }
}

impl FromStr for Measure {
    type Err = Failure;
    fn from_str(name: &str) -> Result<Self> {
        named(&Self::ALL, name)
    }
}
