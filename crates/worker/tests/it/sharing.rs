//! How several sources share the slots of one worker.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::wrapped::{Around, Op, Wrapped};
use crate::support::{Work, enqueue, finished, store, worker};
use async_trait::async_trait;
use leasehold_core::{Dequeue, NewJob, QueueOrder, QueuePolicy, Record, Result, Store, StoreError};
use leasehold_memory::MemoryStore;
use leasehold_worker::{Context, HeartbeatOn, QueueOptions, Worker};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

async fn fill(store: &MemoryStore, queue: &str, count: u64) {
    let jobs: Vec<NewJob> = (0..count).map(|n| NewJob::of(queue, &Work { n }).build().unwrap()).collect();
    for jobs in jobs.chunks(10_000) {
        store.enqueue(jobs).await.unwrap();
    }
}

/// The part of `heavy` in the jobs that are started while both queues have enough.
async fn share(weights: [u32; 2], slots: usize, together: bool) -> f64 {
    let store = store();
    let jobs = 20_000;
    fill(&store, "heavy", jobs).await;
    fill(&store, "light", jobs).await;
    let started: Arc<Mutex<Vec<bool>>> = Arc::default();
    let seen = Arc::clone(&started);
    let handler = move |_: Work, context: Context<()>| {
        seen.lock().unwrap().push(context.queue().as_str() == "heavy");
        let length = if together { 100 } else { fastrand::u64(1..=200) };
        sleep(Duration::from_millis(length))
    };
    let worker = Worker::builder(Arc::new(store.clone()))
        .queue_with("heavy", QueueOptions::new().weight(weights[0]))
        .queue_with("light", QueueOptions::new().weight(weights[1]))
        .heartbeat_on(HeartbeatOn::Task)
        .concurrency(slots)
        .handle::<Work>(handler)
        .start()
        .unwrap();
    // After the first jobs, and before one of the queues is empty.
    let (first, last) = (slots * 3, (slots * 100).min(15_000));
    while started.lock().unwrap().len() < last {
        sleep(SECOND / 10).await;
    }
    worker.shutdown(Duration::ZERO).await.unwrap();
    let started = started.lock().unwrap();
    let heavy = started[first..last].iter().filter(|heavy| **heavy).count();
    heavy as f64 / (last - first) as f64
}

#[tokio::test(start_paused = true)]
async fn slots_are_in_proportion_to_weights_however_many_there_are() {
    for (weights, wanted) in [([3, 1], 0.75), ([10, 1], 10.0 / 11.0), ([1, 1], 0.5)] {
        for slots in [1, 4, 20, 100] {
            for together in [true, false] {
                let share = share(weights, slots, together).await;
                let near = (share - wanted).abs() < 0.04;
                assert!(
                    near,
                    "{weights:?} with {slots} slots, together {together}: {share:.3} of {wanted:.3}"
                );
            }
        }
    }
}

/// A store of which one queue cannot be claimed from: the claim does not come back.
struct HalfHanging(std::sync::atomic::AtomicBool);

