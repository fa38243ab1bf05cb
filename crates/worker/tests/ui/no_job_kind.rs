//! A payload without a kind.
use leasehold_worker::{Context, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Pay {
    cents: u64,
}

async fn pay(_: Pay, _: Context<()>) {}

fn main() {
    let store = std::sync::Arc::new(leasehold_memory::MemoryStore::new());
    let _ = Worker::builder(store).queue("payments").handle::<Pay>(pay);
}
