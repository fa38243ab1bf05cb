//! What a random sequence is made of.
//!
//! Numbers are small and mean places in lists that exist only when the sequence is played (`lease: 3` is the fourth
//! lease that was ever granted, modulo their number), so that every sequence can be played and shrunk. Times are whole
//! hours, so that the seconds which a database takes do not matter.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::strategy::Union;
use serde::{Deserialize, Serialize};

/// One step of a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Enqueues jobs in one batch.
    Enqueue(Vec<Planned>),
    /// Leases from named queues.
    Dequeue {
        /// Which queues, by number.
        queues: Vec<u8>,
        /// At most how many.
        limit: u8,
        /// For how many hours.
        hours: u8,
    },
    /// Leases from a prefix that matches all queues.
    DequeuePrefix {
        /// At most how many.
        limit: u8,
        /// For how many hours.
        hours: u8,
    },
    /// Settles leases in one batch.
    Settle(Vec<(u8, Sentence)>),
    /// Settles one lease through `ack`.
    Ack(u8),
    /// Settles one lease through `nack`.
    Nack(u8),
    /// Releases leases.
    Release(Vec<u8>),
    /// Extends leases.
    Heartbeat {
        /// Which leases.
        leases: Vec<u8>,
        /// For how many hours.
        hours: u8,
    },
    /// Reclaims.
    Reclaim {
        /// At most how many.
        limit: u8,
    },
    /// Sends a job back.
    RetryLater {
        /// Which job.
        job: u8,
        /// In how many hours.
        hours: u8,
    },
    /// Discards a job.
    Discard(u8),
    /// Makes a job available.
    Promote(u8),
    /// Redrives dead letters of one queue.
    Redrive {
        /// Which queue.
        queue: u8,
        /// At most how many.
        limit: u8,
    },
    /// Redrives one job.
    RedriveJob(u8),
    /// Forgets finished jobs.
    Prune {
        /// That ended so many hours ago.
        hours: u8,
        /// At most how many.
        limit: u8,
    },
    /// Forgets dead letters of one queue.
    PruneDead(u8),
    /// Pauses a queue.
    Pause(u8),
    /// Resumes a queue.
    Resume(u8),
    /// Sets a queue's policy.
    SetPolicy(u8, Rule),
    /// Lets hours pass.
    Age(u8),
    /// Goes on with another handle.
    Reconnect,
    /// Asks for statistics, explanations and what receipts are worth.
    Inspect,
    /// Settles a lease and enqueues a job in one transaction.
    Transaction {
        /// Which lease.
        lease: u8,
        /// With which verdict.
        sentence: Sentence,
        /// What to enqueue.
        job: Planned,
        /// Whether to commit.
        commit: bool,
    },
}

/// A job to be enqueued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// Its queue, by number.
    pub queue: u8,
    /// Its priority.
    pub priority: i8,
    /// Its unique key, by number.
    pub key: Option<u8>,
    /// Its delay in hours.
    pub hours: u8,
    /// Its attempts.
    pub max_attempts: u8,
}

/// A verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sentence {
    /// Done.
    Done,
    /// Retry in so many hours.
    Retry(u8),
    /// Retry as the queue says.
    Backoff,
    /// Snooze for so many hours.
    Snooze(u8),
    /// Dead.
    Dead,
    /// Discard.
    Discard,
}

/// A policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rule {
    /// None.
    Nothing,
    /// So many leases at once.
    Concurrency(u8),
    /// One at a time, in order.
    Fifo,
    /// No lease over an hour.
    MaxLease,
    /// Keep dead letters only.
    DeadOnly,
    /// A passed lease waits.
    WaitAfterExpiry,
}

/// Which operations a sequence may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Menu {
    pub(crate) policies: bool,
    pub(crate) limits: bool,
    pub(crate) transactions: bool,
}

/// How many queues, keys and so on a sequence plays with: few, so that things meet.
pub(crate) const QUEUES: u8 = 3;
const KEYS: u8 = 3;

pub(crate) fn sequence(menu: Menu) -> impl Strategy<Value = Vec<Operation>> {
    vec(operation(menu), 1..40)
}

