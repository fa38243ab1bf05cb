//! A handler that says a number.
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

async fn pay(pay: Pay, _: Context<()>) -> u64 {
    pay.cents
}

fn main() {
    let store = std::sync::Arc::new(leasehold_memory::MemoryStore::new());
    let _ = Worker::builder(store).queue("payments").handle::<Pay>(pay);
}
