//! Panics where the worker must not die of them: in the metrics recorder, in the tracing subscriber, in what a panic carries.

use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::wrapped::{Around, Op, Wrapped};
use crate::support::{Work, enqueue, finished, store, worker};
use async_trait::async_trait;
use leasehold_core::{NewJob, Result, Schedule, Store, StoreError};
use leasehold_memory::MemoryStore;
use leasehold_worker::{Context, HeartbeatOn, Worker};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

/// A subscriber whose output is gone, and counts how often that was seen.
#[derive(Clone, Default)]
struct Broken(Arc<AtomicUsize>);

impl Broken {
    fn panic(&self) -> ! {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("failed printing to stderr");
    }
}

impl tracing::Subscriber for Broken {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.panic();
    }

    fn enter(&self, _: &tracing::span::Id) {
        self.panic();
    }

    fn exit(&self, _: &tracing::span::Id) {
        self.panic();
    }

    fn try_close(&self, _: tracing::span::Id) -> bool {
        self.panic();
    }
}

impl Recorder for Broken {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        self.panic()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        self.panic()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        self.panic()
    }
}

/// A store that cannot be reached for a while, and that loses a lease.
struct Troubled(std::sync::atomic::AtomicBool);

#[async_trait]
impl Around for Troubled {
    async fn before(&self, op: Op, _: usize) -> Result<()> {
        match self.0.load(Ordering::SeqCst) && op != Op::Wakeups {
            true => Err(StoreError::unavailable("test", "cannot be reached")),
            false => Ok(()),
        }
    }
}

/// Timeouts, panics, an outage, a lost lease, a reclaim, numbers of the queues: all that is told goes nowhere.
async fn a_life_with_troubles() {
    let store = store();
    let dead = leasehold_core::Dequeue::new("q", "dead").unwrap().lease_for(20 * SECOND).unwrap();
    enqueue(&store, 90).await;
    store.dequeue(&dead).await.unwrap();
    let troubled = Arc::new(Troubled(false.into()));
    let handler = async |work: Work, context: Context<()>| match (work.n, context.attempt()) {
        (1, 1) => {
            context.store().retry_later(context.id(), Schedule::Now).await.unwrap();
            context.cancelled().await;
        }
        (2, 1) => panic!("as the test wants"),
        (n, 1) if n % 2 == 0 => std::future::pending().await,
        _ => sleep(SECOND).await,
    };
    let worker = Worker::builder(Wrapped::new(&store, &troubled))
        .queue("q")
        .heartbeat_on(HeartbeatOn::Task)
        .lease(30 * SECOND)
        .concurrency(5)
        .timeout(20 * SECOND)
        .sample_queues(SECOND)
        .handle::<Work>(handler)
        .start()
        .unwrap();
    sleep(60 * SECOND).await;
    troubled.0.store(true, Ordering::SeqCst);
    sleep(60 * SECOND).await;
    troubled.0.store(false, Ordering::SeqCst);
    finished(&store, 90).await;
    sleep(SECOND).await;
    let stats = worker.stats();
    assert_eq!((stats.running, stats.completed, stats.unsettled), (0, 90, 0), "{stats:?}");
    assert!(
        stats.panicked <= 2 && stats.timed_out > 20 && stats.reclaimed > 0 && stats.lease_lost > 0,
        "{stats:?}"
    );
    worker.shutdown(Duration::ZERO).await.unwrap();
}

fn paused() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// Set in the process that has the subscriber which panics.
const ALONE: &str = "LEASEHOLD_TEST_BROKEN_SUBSCRIBER";

