//! Verdicts with documents that the store does not take.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Work, enqueue, finished, store, worker};
use futures_util::FutureExt;
use leasehold_core::{FinalStatus, Json, Outcome, Record, Store, StoreError, Verdict};
use leasehold_memory::MemoryStore;
use leasehold_worker::{Context, Done, HeartbeatOn, Worker};
use tokio::time::sleep;

const LIMIT: usize = 1000;

fn small_store() -> MemoryStore {
    MemoryStore::builder().clock(crate::support::TokioClock::new()).payload_limit(LIMIT).build()
}

/// One job whose handler says this, and how often it ran.
async fn ran(verdict: impl Fn() -> Verdict + Clone + Send + Sync + 'static) -> (MemoryStore, usize) {
    let store = small_store();
    enqueue(&store, 1).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = move |_: Work, _: Context<()>| {
        counted.fetch_add(1, Ordering::SeqCst);
        let verdict = verdict();
        async move { verdict }
    };
    let worker = worker(&store).handle::<Work>(handler).start().unwrap();
    sleep(Duration::from_secs(3600)).await;
    worker.shutdown(Duration::ZERO).await.unwrap();
    let runs = runs.load(Ordering::SeqCst);
    (store, runs)
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_long_is_replaced_and_the_work_is_done_once() {
    let (store, runs) = ran(|| Verdict::done_with(&"x".repeat(2 * LIMIT)).unwrap()).await;
    let jobs = finished(&store, 1).await;
    let Outcome::Completed { result } = &jobs[0].outcome else { panic!("{:?}", jobs[0]) };
    assert!(result.as_str().contains("result is 2002 bytes long"), "{result:?}");
    assert_eq!((runs, &jobs[0].last_error), (1, &None));
}

#[tokio::test(start_paused = true)]
async fn an_error_that_is_too_long_is_cut_and_the_job_is_never_run_again() {
    let (store, runs) = ran(|| Verdict::dead(format!("the cause: {}", "x".repeat(2 * LIMIT)))).await;
    let jobs = finished(&store, 1).await;
    let Outcome::DeadLetter { error } = &jobs[0].outcome else { panic!("{:?}", jobs[0]) };
    assert!(error.as_str().starts_with(r#"{"error":"the cause: xxx"#), "{error:?}");
    assert!(error.as_str().len() > LIMIT / 2 && error.as_str().len() <= LIMIT, "{error:?}");
    assert_eq!(runs, 1);
}

#[tokio::test(start_paused = true)]
async fn a_reason_that_is_too_long_is_cut_and_the_job_is_discarded() {
    let (store, runs) = ran(|| Verdict::discard(format!("nobody wants it{}", "\n".repeat(2 * LIMIT)))).await;
    let jobs = finished(&store, 1).await;
    let Outcome::Discarded { reason } = &jobs[0].outcome else { panic!("{:?}", jobs[0]) };
    assert!(reason.as_str().starts_with(r#""nobody wants it\n"#), "{reason:?}");
    assert_eq!(runs, 1);
}

#[tokio::test(start_paused = true)]
async fn a_delay_that_was_asked_for_holds_also_with_an_error_that_is_too_long() {
    let day = Duration::from_secs(86_400);
    let (store, runs) = ran(move || Verdict::retry_after("x".repeat(2 * LIMIT), day).unwrap()).await;
    let Some(Record::Live(job)) = store.get(1.into()).await.unwrap() else { panic!("the job is gone") };
    let left = (job.available_at - store.now().await.unwrap()).to_std().unwrap();
    assert!(left > day - Duration::from_secs(3700), "{left:?}");
    assert!(job.last_error.unwrap().as_str().starts_with(r#"{"error":"xxx"#));
    assert_eq!(runs, 1);
}

/// A store that does not say why it takes no document at all. The others of the batch are settled all the same.
#[tokio::test(start_paused = true)]
async fn a_document_that_is_refused_for_another_reason_is_replaced_and_then_left_out() {
    let (store, mut mock) = (store(), leasehold_core::MockStore::new());
    let inner = store.clone();
    mock.expect_dequeue().returning(move |request| inner.dequeue(request).now_or_never().unwrap());
    let inner = store.clone();
    mock.expect_settle().returning(move |items| {
        let refused = |verdict: &Verdict| match verdict {
            Verdict::Done(result) => result.as_str().contains('x') || result.as_str().contains("refused"),
            _ => false,
        };
        if items.iter().any(|(_, verdict)| refused(verdict)) {
            return Err(StoreError::Invalid(
                "".parse::<leasehold_core::QueueName>().unwrap_err().of("result"),
            ));
        }
        inner.settle(items).now_or_never().unwrap()
    });
    mock.expect_next_available_at().returning(|_| Ok(None));
    mock.expect_wakeups().returning(|_| Ok(Box::pin(futures_util::stream::pending())));
    mock.expect_reclaim().returning(|_| Ok(Vec::new()));
    enqueue(&store, 10).await;
    let handler = async |work: Work, _: Context<()>| Done(if work.n == 3 { "x" } else { "" });
    let worker = Worker::builder(Arc::new(mock)).queue("q").heartbeat_on(HeartbeatOn::Task);
    let worker = worker.handle::<Work>(handler).start().unwrap();
    let start = tokio::time::Instant::now();
    let jobs = finished(&store, 10).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(jobs.iter().all(|job| job.outcome.status() == FinalStatus::Completed && job.attempts == 1));
    let replaced = jobs.iter().find(|job| job.id == 4.into()).unwrap();
    assert_eq!(replaced.outcome, Outcome::Completed { result: Json::null() });
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// What a handler returns cannot be JSON: the work was done all the same.
#[tokio::test(start_paused = true)]
async fn a_result_that_is_no_json_is_replaced_and_the_work_is_done_once() {
    let store = store();
    enqueue(&store, 1).await;
    let handler = async |_: Work, _: Context<()>| Done(f64::NAN);
    let worker = worker(&store).handle::<Work>(handler).start().unwrap();
    let jobs = finished(&store, 1).await;
    let Outcome::Completed { result } = &jobs[0].outcome else { panic!("{:?}", jobs[0]) };
    assert!(result.as_str().contains("result"), "{result:?}");
    assert_eq!(jobs[0].attempts, 1);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// What a packet may hold on the way to the store. A larger one ends the connection, and the answer is lost.
const PACKET: usize = 100_000;

/// A store that loses the answer to large batches, and applies nothing of them. The sizes of those batches, by their number of verdicts.
fn behind_a_narrow_way(store: &MemoryStore) -> (leasehold_core::MockStore, Arc<Mutex<Vec<usize>>>) {
    let (mut mock, lost) = (leasehold_core::MockStore::new(), Arc::new(Mutex::new(Vec::new())));
    let inner = store.clone();
    mock.expect_dequeue().returning(move |request| inner.dequeue(request).now_or_never().unwrap());
    let (inner, told) = (store.clone(), Arc::clone(&lost));
    mock.expect_settle().returning(move |items| {
        let bytes = |verdict: &Verdict| match verdict {
            Verdict::Done(document)
            | Verdict::Retry { error: document, .. }
            | Verdict::Dead { error: document } => document.as_str().len(),
            _ => 0,
        };
        if items.iter().map(|(_, verdict)| bytes(verdict)).sum::<usize>() > PACKET {
            told.lock().unwrap().push(items.len());
            return Err(StoreError::unknown("settle", "the connection was closed"));
        }
        inner.settle(items).now_or_never().unwrap()
    });
    let inner = store.clone();
    mock.expect_receipts().returning(move |receipts| inner.receipts(receipts).now_or_never().unwrap());
    let inner = store.clone();
    mock.expect_heartbeat()
        .returning(move |receipts, extend| inner.heartbeat(receipts, extend).now_or_never().unwrap());
    mock.expect_next_available_at().returning(|_| Ok(None));
    mock.expect_wakeups().returning(|_| Ok(Box::pin(futures_util::stream::pending())));
    mock.expect_reclaim().returning(|_| Ok(Vec::new()));
    (mock, lost)
}

/// Together they are too large, and no single one is: they are sent in smaller and smaller parts.
#[tokio::test(start_paused = true)]
async fn a_batch_that_never_gets_through_is_sent_in_parts() {
    let store = store();
    let (mock, lost) = behind_a_narrow_way(&store);
    enqueue(&store, 100).await;
    let handler = async |_: Work, _: Context<()>| Done("x".repeat(60_000));
    let worker = Worker::builder(Arc::new(mock)).queue("q").concurrency(100).heartbeat_on(HeartbeatOn::Task);
    let worker = worker.handle::<Work>(handler).start().unwrap();
    let start = tokio::time::Instant::now();
    let jobs = finished(&store, 100).await;
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let whole = |job: &leasehold_core::FinishedJob| {
        let Outcome::Completed { result } = &job.outcome else { panic!("{job:?}") };
        result.as_str().len() == 60_002 && job.attempts == 1
    };
    assert!(jobs.iter().all(whole), "every result is kept");
    // No number of verdicts was sent in vain more often than there are parts of that size.
    let lost = lost.lock().unwrap().clone();
    assert!(lost.len() <= 20 && lost.iter().all(|size| *size > 1), "{lost:?}");
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// One verdict alone is too large: after some tries it is sent with a smaller document. The others do not wait for that.
#[tokio::test(start_paused = true)]
async fn a_verdict_that_never_gets_through_alone_says_less() {
    for (verdict, status) in [
        (Verdict::done_with(&"x".repeat(200_000)).unwrap(), FinalStatus::Completed),
        (Verdict::dead(format!("the cause: {}", "x".repeat(200_000))), FinalStatus::DeadLetter),
    ] {
        let store = store();
        let (mock, lost) = behind_a_narrow_way(&store);
        enqueue(&store, 50).await;
        let large = verdict.clone();
        let handler = move |work: Work, _: Context<()>| {
            let verdict = if work.n == 20 { large.clone() } else { Verdict::done() };
            async move { verdict }
        };
        let worker =
            Worker::builder(Arc::new(mock)).queue("q").concurrency(50).heartbeat_on(HeartbeatOn::Task);
        let worker = worker.handle::<Work>(handler).start().unwrap();
        let start = tokio::time::Instant::now();
        finished(&store, 49).await;
        assert!(start.elapsed() < Duration::from_secs(2), "the others: {:?}", start.elapsed());
        let jobs = finished(&store, 50).await;
        assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
        assert!(jobs.iter().all(|job| job.attempts == 1), "none ran twice");
        let job = jobs.iter().find(|job| job.id == 21.into()).unwrap();
        assert_eq!(job.outcome.status(), status);
        let said = format!("{:?}", job.outcome);
        assert!(said.contains("bytes") && said.len() < 1000, "{said}");
        let alone = lost.lock().unwrap().iter().filter(|size| **size == 1).count();
        assert_eq!(alone, 5, "tries alone");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(worker.stats().unsettled, 0);
        worker.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// A small document is not the reason, so it stays as it is, and the verdict is sent until it gets through.
#[tokio::test(start_paused = true)]
async fn a_small_document_is_never_replaced_because_an_answer_was_lost() {
    let (store, mut mock) = (store(), leasehold_core::MockStore::new());
    let inner = store.clone();
    mock.expect_dequeue().returning(move |request| inner.dequeue(request).now_or_never().unwrap());
    let (inner, tries) = (store.clone(), AtomicUsize::new(0));
    mock.expect_settle().returning(move |items| match tries.fetch_add(1, Ordering::SeqCst) {
        0..=30 => Err(StoreError::unknown("settle", "the connection was closed")),
        _ => inner.settle(items).now_or_never().unwrap(),
    });
    let inner = store.clone();
    mock.expect_receipts().returning(move |receipts| inner.receipts(receipts).now_or_never().unwrap());
    let inner = store.clone();
    mock.expect_heartbeat()
        .returning(move |receipts, extend| inner.heartbeat(receipts, extend).now_or_never().unwrap());
    mock.expect_next_available_at().returning(|_| Ok(None));
    mock.expect_wakeups().returning(|_| Ok(Box::pin(futures_util::stream::pending())));
    mock.expect_reclaim().returning(|_| Ok(Vec::new()));
    enqueue(&store, 1).await;
    let handler = async |_: Work, _: Context<()>| Done("x".repeat(10_000));
    let worker = Worker::builder(Arc::new(mock)).queue("q").heartbeat_on(HeartbeatOn::Task);
    let worker = worker.handle::<Work>(handler).start().unwrap();
    let jobs = finished(&store, 1).await;
    let Outcome::Completed { result } = &jobs[0].outcome else { panic!("{:?}", jobs[0]) };
    assert_eq!((result.as_str().len(), jobs[0].attempts), (10_002, 1));
    worker.shutdown(Duration::ZERO).await.unwrap();
}
