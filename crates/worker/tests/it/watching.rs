//! What can be watched: metrics, spans, events, layers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Work, enqueue, finished, store, worker};
use leasehold_core::{EventKind, FinalStatus, Invalid, JobKind, NewJob, Store, Verdict};
use leasehold_worker::{Context, FailureKind, QueueOptions, WorkerEvent};
use metrics_util::debugging::DebuggingRecorder;
use serde::{Deserialize, Serialize};

/// The names in the table of the guide.
fn documented() -> BTreeSet<String> {
    let guide = include_str!("../../../../docs/worker.md");
    let rows = guide.lines().filter(|line| line.starts_with("| `leasehold_"));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split(','));
    names.map(|name| name.trim().trim_matches('`').to_owned()).collect()
}

#[test]
fn every_metric_is_in_the_guide_and_the_other_way_round() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || runtime.block_on(an_eventful_life()));
    let seen = snapshotter.snapshot().into_vec();
    let seen: BTreeSet<String> = seen.into_iter().map(|(key, ..)| key.key().name().to_owned()).collect();
    assert_eq!(seen, documented());
}

/// A worker to which everything happens once.
async fn an_eventful_life() {
    let store = crate::support::faulty(store());
    let dying = NewJob::builder("q", "work").payload(&Work { n: 0 }).build().unwrap();
    store.enqueue(&[dying]).await.unwrap();
    let somebody =
        leasehold_core::Dequeue::new("q", "dead").unwrap().lease_for(Duration::from_secs(1)).unwrap();
    store.dequeue(&somebody).await.unwrap();
    let forgets = async |_: Forgets, context: Context<leasehold_memory::MemoryStore>| {
        use leasehold_core::TxStore;
        let mut tx = context.state().begin();
        let settled = context.state().ack_in(&mut tx, &context.receipt(), leasehold_core::Json::null()).await;
        if context.attempt() > 1 {
            tx.commit()?;
        }
        settled
    };
    let works = async |work: Work, context: Context<leasehold_memory::MemoryStore>| match work.n {
        1 => panic!("one"),
        2 => {
            // Somebody takes the job away: the next heartbeat says so.
            context.store().retry_later(context.id(), leasehold_core::Schedule::Now).await.unwrap();
            context.cancelled().await;
            Verdict::done()
        }
        3 => {
            // It ends while the store cannot be reached.
            tokio::time::sleep(Duration::from_secs(130)).await;
            Verdict::done()
        }
        _ => Verdict::done(),
    };
    let worker = leasehold_worker::Worker::builder(Arc::new(store.clone()))
        .queue("q")
        .heartbeat_on(leasehold_worker::HeartbeatOn::Task)
        .state(store.inner().clone())
        .handle_tx::<Forgets>(forgets)
        .handle::<Work>(works)
        .sample_queues(Duration::from_secs(1))
        .start()
        .unwrap();
    let jobs = [
        NewJob::of("q", &Forgets {}).build().unwrap(),
        NewJob::of("q", &Work { n: 1 }).max_attempts(1).build().unwrap(),
        NewJob::of("q", &Work { n: 2 }).max_attempts(1).build().unwrap(),
        NewJob::of("q", &Work { n: 3 }).build().unwrap(),
    ];
    store.enqueue(&jobs).await.unwrap();
    worker.wake();
    tokio::time::sleep(Duration::from_secs(120)).await;
    store.fail(true);
    worker.wake();
    tokio::time::sleep(Duration::from_secs(60)).await;
    store.fail(false);
    tokio::time::sleep(Duration::from_secs(60)).await;
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[derive(Serialize, Deserialize)]
struct Forgets {}

impl JobKind for Forgets {
    const KIND: &'static str = "forgets";
}

#[tokio::test(start_paused = true)]
async fn events_tell_what_happened_in_order() {
    let store = store();
    let handler = async |_: Work, context: Context<()>| {
        assert!(context.attempt() > 1, "the first attempt");
    };
    let worker = worker(&store).handle::<Work>(handler).start().unwrap();
    let mut events = worker.events();
    enqueue(&store, 1).await;
    finished(&store, 1).await;
    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        told.push(match event {
            WorkerEvent::Leased { attempt, .. } => format!("leased {attempt}"),
            WorkerEvent::Failed { how: FailureKind::Panic, .. } => "panic".to_owned(),
            WorkerEvent::Settled { fate, .. } => format!("{fate:?}").split(' ').next().unwrap().to_owned(),
            other => format!("{other:?}"),
        });
    }
    assert_eq!(told, ["leased 1", "panic", "Retrying", "leased 2", "Completed"]);
    worker.shutdown(Duration::ZERO).await.unwrap();
    assert_eq!(EventKind::LeaseLost.as_str(), "lease_lost");
}

