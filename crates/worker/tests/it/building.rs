//! What a builder refuses, and what it says of it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Pay, Work, store};
use leasehold_core::{Invalid, Problem, Settled, Store, StoreError};
use leasehold_memory::MemoryStore;
use leasehold_worker::{Context, QueueOptions, Worker, WorkerBuilder};

async fn work(_: Work, _: Context<()>) {}

async fn settles(_: Work, _: Context<()>) -> Result<Settled, StoreError> {
    Err(StoreError::conflict("never called"))
}

fn builder() -> WorkerBuilder {
    Worker::builder(Arc::new(store()))
}

fn refused(builder: WorkerBuilder) -> Invalid {
    builder.start().map(|_| ()).unwrap_err()
}

fn repeated(field: &'static str, what: &str) -> Invalid {
    Invalid::new(field, Problem::Repeated { what: what.to_owned() })
}

#[tokio::test]
async fn a_kind_has_one_handler() {
    let twice = [
        builder().queue("q").handle::<Work>(work).handle::<Work>(work),
        builder().queue("q").handle::<Work>(work).handle_tx::<Work>(settles),
        builder().queue("q").handle_tx::<Work>(settles).handle::<Work>(work),
    ];
    for twice in twice {
        assert_eq!(refused(twice), repeated("handle", "the kind work"));
    }
    let pay = async |_: Pay, _: Context<()>| {};
    let two = builder().queue("q").handle::<Work>(work).handle::<Pay>(pay).start().unwrap();
    two.shutdown(Duration::ZERO).await.unwrap();
    let fallback = async |_: Context<()>| {};
    let twice = builder().queue("q").fallback(fallback).fallback(fallback);
    assert_eq!(refused(twice).to_string(), "fallback must not name a fallback more than once");
}

/// A worker without a handler would make dead letters of all that it finds.
#[tokio::test]
async fn there_is_a_handler() {
    assert_eq!(refused(builder().queue("q")), Invalid::new("handlers", Problem::Empty));
    let timeout = builder().queue("q").timeout_of::<Work>(Duration::from_secs(1));
    assert_eq!(refused(timeout), Invalid::new("handlers", Problem::Empty), "options are no handler");
    let fallback = builder().queue("q").fallback(async |_: Context<()>| {}).start().unwrap();
    fallback.shutdown(Duration::ZERO).await.unwrap();
}

/// Two sources of one queue would each keep to their limits, and together to none.
#[tokio::test]
async fn a_queue_is_named_once() {
    let narrow = QueueOptions::new().concurrency(1);
    let twice = |builder: WorkerBuilder| refused(builder.handle::<Work>(work));
    assert_eq!(twice(builder().queue("q").queue("q")), repeated("queue", "q"));
    assert_eq!(twice(builder().queues(["a", "q", "b", "q"])), repeated("queue", "q"));
    assert_eq!(twice(builder().queue("q").queue_with("q", narrow)), repeated("queue", "q"));
    assert_eq!(twice(builder().queue_with("q", narrow).queue_with("q", narrow)), repeated("queue", "q"));
    assert_eq!(twice(builder().queue("game:*").queue_with("game:*", narrow)), repeated("queue", "game:*"));
    let apart = builder().queue("game:*").queue_with("game:vip", narrow).handle::<Work>(work);
    apart.start().unwrap().shutdown(Duration::ZERO).await.unwrap();
}

/// Outside a runtime nothing is started, and nothing stays behind.
#[test]
fn a_worker_starts_in_a_runtime() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let worker = Worker::builder(Arc::clone(&store)).queue("q").handle::<Work>(work);
    let started = std::panic::catch_unwind(AssertUnwindSafe(|| worker.start().map(|_| ())));
    assert_eq!(started.unwrap().unwrap_err().field, "runtime");
    assert_eq!(Arc::strong_count(&store), 1);
}
