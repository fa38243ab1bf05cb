//! Stores with other settings.

use std::sync::{Arc, Mutex};

use leasehold_core::Capabilities;

use crate::clock::{Clock, SystemClock};
use crate::state::State;
use crate::{MemoryStore, Shared};

/// Makes a [`MemoryStore`].
#[must_use = "call build()"]
pub struct MemoryStoreBuilder {
    clock: Arc<dyn Clock>,
    random: fastrand::Rng,
    payload_limit: usize,
}

impl MemoryStoreBuilder {
    pub(crate) fn new() -> Self {
        let payload_limit = leasehold_core::limits::PAYLOAD_BYTES;
        Self { clock: Arc::new(SystemClock), random: fastrand::Rng::new(), payload_limit }
    }

    /// Goes by `clock`.
    pub fn clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Draws the same jitter each time.
    pub fn seed(self, seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), ..self }
    }

    /// Accepts payloads, results and errors of at most so many bytes.
    pub fn payload_limit(self, bytes: usize) -> Self {
        Self { payload_limit: bytes, ..self }
    }

    /// The store.
    pub fn build(self) -> MemoryStore {
        let capabilities =
            Capabilities { durable: false, payload_limit: self.payload_limit, ..Capabilities::full() };
        let state = Mutex::new(State::new(self.clock, self.random));
        MemoryStore { shared: Arc::new(Shared { state, capabilities }) }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Capabilities, NewJob, Store, StoreError};

    use super::*;

    #[tokio::test]
    async fn a_store_in_memory_promises_all_but_to_outlive_its_process() {
        let store = MemoryStoreBuilder::new().payload_limit(10).build();
        let promised = Capabilities { durable: false, payload_limit: 10, ..Capabilities::full() };
        assert_eq!(store.capabilities(), promised);
        let job = |text: &str| NewJob::builder("q", "k").payload(text).build().unwrap();
        assert!(store.enqueue(&[job("12345678")]).await.is_ok());
        let refused = store.enqueue(&[job("123456789")]).await;
        assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
    }
}
