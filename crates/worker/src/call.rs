//! Calls to the store, of which each comes to an end.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::{LeaseFor, StoreError};
use tokio::time::Instant;

use crate::panics::{contain, message};

/// Longer durations are clamped, so that `Instant + Duration` cannot overflow.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// For how long the answer to anything but a heartbeat is awaited. A claim that is answered after its lease is of no use.
pub(crate) fn patience(lease: LeaseFor) -> Duration {
    lease.get().clamp(Duration::from_secs(5), Duration::from_secs(60))
}

/// [`answer_until`] so much time has passed.
pub(crate) async fn answer<T>(
    operation: &'static str,
    patience: Duration,
    call: impl AsyncFnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    answer_until(operation, tokio::time::sleep(patience), call).await
}

/// A store that panics has failed, no more. One that does not answer is given up, and what it did is not known.
pub(crate) async fn answer_until<T>(
    operation: &'static str,
    limit: impl Future<Output = ()>,
    call: impl AsyncFnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let start = Instant::now();
    // The call is made inside: it may panic before there is a future.
    let mut call = Box::pin(AssertUnwindSafe(async { call().await }).catch_unwind());
    let answer = tokio::select! {
        biased;
        answer = &mut call => Some(answer),
        () = limit => None,
    };
    contain(|| drop(call));
    match answer {
        Some(Ok(answer)) => answer,
        Some(Err(panic)) => {
            Err(StoreError::backend(operation, format!("the store panicked: {}", message(panic))))
        }
        None => Err(StoreError::unknown(operation, format!("no answer within {:?}", start.elapsed()))),
    }
}

/// `after` this time, or as good as never.
pub(crate) fn later(time: Instant, after: Duration) -> Instant {
    time + after.min(FAR)
}

pub(crate) async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_for_decades_and_never_overflow() {
        let (now, year) = (Instant::now(), Duration::from_secs(365 * 24 * 3600));
        for length in [Duration::ZERO, Duration::from_secs(1), year, 29 * year, 30 * year] {
            assert_eq!(later(now, length), now + length);
        }
        assert_eq!(later(now, Duration::MAX), now + 30 * year);
    }

    #[test]
    fn an_answer_is_awaited_as_long_as_a_lease_within_bounds() {
        for (lease, patience) in [(1, 5), (5, 5), (30, 30), (60, 60), (3600, 60)] {
            let lease = LeaseFor::new(Duration::from_secs(lease)).unwrap();
            assert_eq!(super::patience(lease), Duration::from_secs(patience), "{lease:?}");
        }
    }
}
