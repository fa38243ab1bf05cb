//! What a backend can do.

use serde::Serialize;

use crate::limits;

/// What a backend can do, for the suite and the docs. Checks of what it cannot do are shown as not applicable.
///
/// ```
/// use leasehold_core::Capabilities;
///
/// let mine = Capabilities { policies: true, fifo: true, ..Capabilities::minimal() };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// It implements [`TxStore`](crate::TxStore).
    pub transactions: bool,
    /// It keeps policies: pause, max lease, backoff, default attempts, retention, archive and on-expiry.
    pub policies: bool,
    /// It keeps concurrency limits. Like the next two, it stands on `policies`.
    pub concurrency_limit: bool,
    /// It keeps rate limits.
    pub rate_limit: bool,
    /// It keeps Fifo order.
    pub fifo: bool,
    /// Its [`wakeups`](crate::Store::wakeups) fire.
    pub wakeups: bool,
    /// They fire for what other handles do, too, and for the commit of a user's transaction. Without it, hints stay within the handle, and other processes find work
    /// by polling.
    pub shared_wakeups: bool,
    /// Its [`subscribe`](crate::Store::subscribe) tells events.
    pub events: bool,
    /// A batch over several queues is accepted whole or not at all, as one for a single queue always is.
    pub atomic_batches: bool,
    /// A transaction that is open holds up no operation on other jobs.
    pub concurrent_writers: bool,
    /// What it has accepted survives a crash of the process, and what else the backend's docs say. The suite closes every
    /// handle and opens another; for crashes it takes your word.
    pub durable: bool,
    /// The largest document (payload, result, error or reason) that it accepts, in bytes: 1 MiB unless it was built for
    /// another size.
    pub payload_limit: usize,
}

impl Capabilities {
    /// The least that a backend can be: no transactions, no policies, no hints, not durable.
    pub const fn minimal() -> Self {
        Self {
            transactions: false,
            policies: false,
            concurrency_limit: false,
            rate_limit: false,
            fifo: false,
            wakeups: false,
            shared_wakeups: false,
            events: false,
            atomic_batches: false,
            concurrent_writers: false,
            durable: false,
            payload_limit: limits::PAYLOAD_BYTES,
        }
    }

    /// Everything, durability included.
    pub const fn full() -> Self {
        Self {
            transactions: true,
            policies: true,
            concurrency_limit: true,
            rate_limit: true,
            fifo: true,
            wakeups: true,
            shared_wakeups: true,
            events: true,
            atomic_batches: true,
            concurrent_writers: true,
            durable: true,
            payload_limit: limits::PAYLOAD_BYTES,
        }
    }
}
