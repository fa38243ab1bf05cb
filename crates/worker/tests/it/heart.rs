//! Heartbeats: one lease that cannot be extended is not the end of the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Pay, Work, enqueue, event, finished, store};
use futures_util::FutureExt;
use leasehold_core::{
    Archive, HeartbeatOutcome, JobId, Json, LeaseFor, MockStore, NewJob, QueuePolicy, Receipt, Record,
    Result, Settled, Store, StoreError, TxStore,
};
use leasehold_memory::MemoryStore;
use leasehold_worker::{Context, HeartbeatOn, Worker, WorkerBuilder, WorkerEvent};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

type Beat = Result<Vec<HeartbeatOutcome>>;

/// A store that answers as `store` does, but for heartbeats.
fn beating(
    store: &MemoryStore,
    beat: impl Fn(&MemoryStore, &[Receipt], LeaseFor) -> Beat + Send + Sync + 'static,
) -> MockStore {
    let mut mock = MockStore::new();
    mock.expect_capabilities().return_const(store.capabilities());
    macro_rules! answer {
        ($expect:ident, |$($argument:ident),*| $answer:expr) => {{
            let store = store.clone();
            mock.$expect().returning(move |$($argument),*| $answer(&store, $($argument),*).now_or_never().unwrap());
        }};
    }
    answer!(expect_dequeue, |request| MemoryStore::dequeue);
    answer!(expect_settle, |items| MemoryStore::settle);
    mock.expect_reclaim().returning(|_| Ok(Vec::new()));
    answer!(expect_receipts, |receipts| MemoryStore::receipts);
    answer!(expect_next_available_at, |queues| MemoryStore::next_available_at);
    answer!(expect_get, |id| MemoryStore::get);
    mock.expect_wakeups().returning(|_| Ok(Box::pin(futures_util::stream::pending())));
    let store = store.clone();
    mock.expect_heartbeat().returning(move |receipts, extend| beat(&store, receipts, extend));
    mock
}

fn worker(mock: MockStore) -> WorkerBuilder {
    Worker::builder(Arc::new(mock))
        .queue("q")
        .heartbeat_on(HeartbeatOn::Task)
        .lease(9 * SECOND)
        .concurrency(50)
}