fn operation(menu: Menu) -> impl Strategy<Value = Operation> {
    let mut choices = vec![(60, on_jobs().boxed()), (20, by_administrator().boxed()), (8, of_time().boxed())];
    if menu.policies {
        choices.push((8, on_policies().boxed()));
    }
    if menu.limits {
        let limit = prop_oneof![Just(Rule::Fifo), (1_u8..3).prop_map(Rule::Concurrency)];
        let limits = (0..QUEUES, limit).prop_map(|(queue, rule)| Operation::SetPolicy(queue, rule));
        choices.push((4, limits.boxed()));
    }
    if menu.transactions {
        choices.push((12, in_a_transaction().boxed()));
    }
    Union::new_weighted(choices)
}

fn on_jobs() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => vec(planned(), 0..4).prop_map(Operation::Enqueue),
        8 => (vec(0..QUEUES, 1..4), 1_u8..5, 1_u8..4)
            .prop_map(|(queues, limit, hours)| Operation::Dequeue { queues, limit, hours }),
        4 => (1_u8..6, 1_u8..4).prop_map(|(limit, hours)| Operation::DequeuePrefix { limit, hours }),
        8 => vec((any::<u8>(), sentence()), 0..4).prop_map(Operation::Settle),
        2 => any::<u8>().prop_map(Operation::Ack),
        2 => any::<u8>().prop_map(Operation::Nack),
        2 => vec(any::<u8>(), 0..3).prop_map(Operation::Release),
        4 => (vec(any::<u8>(), 0..4), 1_u8..4)
            .prop_map(|(leases, hours)| Operation::Heartbeat { leases, hours }),
        5 => (1_u8..5).prop_map(|limit| Operation::Reclaim { limit }),
    ]
}

fn by_administrator() -> impl Strategy<Value = Operation> {
    prop_oneof![
        2 => (any::<u8>(), 0_u8..3).prop_map(|(job, hours)| Operation::RetryLater { job, hours }),
        1 => any::<u8>().prop_map(Operation::Discard),
        1 => any::<u8>().prop_map(Operation::Promote),
        2 => (0..QUEUES, 1_u8..4).prop_map(|(queue, limit)| Operation::Redrive { queue, limit }),
        1 => any::<u8>().prop_map(Operation::RedriveJob),
        1 => (0_u8..4, 1_u8..4).prop_map(|(hours, limit)| Operation::Prune { hours, limit }),
        1 => (0..QUEUES).prop_map(Operation::PruneDead),
        2 => Just(Operation::Inspect),
    ]
}

fn of_time() -> impl Strategy<Value = Operation> {
    prop_oneof![6 => (1_u8..4).prop_map(Operation::Age), 1 => Just(Operation::Reconnect)]
}

fn on_policies() -> impl Strategy<Value = Operation> {
    prop_oneof![
        1 => (0..QUEUES).prop_map(Operation::Pause),
        1 => (0..QUEUES).prop_map(Operation::Resume),
        2 => (0..QUEUES, rule()).prop_map(|(queue, rule)| Operation::SetPolicy(queue, rule)),
    ]
}

fn in_a_transaction() -> impl Strategy<Value = Operation> {
    (any::<u8>(), sentence(), planned(), any::<bool>())
        .prop_map(|(lease, sentence, job, commit)| Operation::Transaction { lease, sentence, job, commit })
}

fn planned() -> impl Strategy<Value = Planned> {
    let hours = prop_oneof![3 => Just(0_u8), 1 => 1_u8..3];
    (0..QUEUES, -1_i8..2, option::of(0..KEYS), hours, 1_u8..4).prop_map(
        |(queue, priority, key, hours, max_attempts)| Planned { queue, priority, key, hours, max_attempts },
    )
}

fn sentence() -> impl Strategy<Value = Sentence> {
    prop_oneof![
        4 => Just(Sentence::Done),
        3 => (0_u8..3).prop_map(Sentence::Retry),
        2 => Just(Sentence::Backoff),
        2 => (0_u8..3).prop_map(Sentence::Snooze),
        2 => Just(Sentence::Dead),
        1 => Just(Sentence::Discard),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        2 => Just(Rule::Nothing),
        1 => Just(Rule::MaxLease),
        1 => Just(Rule::DeadOnly),
        1 => Just(Rule::WaitAfterExpiry),
    ]
}
