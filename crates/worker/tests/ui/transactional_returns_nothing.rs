//! The money is moved, and nobody tells the queue.
use leasehold_core::JobKind;
use leasehold_worker::{Context, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Pay {
    cents: u64,
}

impl JobKind for Pay {
    const KIND: &'static str = "pay";
}

async fn pay(_: Pay, _: Context<()>) {}

fn main() {
    let store = std::sync::Arc::new(leasehold_memory::MemoryStore::new());
    let _ = Worker::builder(store).queue("payments").handle_tx::<Pay>(pay);
}
