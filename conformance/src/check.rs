//! One check: its name, the clauses that it proves, and how it is run.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Capabilities;
use leasehold_core::contract::Clause;

use crate::failure::{self, Failure, Problem};
use crate::harness::Harness;
use crate::report::Outcome;
use crate::stage::Stage;

/// A broken store must fail its check, not hang it.
const TIME_LIMIT: Duration = Duration::from_secs(120);

pub(crate) type Running = Pin<Box<dyn Future<Output = failure::Outcome> + Send>>;

/// One check of the suite.
#[derive(Clone, Copy)]
pub struct Check {
    /// Its name, such as `race::racing_workers_share_no_job`.
    pub name: &'static str,
    /// The clauses that it proves; an unexpected error is blamed on the first.
    pub clauses: &'static [Clause],
    /// What the backend must promise for the check to apply.
    pub needs: &'static [Need],
    pub(crate) body: fn(Stage) -> Running,
}

impl Check {
    /// The operation or subject that it belongs to: the first part of its name, such as `race`.
    pub fn group(&self) -> &'static str {
        self.name.split_once("::").map_or(self.name, |(group, _)| group)
    }

    /// Runs the check on a fresh database of the harness.
    pub fn run<H: Harness>(&self, harness: Arc<H>) -> Outcome {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return self.failed(Problem::Harness(error.into())),
        };
        let check = *self;
        let running = runtime.spawn(async move { check.staged(harness).await });
        let ended = runtime.block_on(async { tokio::time::timeout(TIME_LIMIT, running).await });
        runtime.shutdown_background();
        let observed = match ended {
            Ok(Ok(outcome)) => return outcome,
            Ok(Err(panic)) => format!("panicked: {}", panic_message(panic)),
            Err(_) => format!("no end after {TIME_LIMIT:?}"),
        };
        self.failed(Problem::Broken(self.clauses[0], observed))
    }

    async fn staged<H: Harness>(self, harness: Arc<H>) -> Outcome {
        let stage = match Stage::new(harness).await {
            Ok(stage) => stage,
            Err(problem) => return self.failed(problem),
        };
        let capabilities = stage.store.capabilities();
        if let Some(need) = self.needs.iter().find(|need| !need.is_met(&capabilities)) {
            return Outcome::NotApplicable { reason: need.reason().to_owned() };
        }
        // The check has the only handle, so that it can close it.
        let site = stage.site();
        let played = (self.body)(stage).await;
        let cleared = site.destroy().await;
        match played.and(cleared) {
            Ok(()) => Outcome::Passed,
            Err(Problem::NotApplicable(reason)) => Outcome::NotApplicable { reason: reason.to_owned() },
            Err(problem) => self.failed(problem),
        }
    }

    fn failed(&self, problem: Problem) -> Outcome {
        Outcome::Failed(self.blame(problem))
    }

    fn blame(&self, problem: Problem) -> Failure {
        problem.blame(self.name, self.clauses[0])
    }
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.name, self.clauses)
    }
}

/// Something that not every backend promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// [`Capabilities::transactions`]
    Transactions,
    /// [`Capabilities::policies`]
    Policies,
    /// [`Capabilities::concurrency_limit`]
    ConcurrencyLimit,
    /// [`Capabilities::rate_limit`]
    RateLimit,
    /// [`Capabilities::fifo`]
    Fifo,
    /// [`Capabilities::wakeups`]
    Wakeups,
    /// [`Capabilities::shared_wakeups`]
    SharedWakeups,
    /// [`Capabilities::events`]
    Events,
    /// [`Capabilities::atomic_batches`]
    AtomicBatches,
    /// [`Capabilities::concurrent_writers`]
    ConcurrentWriters,
    /// [`Capabilities::durable`]
    Durable,
}

impl Need {
    fn is_met(self, capabilities: &Capabilities) -> bool {
        match self {
            Self::Transactions => capabilities.transactions,
            Self::Policies => capabilities.policies,
            Self::ConcurrencyLimit => capabilities.concurrency_limit,
            Self::RateLimit => capabilities.rate_limit,
            Self::Fifo => capabilities.fifo,
            Self::Wakeups => capabilities.wakeups,
            Self::SharedWakeups => capabilities.shared_wakeups,
            Self::Events => capabilities.events,
            Self::AtomicBatches => capabilities.atomic_batches,
            Self::ConcurrentWriters => capabilities.concurrent_writers,
            Self::Durable => capabilities.durable,
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Transactions => "the backend has no transactions to share",
            Self::Policies => "the backend keeps no policies",
            Self::ConcurrencyLimit => "the backend keeps no concurrency limits",
            Self::RateLimit => "the backend keeps no rate limits",
            Self::Fifo => "the backend keeps no Fifo order",
            Self::Wakeups => "the backend gives no wake-ups",
            Self::SharedWakeups => "hints of the backend stay within the handle",
            Self::Events => "the backend tells no events",
            Self::AtomicBatches => "the backend does not accept batches over several queues in one step",
            Self::ConcurrentWriters => "an open transaction of the backend holds up all other writers",
            Self::Durable => "the backend keeps nothing beyond its last handle",
        }
    }
}

fn panic_message(panic: tokio::task::JoinError) -> String {
    match panic.try_into_panic() {
        Ok(payload) => match payload.downcast_ref::<&str>() {
            Some(message) => (*message).to_owned(),
            None => {
                payload.downcast_ref::<String>().cloned().unwrap_or_else(|| "without a message".to_owned())
            }
        },
        Err(cancelled) => cancelled.to_string(),
    }
}

/// Lists the checks of a module, each with the clauses that it proves and what it needs:
/// `checks! { "fifo": name [P4, P5] needs Fifo; … }`.
macro_rules! checks {
    ($module:literal: $($name:ident [$($clause:ident),+] $(needs $($need:ident),+)?;)*) => {
        pub(crate) const CHECKS: &[$crate::check::Check] = &[$(
            $crate::check::Check {
                name: concat!($module, "::", stringify!($name)),
                clauses: &[$(leasehold_core::contract::$clause),+],
                needs: &[$($($crate::check::Need::$need),+)?],
                body: |stage| Box::pin($name(stage)),
            },
        )*];
    };
}

pub(crate) use checks;
