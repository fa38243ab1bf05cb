//! A worker in numbers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

macro_rules! numbers {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// A worker in numbers, since it was started.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct WorkerStats {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Whether the store answered the last time.
            pub store_is_up: bool,
        }

        #[derive(Default)]
        pub(crate) struct Numbers {
            $(pub(crate) $name: AtomicU64,)+
            pub(crate) store_is_down: AtomicBool,
        }

        impl Numbers {
            pub(crate) fn read(&self) -> WorkerStats {
                WorkerStats {
                    $($name: self.$name.load(Ordering::Relaxed),)+
                    store_is_up: !self.store_is_down.load(Ordering::Relaxed),
                }
            }
        }
    };
}

numbers! {
    /// Handlers running now.
    running,
    /// Jobs leased and started.
    leased,
    /// Jobs completed.
    completed,
    /// Jobs that failed and went back to their queue.
    retried,
    /// Jobs put back without harm: snoozed or released.
    snoozed,
    /// Jobs that became dead letters.
    dead_lettered,
    /// Jobs that were discarded.
    discarded,
    /// Leases lost while their handler was running, or verdicts refused.
    lease_lost,
    /// Transactional handlers that returned a proof without a commit.
    not_committed,
    /// Handlers that panicked.
    panicked,
    /// Handlers that took too long.
    timed_out,
    /// Jobs of a kind without a handler.
    unknown_kind,
    /// Jobs whose payload could not be decoded.
    undecodable,
    /// Jobs refused by a layer.
    refused,
    /// Leases of others that had passed and were taken away.
    reclaimed,
    /// Hints to look.
    wakeups,
    /// Claims sent to the store.
    claims,
    /// Jobs that have ended and are not settled yet: their verdicts wait, are under way, or must be sent again.
    unsettled,
    /// Verdicts that must be sent again, because the store failed, did not answer, or had the job's row locked.
    settle_retries,
}