#[async_trait]
impl Around for HalfHanging {
    async fn before_claim(&self, request: &Dequeue) -> Result<()> {
        if self.0.load(Ordering::SeqCst) && request.queues.contains(&"bad".parse().unwrap()) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_hangs_does_not_take_the_slots_of_the_others() {
    for slots in [1, 2, 10] {
        let store = store();
        fill(&store, "good", 10_000).await;
        fill(&store, "bad", 50).await;
        let hanging = Arc::new(HalfHanging(true.into()));
        let handler = async |_: Work, _: Context<()>| sleep(SECOND).await;
        let worker = Worker::builder(Wrapped::new(&store, &hanging))
            .queue_with("bad", QueueOptions::new().weight(5))
            .queue_with("good", QueueOptions::new())
            .heartbeat_on(HeartbeatOn::Task)
            .concurrency(slots)
            .handle::<Work>(handler)
            .start()
            .unwrap();
        sleep(600 * SECOND).await;
        let completed = worker.stats().completed;
        assert!(completed >= 590 * slots as u64, "{completed} jobs with {slots} slots in 600 seconds");
        // It comes back, and gets its share.
        hanging.0.store(false, Ordering::SeqCst);
        sleep(300 * SECOND).await;
        let waiting =
            store.stats(&"bad".parse::<leasehold_core::QueuePattern>().unwrap().into()).await.unwrap();
        let ready = waiting.iter().map(|stats| stats.states.values().sum::<u64>()).sum::<u64>();
        assert_eq!(ready, 0, "jobs of the source that hung, with {slots} slots");
        worker.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// The answer to a claim comes after others have taken its slots: its jobs are given back, and no attempt is spent.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_answered_late_starts_no_more_than_there_are_slots() {
    struct Late;
    #[async_trait]
    impl Around for Late {
        async fn before_claim(&self, request: &Dequeue) -> Result<()> {
            if request.queues.contains(&"late".parse().unwrap()) {
                // Not when handlers end: at that moment the slots are free.
                sleep(10 * SECOND + SECOND / 2).await;
            }
            Ok(())
        }
    }
    let store = store();
    fill(&store, "late", 10).await;
    fill(&store, "good", 400).await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = (Arc::clone(&now), Arc::clone(&most));
    let handler = move |_: Work, _: Context<()>| {
        let (now, most) = seen.clone();
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(SECOND).await;
            now.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let worker = Worker::builder(Wrapped::new(&store, &Arc::new(Late)))
        .queue_with("late", QueueOptions::new())
        .queue_with("good", QueueOptions::new())
        .heartbeat_on(HeartbeatOn::Task)
        .concurrency(4)
        .handle::<Work>(handler)
        .start()
        .unwrap();
    let jobs = finished(&store, 410).await;
    assert_eq!(most.load(Ordering::SeqCst), 4);
    assert!(jobs.iter().all(|job| job.attempts == 1));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// A worker that is never idle takes passed leases away all the same.
#[tokio::test(start_paused = true)]
async fn a_busy_worker_reclaims() {
    let store = store();
    fill(&store, "dead", 1).await;
    let dead = Dequeue::new("dead", "dead").unwrap().lease_for(10 * SECOND).unwrap();
    store.dequeue(&dead).await.unwrap();
    fill(&store, "q", 1000).await;
    let handler = async |_: Work, _: Context<()>| sleep(SECOND).await;
    let worker = Worker::builder(Arc::new(store.clone()))
        .queue("q")
        .heartbeat_on(HeartbeatOn::Task)
        .concurrency(2)
        .handle::<Work>(handler)
        .start()
        .unwrap();
    sleep(120 * SECOND).await;
    assert_eq!(worker.stats().reclaimed, 1);
    let Some(Record::Live(job)) = store.get(1.into()).await.unwrap() else { panic!("the job is gone") };
    assert_eq!(job.lease, None);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// A reclaim that hangs is given up after a minute. Until then no other is sent.
#[tokio::test(start_paused = true)]
async fn one_reclaim_is_under_way_at_a_time() {
    struct Hanging(AtomicUsize);
    #[async_trait]
    impl Around for Hanging {
        async fn before(&self, op: Op, _: usize) -> Result<()> {
            if op == Op::Reclaim {
                self.0.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    }
    let (store, hanging) = (store(), Arc::new(Hanging(0.into())));
    fill(&store, "q", 1).await;
    let worker = Worker::builder(Wrapped::new(&store, &hanging)).queue("q").heartbeat_on(HeartbeatOn::Task);
    let handler = async |_: Work, _: Context<()>| std::future::pending::<()>().await;
    let worker = worker.lease(60 * SECOND).handle::<Work>(handler).start().unwrap();
    // Looked for after 22 to 38 seconds, and again after as many.
    sleep(80 * SECOND).await;
    assert_eq!(hanging.0.load(Ordering::SeqCst), 1);
    sleep(80 * SECOND).await;
    assert!(hanging.0.load(Ordering::SeqCst) > 1);
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// A store without hints, and a queue of which one job is ready at a time: the worker looks again after each.
#[tokio::test(start_paused = true)]
async fn after_its_work_a_worker_looks_again_without_being_told() {
    struct Deaf;
    #[async_trait]
    impl Around for Deaf {
        async fn before(&self, op: Op, _: usize) -> Result<()> {
            match op {
                Op::Wakeups => Err(StoreError::unsupported("hints")),
                _ => Ok(()),
            }
        }
    }
    for length in [Duration::ZERO, SECOND] {
        let store = store();
        let policy = QueuePolicy { order: Some(QueueOrder::Fifo), ..QueuePolicy::default() };
        store.set_policy(&"q".parse().unwrap(), &policy).await.unwrap();
        enqueue(&store, 20).await;
        let handler = move |_: Work, _: Context<()>| sleep(length);
        let worker = Worker::builder(Wrapped::new(&store, &Arc::new(Deaf)))
            .queue("q")
            .heartbeat_on(HeartbeatOn::Task)
            .poll_interval(600 * SECOND)
            .handle::<Work>(handler)
            .start()
            .unwrap();
        let start = Instant::now();
        finished(&store, 20).await;
        assert!(start.elapsed() < 20 * length + SECOND, "{:?}", start.elapsed());
        worker.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// Slots that become free one after the other are filled by few claims.
#[tokio::test(start_paused = true)]
async fn slots_that_become_free_at_about_the_same_time_are_filled_by_one_claim() {
    let store = store();
    enqueue(&store, 2000).await;
    let handler = async |work: Work, _: Context<()>| {
        // The clock of a test goes by milliseconds: one slot becomes free in each.
        sleep(Duration::from_millis(100 + work.n % 40)).await;
    };
    let worker = Worker::builder(Arc::new(store.clone()))
        .queue("q")
        .heartbeat_on(HeartbeatOn::Task)
        .concurrency(40)
        .handle::<Work>(handler)
        .start()
        .unwrap();
    finished(&store, 2000).await;
    let claims = worker.stats().claims;
    assert!(claims < 1200, "{claims} claims for 2000 jobs in 40 slots");
    worker.shutdown(Duration::ZERO).await.unwrap();
}

/// With many slots free a claim does not wait for more, although a handler is running.
#[tokio::test(start_paused = true)]
async fn a_claim_for_many_free_slots_is_sent_at_once() {
    let store = store();
    enqueue(&store, 1).await;
    let (started, mut starts) = unbounded_channel();
    let handler = async |_: Work, context: Context<UnboundedSender<Instant>>| {
        context.state().send(Instant::now()).unwrap();
        sleep(60 * SECOND).await;
    };
    let worker = worker(&store).concurrency(40).state(started).handle::<Work>(handler).start().unwrap();
    starts.recv().await.unwrap();
    sleep(SECOND * 5 / 2).await;
    let enqueued = Instant::now();
    enqueue(&store, 1).await;
    assert_eq!(starts.recv().await.unwrap() - enqueued, Duration::ZERO);
    worker.shutdown(Duration::ZERO).await.unwrap();
}
