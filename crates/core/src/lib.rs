//! The contract of Leasehold: what a job is, what a store promises, and how that is told.
//!
//! Leasehold is a job queue that lives in the database its users already run. A worker holds a job on a *lease*;
//! the handler settles the job in the same transaction as its own writes; a worker that lost its lease can settle
//! nothing, so its writes roll back with it.
//!
//! This crate has no database, no runtime and no I/O. It has
//!
//! * the values that go in and out, checked once: [`NewJob`], [`Job`], [`Receipt`], [`Verdict`], [`QueuePolicy`], …;
//! * the derived state ([`Facts::state`]), the backoff ([`Backoff`]) and the token bucket ([`RateLimit`]) as pure
//!   functions;
//! * the traits that a backend implements, [`Store`] and [`TxStore`], whose docs link to numbered promises in
//!   [`contract`];
//! * [`backend`], for those who write one.
//!
//! Those who *use* a queue depend on the crate `leasehold`; those who *write* a backend depend on this one, and prove
//! it with `leasehold-conformance`.

pub mod backend;
pub mod contract;
pub mod limits;
pub mod time;

mod backoff;
mod bounded;
mod capabilities;
mod derived;
mod error;
mod event;
mod exact;
mod headers;
mod inspect;
mod invalid;
mod job;
mod job_kind;
mod json;
#[cfg(feature = "mock")]
mod mock;
mod name;
mod new_job;
mod policy;
mod queues;
mod request;
mod state;
mod store;
mod strict;
mod tx_store;
mod verdict;

pub use backoff::Backoff;
pub use bounded::{BatchSize, Delay, LeaseFor, MaxAttempts};
pub use capabilities::Capabilities;
pub use error::{BoxError, Result, StoreError};
pub use event::{Event, EventKind, Events, Lagged, Wakeups};
pub use headers::Headers;
pub use inspect::{Explanation, NextAvailable, QueueStats, QueueUsage};
pub use invalid::{Invalid, Problem};
pub use job::{Epoch, FinalStatus, FinishedJob, Job, JobId, Lease, Outcome, Receipt, Record};
pub use job_kind::JobKind;
pub use json::Json;
#[cfg(feature = "mock")]
pub use mock::{MockStore, MockTxStore};
pub use name::{IdempotencyKey, Kind, QueueName, QueuePrefix, UniqueKey, WorkerId};
pub use new_job::{Enqueued, NewJob, NewJobBuilder};
pub use policy::{
    Archive, ConcurrencyLimit, EffectivePolicy, OnExpiry, Policies, QueueOrder, QueuePolicy, RateLimit,
};
pub use queues::{QueueNames, QueuePattern, Queues};
pub use request::{
    Dequeue, Direction, HistoryFilter, Intervention, JobFilter, Page, Prune, PruneAge, ReclaimFate,
    Reclaimed, Redrive, Redriven,
};
pub use state::{Facts, JobState};
pub use store::Store;
pub use time::{Schedule, ScheduledTime};
pub use tx_store::TxStore;
pub use verdict::{Fate, HeartbeatOutcome, ReceiptStatus, RetryAfter, SettleOutcome, Settled, Verdict};