#[tokio::test(start_paused = true)]
async fn a_trace_is_handed_on_from_job_to_job() {
    let store = store();
    let first = NewJob::of("q", &Work { n: 0 }).header("traceparent", "00-abc-def-01").header("other", "x");
    store.enqueue(&[first.build().unwrap()]).await.unwrap();
    let handler = async |work: Work, context: Context<()>| -> Result<(), leasehold_core::StoreError> {
        if work.n == 0 {
            let next = context.continue_trace(NewJob::of("q", &Work { n: 1 })).build()?;
            context.store().enqueue(&[next]).await?;
        }
        Ok(())
    };
    let spans = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&spans);
    let make_span = move |job: &leasehold_core::Job| {
        seen.lock().unwrap().push(job.headers.get("traceparent").map(str::to_owned));
        tracing::Span::none()
    };
    let worker = worker(&store).handle::<Work>(handler).make_span(make_span).start().unwrap();
    let jobs = finished(&store, 2).await;
    assert_eq!(jobs[1].headers.get("traceparent"), Some("00-abc-def-01"));
    assert_eq!(jobs[1].headers.get("other"), None);
    assert_eq!(*spans.lock().unwrap(), vec![Some("00-abc-def-01".to_owned()); 2]);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_layer_wraps_the_handlers() {
    let store = store();
    enqueue(&store, 4).await;
    let running = Arc::new(Mutex::new((0, 0)));
    let seen = Arc::clone(&running);
    let handler = async |_: Work, context: Context<Arc<Mutex<(i32, i32)>>>| {
        let count = |by: i32| {
            let mut now = context.state().lock().unwrap();
            now.0 += by;
            now.1 = now.0.max(now.1);
        };
        count(1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        count(-1);
    };
    let layer = tower::limit::GlobalConcurrencyLimitLayer::new(2);
    let worker = worker(&store).state(seen).handle::<Work>(handler).layer(layer).start().unwrap();
    finished(&store, 4).await;
    assert_eq!(*running.lock().unwrap(), (0, 2));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_error_of_a_layer_is_a_failed_attempt() {
    let store = store();
    enqueue(&store, 1).await;
    let refuse = tower::util::MapResultLayer::new(|_: Result<_, leasehold_core::BoxError>| {
        Err::<leasehold_worker::Ending, leasehold_core::BoxError>("not today".into())
    });
    let handler = async |_: Work, _: Context<()>| {};
    let worker = worker(&store).handle::<Work>(handler).layer(refuse).start().unwrap();
    let jobs = finished(&store, 1).await;
    assert_eq!(jobs[0].outcome.status(), FinalStatus::DeadLetter);
    assert_eq!(worker.stats().refused, 5);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_the_settings_is_said_at_the_start() {
    let store = store();
    let builder = || leasehold_worker::Worker::builder(Arc::new(store.clone()));
    let field = |started: Result<_, Invalid>| {
        started.map(|_: leasehold_worker::WorkerHandle| ()).unwrap_err().to_string()
    };
    assert!(field(builder().start()).contains("queues"));
    assert!(field(builder().queue("").start()).contains("queue"));
    assert!(field(builder().queue("q").concurrency(0).start()).contains("concurrency"));
    assert!(field(builder().queue("q").lease(Duration::ZERO).start()).contains("lease"));
    assert!(field(builder().queue("q").claim_batch(10_001).start()).contains("10000"));
    assert!(field(builder().queue("q").poll_interval(Duration::ZERO).start()).contains("poll_interval"));
    assert!(field(builder().queue_with("q", QueueOptions::new().weight(0)).start()).contains("weight"));
    assert!(field(builder().queue("q").worker_id("").start()).contains("worker"));
}