/// As with `2>&1 | head -n 1`: the log writes to a pipe that is closed. In a process of its own: `tracing` asks every subscriber
/// of a process whether it wants a line, and does not ask again after a panic, so that other tests would miss lines.
#[test]
fn a_subscriber_that_panics_costs_nothing() {
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", "panics::the_process_with_the_subscriber_that_panics", "--nocapture"]);
    let ended = alone.env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn the_process_with_the_subscriber_that_panics() {
    if std::env::var_os(ALONE).is_none() {
        return; // It is started by the test above.
    }
    let broken = Broken::default();
    tracing::subscriber::with_default(broken.clone(), || paused().block_on(a_life_with_troubles()));
    assert!(broken.0.load(Ordering::SeqCst) > 10, "the test is about panics");
}

#[test]
fn a_recorder_that_panics_costs_nothing() {
    let broken = Broken::default();
    metrics::with_local_recorder(&broken, || paused().block_on(a_life_with_troubles()));
    assert!(broken.0.load(Ordering::SeqCst) > 10, "the test is about panics");
}

/// What a panic carries, and panics itself when it is dropped.
struct Bomb(u32);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 > 0 {
            panic_any(Bomb(self.0 - 1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_that_carries_a_panic_is_a_failed_attempt_and_its_slot_is_free() {
    struct Thrown;
    impl Drop for Thrown {
        fn drop(&mut self) {
            panic_any(Bomb(1));
        }
    }
    let store = store();
    enqueue(&store, 4).await;
    let handler = async |work: Work, context: Context<()>| {
        match (work.n % 2, context.attempt()) {
            (0, 1) => panic_any(Bomb(3)),
            (1, 1) => {
                let _thrown = Thrown;
                std::future::pending::<()>().await;
            }
            _ => {}
        };
    };
    let worker = worker(&store).concurrency(1).timeout(SECOND).handle::<Work>(handler).start().unwrap();
    let jobs = finished(&store, 4).await;
    assert!(jobs.iter().all(|job| job.attempts == 2), "{jobs:?}");
    sleep(SECOND).await;
    assert_eq!(worker.stats().running, 0);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// The store's panics carry panics, too, in every operation; and its futures panic when they are given up.
#[tokio::test(start_paused = true)]
async fn a_store_whose_panics_carry_panics_ends_no_part_of_the_worker() {
    struct Bombing(AtomicUsize);
    struct Thrown;
    impl Drop for Thrown {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic_any(Bomb(1));
            }
        }
    }
    #[async_trait]
    impl Around for Bombing {
        async fn before(&self, _: Op, _: usize) -> Result<()> {
            match self.0.fetch_add(1, Ordering::SeqCst) {
                n if n > 60 => Ok(()),
                n if n % 3 == 0 => panic_any(Bomb(2)),
                n if n % 3 == 1 => {
                    let _thrown = Thrown;
                    std::future::pending().await
                }
                _ => Ok(()),
            }
        }
    }
    let store = store();
    enqueue(&store, 5).await;
    let worker = Worker::builder(Wrapped::new(&store, &Arc::new(Bombing(AtomicUsize::new(0)))))
        .queue("q")
        .heartbeat_on(HeartbeatOn::Task)
        .lease(6 * SECOND)
        .handle::<Work>(async |_: Work, _: Context<()>| sleep(10 * SECOND).await)
        .start()
        .unwrap();
    sleep(600 * SECOND).await;
    store.enqueue(&[NewJob::of("q", &Work { n: 9 }).build().unwrap()]).await.unwrap();
    finished(&store, 6).await;
    sleep(SECOND).await;
    assert_eq!(worker.stats().running, 0);
    worker.shutdown(SECOND).await.unwrap();
}

/// A worker whose runtime is dropped has died, and does not say that it has stopped.
#[test]
fn a_worker_without_its_runtime_has_died() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = MemoryStore::new();
    let handler = async |_: Work, _: Context<()>| {};
    let worker = runtime.block_on(async {
        Worker::builder(Arc::new(store)).queue("q").handle::<Work>(handler).start().unwrap()
    });
    drop(runtime);
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let died = other.block_on(worker.shutdown(SECOND)).unwrap_err();
    assert_eq!(died.to_string(), "the worker has died: runtime: it was dropped");
    let error = other.block_on(worker.run_until_signal()).unwrap_err();
    assert!(error.to_string().contains("the worker has died"), "{error}");
}
