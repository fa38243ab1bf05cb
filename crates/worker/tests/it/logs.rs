//! What is logged when, and how often.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{Result, StoreError};
use leasehold_worker::{Context, HeartbeatOn, Worker};
use tokio::time::sleep;

use crate::support::wrapped::{Around, Op, Wrapped};
use crate::support::{Work, enqueue, finished, store, worker};

const SECOND: Duration = Duration::from_secs(1);

/// The lines of the log, each with its level.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(tracing::Level, String)>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            text += &format!("{}={value:?} ", field.name());
        });
        self.0.lock().unwrap().push((*event.metadata().level(), text));
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// What is logged in this life, on paused time.
fn logged(life: impl Future<Output = ()>) -> Vec<(tracing::Level, String)> {
    let lines = Lines::default();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    tracing::subscriber::with_default(lines.clone(), || runtime.block_on(life));
    std::mem::take(&mut lines.0.lock().unwrap())
}

/// The claim is answered after the lease has passed.
#[test]
fn jobs_that_are_given_back_and_not_started_are_logged() {
    struct Late;
    #[async_trait]
    impl Around for Late {
        async fn after(&self, op: Op, _: usize) -> Result<()> {
            if op == Op::Dequeue {
                sleep(3 * SECOND).await;
            }
            Ok(())
        }
    }
    let lines = logged(async {
        let store = store();
        enqueue(&store, 2).await;
        let worker = Worker::builder(Wrapped::new(&store, &Arc::new(Late))).queue("q").lease(2 * SECOND);
        let worker =
            worker.heartbeat_on(HeartbeatOn::Task).handle::<Work>(async |_: Work, _: Context<()>| {});
        let worker = worker.start().unwrap();
        sleep(4 * SECOND).await;
        worker.shutdown(Duration::ZERO).await.unwrap();
    });
    let is_told = |(level, text): &(tracing::Level, String)| {
        *level == tracing::Level::WARN
            && text.contains("leased jobs are given back and not started")
            && text.contains("jobs=2")
            && text.contains("took longer than their lease")
    };
    assert!(lines.iter().any(is_told), "{lines:?}");
}

/// Handlers that end when they are dropped are no reason for a warning.
#[test]
fn a_shutdown_without_trouble_logs_no_warning() {
    let lines = logged(async {
        let store = store();
        enqueue(&store, 2).await;
        let handler = async |_: Work, _: Context<()>| std::future::pending::<()>().await;
        let worker = worker(&store).handle::<Work>(handler).start().unwrap();
        sleep(SECOND).await;
        assert_eq!(worker.shutdown(Duration::ZERO).await.unwrap().released, 2);
    });
    assert!(lines.iter().any(|(_, text)| text.contains("the worker stops claiming")), "{lines:?}");
    let warnings: Vec<_> = lines.iter().filter(|(level, _)| *level <= tracing::Level::WARN).collect();
    assert!(warnings.is_empty(), "{warnings:?}");
}

/// A store that takes no verdict so many times.
struct Refusing(std::sync::atomic::AtomicUsize);

#[async_trait]
impl Around for Refusing {
    async fn before(&self, op: Op, _: usize) -> Result<()> {
        use std::sync::atomic::Ordering::SeqCst;
        let refuses =
            op == Op::Settle && self.0.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        if refuses { Err(StoreError::unavailable("settle", "told to")) } else { Ok(()) }
    }
}

/// How often a warning with these words is in the log of a worker that has one job and a store that refuses its verdict so many times.
fn warnings_of_refusals(times: usize, words: &str, waits_for_the_end: bool) -> usize {
    let lines = logged(async {
        let store = store();
        enqueue(&store, 1).await;
        let refusing = Arc::new(Refusing(times.into()));
        let worker =
            Worker::builder(Wrapped::new(&store, &refusing)).queue("q").heartbeat_on(HeartbeatOn::Task);
        let worker = worker.handle::<Work>(async |_: Work, _: Context<()>| {}).start().unwrap();
        if waits_for_the_end {
            finished(&store, 1).await;
        }
        sleep(SECOND).await;
        worker.shutdown(Duration::ZERO).await.unwrap();
    });
    let is_told =
        |(level, text): &&(tracing::Level, String)| *level == tracing::Level::WARN && text.contains(words);
    lines.iter().filter(is_told).count()
}

#[test]
fn a_verdict_that_cannot_be_applied_is_logged_once_after_four_failures() {
    for (failures, expected) in [(0, 0), (3, 0), (4, 1), (12, 1)] {
        let warnings = warnings_of_refusals(failures, "verdicts cannot be applied", true);
        assert_eq!(warnings, expected, "after {failures} failures");
    }
}

#[test]
fn a_verdict_that_is_not_settled_at_the_end_is_logged() {
    for (failures, expected) in [(0, 0), (usize::MAX, 1)] {
        let warnings = warnings_of_refusals(failures, "jobs come back when their leases have passed", false);
        assert_eq!(warnings, expected, "after {failures} failures");
    }
}