/// One of fifty cannot be extended, in whatever way: it alone loses its lease.
#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_extended_is_lost_alone() {
    type Fail = fn() -> Beat;
    let fails: [Fail; 3] = [
        || Err(StoreError::corrupt("job 7")),
        || Err(StoreError::unknown("heartbeat", "no answer")),
        || Err(StoreError::backend("heartbeat", "the store panicked")),
    ];
    for fail in fails {
        let store = store();
        enqueue(&store, 50).await;
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let mock = beating(&store, move |store, receipts, extend| {
            counted.fetch_add(1, Ordering::SeqCst);
            if receipts.iter().any(|receipt| receipt.job == 7.into()) {
                return fail();
            }
            store.heartbeat(receipts, extend).now_or_never().unwrap()
        });
        let handler = async |_: Work, _: Context<()>| sleep(60 * SECOND).await;
        let worker = worker(mock).handle::<Work>(handler).start().unwrap();
        sleep(59 * SECOND).await;
        let lost = worker.stats().lease_lost;
        assert_eq!(lost, 1, "leases are lost");
        let calls = calls.load(Ordering::SeqCst);
        assert!(calls < 150, "{calls} heartbeats in a minute");
        worker.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// The same with a call that hangs: the others are extended while it does.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_hangs_for_one_lease_keeps_no_other_from_being_extended() {
    struct Hanging;
    #[async_trait::async_trait]
    impl crate::support::wrapped::Around for Hanging {
        async fn before_receipts(&self, op: crate::support::wrapped::Op, receipts: &[Receipt]) -> Result<()> {
            if op == crate::support::wrapped::Op::Heartbeat
                && receipts.iter().any(|receipt| receipt.job == 7.into())
            {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    }
    let store = store();
    enqueue(&store, 50).await;
    let handler = async |_: Work, _: Context<()>| sleep(60 * SECOND).await;
    let worker = Worker::builder(crate::support::wrapped::Wrapped::new(&store, &Arc::new(Hanging)))
        .queue("q")
        .heartbeat_on(HeartbeatOn::Task)
        .lease(9 * SECOND)
        .concurrency(60)
        .handle::<Work>(handler)
        .start()
        .unwrap();
    sleep(20 * SECOND).await;
    enqueue(&store, 5).await;
    sleep(39 * SECOND).await;
    assert_eq!(worker.stats().lease_lost, 1);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// A store that says "for ever" is believed for as long as one can count.
#[tokio::test(start_paused = true)]
async fn the_longest_lease_does_not_end_the_heart() {
    let store = store();
    enqueue(&store, 2).await;
    let until = store.now().await.unwrap();
    let mock = beating(&store, move |_, receipts, _| {
        Ok(receipts.iter().map(|_| HeartbeatOutcome::Extended { until, left: Duration::MAX }).collect())
    });
    let handler = async |work: Work, context: Context<()>| match work.n {
        0 => sleep(5 * SECOND).await,
        _ => {
            sleep(20 * SECOND).await;
            assert!(context.lease_left() > 3600 * SECOND);
        }
    };
    let worker = worker(mock).handle::<Work>(handler).start().unwrap();
    sleep(30 * SECOND).await;
    let stats = worker.stats();
    assert_eq!((stats.completed, stats.lease_lost, stats.panicked), (2, 0, 0));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// The heart sleeps for long leases, and is woken for a short one.
#[tokio::test(start_paused = true)]
async fn the_heart_is_woken_for_a_lease_that_is_due_sooner() {
    let store = store();
    let max_lease = Some(LeaseFor::new(3 * SECOND).unwrap());
    let policy = QueuePolicy { max_lease, ..QueuePolicy::default() };
    store.set_policy(&"short".parse().unwrap(), &policy).await.unwrap();
    store.enqueue(&[NewJob::of("q", &Work { n: 0 }).build().unwrap()]).await.unwrap();
    let handler = async |_: Work, _: Context<()>| sleep(30 * SECOND).await;
    let worker = Worker::builder(Arc::new(store.clone()))
        .queues(["q", "short"])
        .heartbeat_on(HeartbeatOn::Task)
        .lease(600 * SECOND)
        .handle::<Work>(handler)
        .start()
        .unwrap();
    sleep(SECOND).await;
    store.enqueue(&[NewJob::of("short", &Work { n: 1 }).build().unwrap()]).await.unwrap();
    let jobs = finished(&store, 2).await;
    assert!(jobs.iter().all(|job| job.attempts == 1), "{jobs:?}");
    assert_eq!(worker.stats().lease_lost, 0);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// The handler's own transaction has the job locked, for longer than the lease. Nobody can reclaim it, so it is not lost.
#[tokio::test(start_paused = true)]
async fn a_lease_is_not_lost_while_a_transaction_has_its_job_locked() {
    let store = store();
    enqueue(&store, 1).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let locked = beating(&store, move |_, receipts, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(vec![HeartbeatOutcome::Pending; receipts.len()])
    });
    let handler = async |_: Work, context: Context<()>| {
        sleep(60 * SECOND).await;
        assert!(!context.is_cancelled(), "the token has fired");
        assert_eq!(context.lease_left(), Duration::ZERO, "nothing is promised");
    };
    let worker = worker(locked).poll_interval(3600 * SECOND).handle::<Work>(handler).start().unwrap();
    sleep(61 * SECOND).await;
    assert_eq!((worker.stats().panicked, worker.stats().lease_lost), (0, 0));
    let calls = calls.load(Ordering::SeqCst);
    assert!(calls < 100, "{calls} heartbeats in a minute");
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// For a transactional handler a Pending heartbeat counts as alive: the countdown starts anew, and the lease outlives an outage that
/// is shorter than a lease. For a plain handler nothing is promised, and the lease is lost in that outage.
#[tokio::test(start_paused = true)]
async fn a_pending_heartbeat_renews_the_lease_of_a_transactional_handler_alone() {
    let store = store();
    let jobs = [NewJob::of("q", &Work { n: 0 }).build().unwrap(), NewJob::of("q", &Pay {}).build().unwrap()];
    let ids: Vec<JobId> = store.enqueue(&jobs).await.unwrap().iter().map(|job| job.id).collect();
    let start = tokio::time::Instant::now();
    let locked = beating(&store, move |_, receipts, _| match start.elapsed() {
        outage if (20 * SECOND..25 * SECOND).contains(&outage) => {
            Err(StoreError::unavailable("heartbeat", "gone"))
        }
        _ => Ok(vec![HeartbeatOutcome::Pending; receipts.len()]),
    });
    let pay = async |_: Pay, context: Context<MemoryStore>| {
        sleep(60 * SECOND).await;
        assert!(!context.is_cancelled(), "the token has fired");
        assert!(context.lease_left() > 3 * SECOND, "{:?} are left", context.lease_left());
        let store = context.state();
        let mut tx = store.begin();
        let settled = store.ack_in(&mut tx, &context.receipt(), Json::null()).await?;
        tx.commit()?;
        Ok::<Settled, StoreError>(settled)
    };
    let work = async |_: Work, context: Context<MemoryStore>| {
        sleep(19 * SECOND).await;
        assert_eq!(context.lease_left(), Duration::ZERO, "nothing is promised");
        context.cancelled().await;
    };
    let worker = worker(locked).state(store.clone()).poll_interval(3600 * SECOND);
    let worker = worker.handle::<Work>(work).handle_tx::<Pay>(pay).start().unwrap();
    let lost = event(&worker, |event| match event {
        WorkerEvent::LeaseLost { receipt, .. } => Some(receipt.job),
        _ => None,
    });
    assert_eq!(tokio::time::timeout(30 * SECOND, lost).await.unwrap(), ids[0]);
    sleep(40 * SECOND).await;
    let stats = worker.stats();
    assert_eq!((stats.lease_lost, stats.panicked), (1, 0));
    assert!(matches!(store.get(ids[1]).await.unwrap(), Some(Record::Finished(_))));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// When the store stops to answer, a lease that was locked before is lost soon.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_locked_is_lost_when_the_store_does_not_answer() {
    let store = store();
    enqueue(&store, 1).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let locked = beating(&store, move |_, receipts, _| match calls.fetch_add(1, Ordering::SeqCst) {
        0..8 => Ok(vec![HeartbeatOutcome::Pending; receipts.len()]),
        _ => Err(StoreError::unavailable("heartbeat", "gone")),
    });
    let handler = async |_: Work, context: Context<()>| context.cancelled().await;
    let worker = worker(locked).poll_interval(3600 * SECOND).handle::<Work>(handler).start().unwrap();
    let lost = event(&worker, |event| matches!(event, WorkerEvent::LeaseLost { .. }).then_some(()));
    tokio::time::timeout(30 * SECOND, lost).await.unwrap();
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// A transactional handler that has committed in a queue that keeps no history, and is not back yet.
#[tokio::test(start_paused = true)]
async fn a_lease_that_the_handler_has_ended_without_a_trace_is_not_lost() {
    let store = store();
    let policy = QueuePolicy { archive: Some(Archive::DeadOnly), ..QueuePolicy::default() };
    store.set_policy(&"q".parse().unwrap(), &policy).await.unwrap();
    store.enqueue(&[NewJob::of("q", &Pay {}).build().unwrap()]).await.unwrap();
    let handler = async |_: Pay, context: Context<MemoryStore>| {
        let store = context.state();
        let mut tx = store.begin();
        let settled = store.ack_in(&mut tx, &context.receipt(), Json::null()).await?;
        tx.commit()?;
        sleep(30 * SECOND).await;
        assert!(!context.is_cancelled(), "the token has fired");
        Ok::<Settled, StoreError>(settled)
    };
    let worker = Worker::builder(Arc::new(store.clone())).queue("q").heartbeat_on(HeartbeatOn::Task);
    let worker = worker.state(store.clone()).lease(9 * SECOND).handle_tx::<Pay>(handler).start().unwrap();
    event(&worker, |event| matches!(event, WorkerEvent::Settled { .. }).then_some(())).await;
    let stats = worker.stats();
    assert_eq!((stats.lease_lost, stats.completed, stats.panicked), (0, 1, 0));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// The same trace, but the handler settles nothing itself: an administrator has taken the job away.
#[tokio::test(start_paused = true)]
async fn a_lease_of_a_plain_handler_whose_job_is_gone_is_lost() {
    let store = store();
    let policy = QueuePolicy { archive: Some(Archive::DeadOnly), ..QueuePolicy::default() };
    store.set_policy(&"q".parse().unwrap(), &policy).await.unwrap();
    enqueue(&store, 1).await;
    let handler = async |_: Work, context: Context<()>| context.cancelled().await;
    let worker = Worker::builder(Arc::new(store.clone())).queue("q").heartbeat_on(HeartbeatOn::Task);
    let worker = worker.lease(9 * SECOND).handle::<Work>(handler).start().unwrap();
    sleep(SECOND).await;
    store.discard(1.into(), Json::null()).await.unwrap();
    sleep(5 * SECOND).await;
    let stats = worker.stats();
    assert_eq!((stats.lease_lost, stats.running, stats.completed), (1, 0, 0));
    worker.shutdown(Duration::ZERO).await.unwrap();
}
