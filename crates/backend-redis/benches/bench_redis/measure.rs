//! What is measured.

use std::str::FromStr;

use leasehold_bench::{Measured, Rates, named};

use crate::{Bench, Failure, Result, drain, enqueue, latency, many_queues};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    EnqueueSingle,
    EnqueueBatch,
    Drain,
    Latency,
    ManyQueues,
}

impl Measure {
    pub(crate) const ALL: [Self; 5] =
        [Self::EnqueueSingle, Self::EnqueueBatch, Self::Drain, Self::Latency, Self::ManyQueues];

    /// Measures it once, ours first.
    pub(crate) async fn round(self, bench: &Bench) -> Result<Rates> {
        match self {
            Self::EnqueueSingle => enqueue::single(bench).await,
            Self::EnqueueBatch => enqueue::batch(bench).await,
            Self::Drain => drain::round(bench).await,
            Self::Latency => latency::round(bench).await,
            Self::ManyQueues => many_queues::round(bench).await,
        }
    }
}

impl Measured for Measure {
    fn name(self) -> &'static str {
        match self {
            Self::EnqueueSingle => "enqueue_single",
            Self::EnqueueBatch => "enqueue_batch",
            Self::Drain => "drain",
            Self::Latency => "latency",
            Self::ManyQueues => "many_queues",
        }
    }

    fn bar(self) -> f64 {
        match self {
            Self::ManyQueues => 0.8,
            _ => 0.7,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::ManyQueues => "jobs/1000 round trips",
            _ => "jobs/s",
        }
    }
}

impl FromStr for Measure {
    type Err = Failure;
    fn from_str(name: &str) -> Result<Self> {
        named(&Self::ALL, name)
    }
}
