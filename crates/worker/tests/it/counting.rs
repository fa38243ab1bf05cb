//! How often the store is called, and what for.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::wrapped::{Around, Op, Wrapped};
use crate::support::{Pay, Work, enqueue, finished, store};
use async_trait::async_trait;
use futures_util::FutureExt;
use leasehold_core::{Json, MockStore, NewJob, Result, Settled, Store, StoreError, TxStore, Wakeups};
use leasehold_memory::MemoryStore;
use leasehold_worker::{Context, HeartbeatOn, QueueOptions, Worker, WorkerBuilder};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

/// What was asked of the store: which operations, and of how many items each.
#[derive(Default)]
struct Calls(Mutex<Vec<(Op, usize)>>);

impl Calls {
    fn add(&self, op: Op, items: usize) {
        self.0.lock().unwrap().push((op, items));
    }

    fn of(&self, op: Op) -> Vec<usize> {
        self.0.lock().unwrap().iter().filter(|call| call.0 == op).map(|call| call.1).collect()
    }

    fn reads(&self) -> usize {
        self.of(Op::Dequeue).len() + self.of(Op::Next).len()
    }

    fn all(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// A mock that answers as `store` does, whose futures are always ready, and counts. Its hints are given by hand.
fn mock(store: &MemoryStore) -> (MockStore, Arc<Calls>, mpsc::UnboundedSender<()>) {
    let (mut mock, calls) = (MockStore::new(), Arc::new(Calls::default()));
    let capabilities = store.capabilities();
    mock.expect_capabilities().return_const(capabilities);
    macro_rules! answer {
        ($expect:ident, $op:expr, |$($argument:ident),+| $items:expr, $answer:expr) => {{
            let (store, calls) = (store.clone(), Arc::clone(&calls));
            mock.$expect().returning(move |$($argument),+| {
                calls.add($op, $items);
                $answer(&store, $($argument),+).now_or_never().unwrap()
            });
        }};
    }
    answer!(expect_dequeue, Op::Dequeue, |request| request.limit.as_usize(), MemoryStore::dequeue);
    answer!(expect_settle, Op::Settle, |items| items.len(), MemoryStore::settle);
    answer!(expect_heartbeat, Op::Heartbeat, |receipts, extend| receipts.len(), MemoryStore::heartbeat);
    answer!(expect_reclaim, Op::Reclaim, |limit| limit.as_usize(), MemoryStore::reclaim);
    answer!(expect_receipts, Op::Receipts, |receipts| receipts.len(), MemoryStore::receipts);
    answer!(expect_next_available_at, Op::Next, |queues| 0, MemoryStore::next_available_at);
    let (hint, hints) = mpsc::unbounded_channel::<()>();
    let hints = Mutex::new(Some(hints));
    mock.expect_wakeups().returning(move |_| {
        let hints = hints.lock().unwrap().take();
        let hints = hints.ok_or_else(|| StoreError::unsupported("a second subscription"))?;
        let stream = futures_util::stream::unfold(hints, async |mut hints| {
            hints.recv().await.map(|hint| (hint, hints))
        });
        Ok(Box::pin(stream) as Wakeups)
    });
    (mock, calls, hint)
}

fn worker(store: impl Store) -> WorkerBuilder {
    Worker::builder(Arc::new(store)).queue("q").heartbeat_on(HeartbeatOn::Task).poll_interval(30 * SECOND)
}

async fn idle(_: Work, _: Context<()>) {}

#[tokio::test(start_paused = true)]
async fn five_jobs_and_twenty_wakeups_cost_at_most_seven_reads() {
    for concurrency in 1..=10 {
        for (shape, millis) in (0..3).flat_map(|shape| [0, 1, 2, 3, 5, 7, 100].map(|millis| (shape, millis)))
        {
            let store = store();
            enqueue(&store, 5).await;
            let (mock, calls, _hint) = mock(&store);
            // Handlers that end one after the other, all at once, or the last one first.
            let handler = move |work: Work, _: Context<()>| {
                sleep(Duration::from_millis(millis * [work.n + 1, 1, 5 - work.n][shape]))
            };
            let worker = worker(mock).concurrency(concurrency).handle::<Work>(handler).start().unwrap();
            (0..20).for_each(|_| worker.wake());
            finished(&store, 5).await;
            sleep(10 * SECOND).await;
            let reads = calls.reads();
            assert!(
                reads <= 7,
                "{reads} reads with concurrency {concurrency} and handlers of {millis} ms, shape {shape}"
            );
            worker.shutdown(Duration::ZERO).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_wakeups_while_busy_cost_one_claim() {
    let mut claims = Vec::new();
    for wakeups in [0, 10_000] {
        let store = store();
        enqueue(&store, 1).await;
        let (mock, calls, _hint) = mock(&store);
        let handler = async |_: Work, _: Context<()>| sleep(SECOND).await;
        let worker = worker(mock).concurrency(1).handle::<Work>(handler).start().unwrap();
        sleep(SECOND / 2).await;
        for _ in 0..wakeups {
            worker.wake();
            tokio::task::yield_now().await;
        }
        assert_eq!(calls.of(Op::Dequeue).len(), 1, "there is no slot to claim for");
        finished(&store, 1).await;
        sleep(10 * SECOND).await;
        claims.push(calls.of(Op::Dequeue).len());
        worker.shutdown(Duration::ZERO).await.unwrap();
    }
    assert!(claims[1] <= claims[0] + 1, "claims without and with wake-ups: {claims:?}");
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_asks_once_in_a_poll_interval_for_any_number_of_queues() {
    let store = store();
    let (mock, calls, _hint) = mock(&store);
    let queues = (0..500).map(|n| format!("queue-{n}"));
    let worker = worker(mock).queues(queues).poll_interval(SECOND).handle::<Work>(idle).start().unwrap();
    sleep(5 * SECOND).await;
    let before = calls.all();
    sleep(60 * SECOND).await;
    let calls = calls.all() - before;
    assert!((1..=60).contains(&calls), "{calls} calls in 60 poll intervals");
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_ends_together_is_settled_together() {
    let store = store();
    enqueue(&store, 20).await;
    let (mock, calls, _hint) = mock(&store);
    let handler = async |_: Work, _: Context<()>| sleep(SECOND).await;
    let worker =
        worker(mock).concurrency(20).settle_batch(5, 3600 * SECOND).handle::<Work>(handler).start().unwrap();
    finished(&store, 20).await;
    assert_eq!(calls.of(Op::Settle), [5; 4], "by number");
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_ends_soon_after_is_settled_together() {
    let store = store();
    enqueue(&store, 5).await;
    let (mock, calls, _hint) = mock(&store);
    let handler =
        async |work: Work, _: Context<()>| sleep(SECOND + Duration::from_millis(10) * work.n as u32).await;
    let within = Duration::from_millis(50);
    let worker = worker(mock).settle_batch(100, within).handle::<Work>(handler).start().unwrap();
    let start = Instant::now();
    finished(&store, 5).await;
    assert_eq!(calls.of(Op::Settle), [5], "by time");
    let took = start.elapsed();
    assert!((SECOND + within..SECOND + 2 * within).contains(&took), "{took:?}");
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn all_leases_are_extended_in_one_call_until_they_are_settled() {
    let store = store();
    enqueue(&store, 50).await;
    let (mock, calls, _hint) = mock(&store);
    let handler = async |_: Work, _: Context<()>| sleep(100 * SECOND).await;
    let worker = worker(mock).concurrency(50).lease(30 * SECOND).handle::<Work>(handler).start().unwrap();
    finished(&store, 50).await;
    let beats = calls.of(Op::Heartbeat);
    assert!((4..=11).contains(&beats.len()), "{} heartbeats", beats.len());
    assert!(beats.iter().all(|leases| *leases == 50), "{beats:?}");
    sleep(100 * SECOND).await;
    assert_eq!(calls.of(Op::Heartbeat).len(), beats.len(), "settled jobs have no leases");
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_without_a_free_slot() {
    let store = store();
    enqueue(&store, 10).await;
    let (mock, calls, hint) = mock(&store);
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = (Arc::clone(&now), Arc::clone(&most));
    let handler = move |_: Work, _: Context<()>| {
        let (now, most) = seen.clone();
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(10 * SECOND).await;
            now.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let worker = worker(mock).concurrency(3).handle::<Work>(handler).start().unwrap();
    sleep(SECOND).await;
    for _ in 0..5 {
        worker.wake();
        hint.send(()).unwrap();
        sleep(SECOND).await;
    }
    assert_eq!(calls.of(Op::Dequeue), [3], "what was asked for while all slots are taken");
    finished(&store, 10).await;
    assert!(calls.of(Op::Dequeue).iter().all(|asked| *asked <= 3));
    assert_eq!(most.load(Ordering::SeqCst), 3);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn hints_of_the_store_wake_an_idle_worker() {
    let store = store();
    let (mock, calls, hint) = mock(&store);
    let worker = worker(mock)
        .poll_interval(3600 * SECOND)
        .handle::<Work>(async |_: Work, _: Context<()>| {})
        .start()
        .unwrap();
    sleep(SECOND).await;
    let before = calls.of(Op::Dequeue).len();
    enqueue(&store, 1).await;
    (0..100).for_each(|_| hint.send(()).unwrap());
    sleep(SECOND).await;
    assert_eq!((worker.stats().completed, worker.stats().claims >= 2), (1, true));
    let claims = calls.of(Op::Dequeue).len() - before;
    assert!((1..=3).contains(&claims), "a hundred hints at once cost {claims} claims");
    assert!((1..=2).contains(&worker.stats().wakeups), "{:?}", worker.stats());
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// Fails in one operation until it is told to stop, and counts.
struct Failing {
    op: Option<Op>,
    how: How,
    on: std::sync::atomic::AtomicBool,
    calls: Mutex<BTreeMap<Op, usize>>,
    /// Whether the operation takes effect and the answer is lost.
    after: bool,
    times: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
enum How {
    Unavailable,
    Unknown,
    Backend,
    Corrupt,
    Panic,
    Hang,
}

impl Failing {
    fn new(op: Option<Op>, how: How) -> Arc<Self> {
        let (after, times) = (false, AtomicUsize::new(usize::MAX));
        Arc::new(Self { op, how, on: true.into(), calls: Mutex::default(), after, times })
    }

    fn once(op: Op, how: How, after: bool) -> Arc<Self> {
        let times = AtomicUsize::new(1);
        Arc::new(Self { op: Some(op), how, on: true.into(), calls: Mutex::default(), after, times })
    }

    fn calls(&self, op: Op) -> usize {
        self.calls.lock().unwrap().get(&op).copied().unwrap_or_default()
    }

    async fn fail(&self, op: Op) -> Result<()> {
        if !self.on.load(Ordering::SeqCst) || self.op.is_some_and(|failing| failing != op) {
            return Ok(());
        }
        let left = self.times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_err() {
            return Ok(());
        }
        match self.how {
            How::Unavailable => Err(StoreError::unavailable("test", "cannot be reached")),
            How::Unknown => Err(StoreError::unknown("test", "the answer was lost")),
            How::Backend => Err(StoreError::backend("test", "the disk is full")),
            How::Corrupt => Err(StoreError::corrupt("a row")),
            How::Panic => panic!("as the test wants"),
            How::Hang => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Around for Failing {
    async fn before(&self, op: Op, _: usize) -> Result<()> {
        *self.calls.lock().unwrap().entry(op).or_default() += 1;
        if self.after { Ok(()) } else { self.fail(op).await }
    }

    async fn after(&self, op: Op, _: usize) -> Result<()> {
        if self.after { self.fail(op).await } else { Ok(()) }
    }
}

async fn pay(_: Pay, context: Context<MemoryStore>) -> Result<Settled> {
    let store = context.state();
    let mut tx = store.begin();
    let settled = store.ack_in(&mut tx, &context.receipt(), Json::null()).await?;
    tx.commit()?;
    Ok(settled)
}

/// Whatever fails in whatever way for a minute: the worker survives it, does not hurry, and goes on by itself.
#[tokio::test(start_paused = true)]
async fn every_failure_of_every_call_is_survived() {
    for op in [Op::Dequeue, Op::Settle, Op::Heartbeat, Op::Reclaim, Op::Receipts, Op::Next, Op::Wakeups] {
        for how in [How::Unavailable, How::Unknown, How::Backend, How::Corrupt, How::Panic, How::Hang] {
            let store = store();
            let failing = Failing::new(Some(op), how);
            let handler = async |_: Work, context: Context<MemoryStore>| {
                sleep(if context.id() == 1.into() { 40 * SECOND } else { SECOND }).await;
            };
            let worker = Worker::builder(Wrapped::new(&store, &failing))
                .queue("q")
                .heartbeat_on(HeartbeatOn::Task)
                .lease(10 * SECOND)
                .state(store.clone())
                .handle::<Work>(handler)
                .handle_tx::<Pay>(pay)
                .start()
                .unwrap();
            enqueue(&store, 3).await;
            store.enqueue(&[NewJob::of("q", &Pay {}).build().unwrap()]).await.unwrap();
            sleep(60 * SECOND).await;
            let calls = failing.calls(op);
            // Of heartbeats each lease that is lost has some, the closer together the less of it is left.
            let most = if op == Op::Heartbeat { 400 } else { 60 };
            assert!(calls <= most, "{calls} calls of {op:?} in a minute of {how:?}");
            failing.on.store(false, Ordering::SeqCst);
            let healed = Instant::now();
            let jobs = finished(&store, 4).await;
            let took = healed.elapsed();
            assert!(took < 90 * SECOND, "{op:?} {how:?}: {took:?} after it was well: {jobs:?}");
            enqueue(&store, 1).await;
            finished(&store, 5).await;
            assert!(healed.elapsed() < took + 5 * SECOND, "{op:?} {how:?}: not as before");
            assert!(worker.stats().store_is_up, "{op:?} {how:?}");
            worker.shutdown(SECOND).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_lost_answer_the_store_is_asked_and_nothing_is_settled_twice() {
    for (after, settles) in [(true, 1), (false, 2)] {
        let store = store();
        enqueue(&store, 1).await;
        let failing = Failing::once(Op::Settle, How::Unknown, after);
        let worker = Worker::builder(Wrapped::new(&store, &failing))
            .queue("q")
            .heartbeat_on(HeartbeatOn::Task)
            .handle::<Work>(async |_: Work, _: Context<()>| {})
            .start()
            .unwrap();
        let mut events = worker.events();
        finished(&store, 1).await;
        sleep(60 * SECOND).await;
        assert_eq!((failing.calls(Op::Settle), failing.calls(Op::Receipts)), (settles, 1), "{after}");
        let stats = worker.stats();
        assert_eq!((stats.completed, stats.lease_lost, stats.leased), (1, 0, 1), "{after}");
        let mut settled = 0;
        while let Ok(event) = events.try_recv() {
            settled += usize::from(matches!(event, leasehold_worker::WorkerEvent::Settled { .. }));
        }
        assert_eq!(settled, 1, "told once");
        worker.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// The handler has settled its job and says that it failed; the store fails once, and refuses the second verdict.
#[tokio::test(start_paused = true)]
async fn a_verdict_that_is_refused_because_the_job_is_settled_is_no_lost_lease() {
    let store = store();
    enqueue(&store, 1).await;
    let failing = Failing::once(Op::Settle, How::Backend, false);
    let handler = async |_: Work, context: Context<MemoryStore>| {
        let settled = context.state().ack(&context.receipt(), Json::null()).await?;
        Err::<Settled, _>(StoreError::conflict(format!("although {settled:?}")))
    };
    let worker = Worker::builder(Wrapped::new(&store, &failing))
        .queue("q")
        .heartbeat_on(HeartbeatOn::Task)
        .state(store.clone())
        .handle_tx::<Work>(handler)
        .start()
        .unwrap();
    finished(&store, 1).await;
    sleep(60 * SECOND).await;
    let stats = worker.stats();
    assert_eq!((stats.completed, stats.lease_lost), (1, 0));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// Counts the lines of the log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(tracing::Level, String)>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if ["message", "work"].contains(&field.name()) {
                    self.0 += &format!("{value:?} ");
                }
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push((*event.metadata().level(), text.0));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_one_line_when_it_begins_and_one_when_it_ends() {
    let lines = Lines::default();
    // If there is one subscriber only, `tracing` asks that of whichever thread logs a line first: for another test's, none.
    let _second = tracing::Dispatch::new(lines.clone());
    let _guard = tracing::subscriber::set_default(lines.clone());
    let store = store();
    let failing = Failing::new(None, How::Unavailable);
    failing.on.store(false, Ordering::SeqCst);
    let handler = async |work: Work, _: Context<()>| match work.n {
        0 => sleep(400 * SECOND).await,
        n => sleep(SECOND * n as u32).await,
    };
    let worker = Worker::builder(Wrapped::new(&store, &failing))
        .queue("q")
        .queue_with("another", QueueOptions::new())
        .queue("third:*")
        .heartbeat_on(HeartbeatOn::Task)
        .lease(300 * SECOND)
        .handle::<Work>(handler)
        .start()
        .unwrap();
    enqueue(&store, 10).await;
    sleep(SECOND / 2).await;
    failing.on.store(true, Ordering::SeqCst);
    sleep(150 * SECOND).await;
    failing.on.store(false, Ordering::SeqCst);
    finished(&store, 10).await;
    sleep(60 * SECOND).await;
    worker.shutdown(Duration::ZERO).await.unwrap();
    let lines = lines.0.lock().unwrap();
    let of = |level, text: &str| -> Vec<String> {
        let mut found: Vec<String> = lines
            .iter()
            .filter(|line| line.0 == level && line.1.contains(text))
            .map(|l| l.1.clone())
            .collect();
        found.sort();
        found
    };
    let warned = of(tracing::Level::WARN, "does not answer");
    let informed = of(tracing::Level::INFO, "answers again");
    let works = |lines: &[String]| -> Vec<String> {
        lines.iter().filter_map(|line| line.split('"').nth(1).map(str::to_owned)).collect()
    };
    let expected = ["claim", "heartbeat", "look for work", "reclaim", "settle"];
    assert!(works(&warned).iter().all(|work| expected.contains(&work.as_str())), "{warned:#?}");
    assert!(warned.windows(2).all(|two| two[0] != two[1]), "each sort of work once: {warned:#?}");
    assert!(warned.len() >= 3, "claims, verdicts and heartbeats at least: {warned:#?}");
    assert_eq!(works(&informed), works(&warned), "and no longer");
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_hints_that_ends_at_once_is_not_subscribed_to_without_end() {
    let store = store();
    let (mut mock, _, _) = mock(&store);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    mock.checkpoint();
    mock.expect_wakeups().returning(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(Box::pin(futures_util::stream::empty()) as Wakeups)
    });
    mock.expect_dequeue().returning(|_| Ok(Vec::new()));
    mock.expect_next_available_at().returning(|_| Ok(None));
    let worker = worker(mock).handle::<Work>(idle).start().unwrap();
    sleep(600 * SECOND).await;
    let calls = calls.load(Ordering::SeqCst);
    assert!((10..=120).contains(&calls), "{calls} subscriptions in ten minutes");
    worker.shutdown(Duration::ZERO).await.unwrap();
}
