//! Handlers that end together.

use std::time::Duration;

use tokio::sync::Barrier;

/// How long handlers wait for each other. At the end there are too few of them.
const PATIENCE: Duration = Duration::from_millis(100);

/// Lets handlers go when all slots of their worker are taken, so that they end at once. What a worker asks of its store then
/// follows from what it gets, and not from how fast the machine happens to be.
#[derive(Debug)]
pub struct Gate(Barrier);

impl Gate {
    /// For a worker with so many slots.
    pub fn new(slots: usize) -> Self {
        Self(Barrier::new(slots))
    }

    /// Waits for the others.
    pub async fn pass(&self) {
        // Who has waited in vain goes on alone.
        let _ = tokio::time::timeout(PATIENCE, self.0.wait()).await;
    }
}
