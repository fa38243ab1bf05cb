//! Every limit of the contract, by name.
//!
//! A value beyond a limit is refused with [`Invalid`](crate::Invalid), naming the field and the limit, when it is made.
//! Only the length of a batch and the size of a document are refused by the store, with the checks of
//! [`backend`](crate::backend). The limits are the same on every backend, except that a store may be built for larger or
//! smaller documents.

use std::time::Duration;

/// Longest queue, kind or worker name, and header name, in bytes.
pub const NAME_BYTES: usize = 128;
/// Longest unique key or idempotency key, in bytes of UTF-8.
pub const KEY_BYTES: usize = 255;
/// Largest payload that a store accepts unless it was built with another limit, in bytes of compact JSON.
pub const PAYLOAD_BYTES: usize = 1 << 20;
/// Largest JSON document of any kind (payload, result, error), in bytes of compact JSON.
pub const JSON_BYTES: usize = 64 << 20;
/// Deepest nesting of a JSON document.
pub const JSON_DEPTH: usize = 64;
/// Largest sum of the header names and values of one job, in bytes.
pub const HEADERS_BYTES: usize = 16 << 10;
/// Most headers on one job.
pub const HEADERS: usize = 64;
/// Most jobs, receipts, names or rows in one call.
pub const BATCH: u32 = 10_000;
/// Shortest lease.
pub const LEASE_MIN: Duration = Duration::from_millis(1);
/// Longest lease.
pub const LEASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest delay, snooze, backoff or retention: a hundred years.
pub const DELAY_MAX: Duration = Duration::from_secs(36_525 * 24 * 60 * 60);
/// How long an idempotency key is kept at least, unless it says otherwise: 30 days.
pub const KEY_RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Most attempts that a job may have.
pub const MAX_ATTEMPTS: u32 = 1000;
/// Attempts of a job for which neither the job nor its queue's policy says anything.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 5;
/// Largest rate of a queue, in jobs per second. Times are kept in microseconds, so that more could not be kept exactly.
pub const RATE_MAX: f64 = 10_000.0;
/// Largest burst or concurrency limit of a queue.
pub const LIMIT_MAX: u32 = 1_000_000;
/// Last year in which a time may lie.
pub const YEAR_MAX: i32 = 9999;
