//! A server that is killed again and again while everybody works: what it has answered is not lost, but for what the guide
//! says, nothing happens twice, and work goes on by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_core::{BatchSize, Dequeue, HistoryFilter, JobId, NewJob, Queues, Result, Store, Verdict};
use leasehold_redis::RedisStore;
use leasehold_servers::{Redis, RedisVersion};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long everything may take: a bound, not a wait.
const PATIENCE: Duration = Duration::from_secs(90);
const KILLS: u64 = 3;
/// Jobs that are accepted between two of them, at least.
const BETWEEN: u64 = 200;
const TASKS: usize = 4;

/// Producers and workers on one store, and what they were told.
struct Factory {
    store: RedisStore,
    accepted: Mutex<Vec<(JobId, Instant)>>,
    settled: Mutex<BTreeMap<JobId, Vec<Instant>>>,
    count: watch::Sender<u64>,
    is_open: AtomicBool,
    is_done: AtomicBool,
}

/// What was done, if it was. While the server is away nobody can say.
fn answered<T>(answer: Result<T>) -> Option<T> {
    answer.inspect_err(|error| assert!(error.is_unknown() || error.is_retryable(), "{error:?}")).ok()
}

impl Factory {
    async fn produce(self: Arc<Self>) {
        let mut number = 0;
        while self.is_open.load(Ordering::Relaxed) {
            number += 1;
            let job = NewJob::builder(format!("q{}", number % 3), "work").payload(&number).build().unwrap();
            if let Some(accepted) = answered(self.store.enqueue(&[job]).await) {
                self.accepted.lock().unwrap().push((accepted[0].id, Instant::now()));
                self.count.send_modify(|count| *count += 1);
            }
            tokio::task::yield_now().await;
        }
    }

    async fn work(self: Arc<Self>) {
        let request = Dequeue::new("q*", "w").unwrap().limit(10).unwrap();
        while !self.is_done.load(Ordering::Relaxed) {
            let jobs = answered(self.store.dequeue(&request).await).unwrap_or_default();
            let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect();
            let outcomes = answered(self.store.settle(&items).await).unwrap_or_default();
            let settled = items.iter().zip(&outcomes).filter(|(_, outcome)| !outcome.is_lost());
            for ((receipt, _), _) in settled {
                self.settled.lock().unwrap().entry(receipt.job).or_default().push(Instant::now());
            }
            tokio::task::yield_now().await;
        }
    }

    /// Waits until nothing is left. What was leased by a call whose answer was lost is taken back.
    async fn drain(&self, ahead: &AtomicU64) {
        let deadline = Instant::now() + PATIENCE;
        while answered(self.store.stats(&Queues::all()).await)
            .is_none_or(|stats| stats.iter().any(|queue| queue.live() > 0))
        {
            assert!(Instant::now() < deadline, "jobs are left after {PATIENCE:?}");
            ahead.fetch_add(3_600_000_000, Ordering::Relaxed);
            answered(self.store.reclaim(BatchSize::MAX).await);
        }
    }

    async fn finished(&self) -> BTreeSet<JobId> {
        let (mut finished, mut filter) = (BTreeSet::new(), HistoryFilter::default());
        loop {
            let page = self.store.history(&filter).await.unwrap();
            for job in &page.items {
                assert!(finished.insert(job.id), "{} has ended twice", job.id);
            }
            match page.next {
                Some(next) => filter.after = Some(next),
                None => return finished,
            }
        }
    }
}

/// Kills a server under load. What it answered so shortly before it was killed may be lost.
async fn killed(appendfsync: &str, may_be_lost: Duration) {
    let server = Redis::start(RedisVersion::Redis7, &[("appendfsync", appendfsync)]).unwrap();
    let ahead = Arc::new(AtomicU64::new(0));
    let store = RedisStore::builder().clock_ahead(Arc::clone(&ahead)).connect(&server.url()).await.unwrap();
    let factory = Arc::new(Factory {
        store,
        accepted: Mutex::default(),
        settled: Mutex::default(),
        count: watch::Sender::new(0),
        is_open: AtomicBool::new(true),
        is_done: AtomicBool::new(false),
    });
    let (mut producers, mut workers) = (JoinSet::new(), JoinSet::new());
    for _ in 0..TASKS {
        producers.spawn(Arc::clone(&factory).produce());
        workers.spawn(Arc::clone(&factory).work());
    }
    let mut kills = Vec::new();
    for _ in 0..KILLS {
        let (mut count, before) = (factory.count.subscribe(), *factory.count.borrow());
        let accepted = count.wait_for(|count| *count >= before + BETWEEN);
        let goes_on = tokio::time::timeout(PATIENCE, accepted).await.is_ok();
        assert!(goes_on, "work has not gone on by itself");
        kills.push(Instant::now());
        server.kill().unwrap();
        server.restart().unwrap();
    }
    factory.is_open.store(false, Ordering::Relaxed);
    producers.join_all().await;
    factory.drain(&ahead).await;
    factory.is_done.store(true, Ordering::Relaxed);
    workers.join_all().await;

    // The answer may have come a moment before the kill, and been noted a moment after.
    let window = may_be_lost + if may_be_lost.is_zero() { Duration::ZERO } else { Duration::from_secs(1) };
    let is_safe =
        |at: &Instant| !kills.iter().any(|kill| at.max(kill).duration_since(*at.min(kill)) < window);
    let finished = factory.finished().await;
    let accepted = factory.accepted.lock().unwrap().clone();
    assert!(accepted.len() as u64 >= KILLS * BETWEEN);
    let lost: Vec<_> = accepted.iter().filter(|(id, at)| is_safe(at) && !finished.contains(id)).collect();
    assert!(lost.is_empty(), "accepted and lost: {lost:?}");
    for (id, times) in &*factory.settled.lock().unwrap() {
        assert!(finished.contains(id) || !times.iter().all(is_safe), "{id} was settled, and is not finished");
        assert!(times.iter().rev().skip(1).all(|at| !is_safe(at)), "{id} was settled at {times:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_was_answered_is_lost_if_every_write_is_synced() {
    killed("always", Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_lost_than_the_guide_says_if_writes_are_synced_every_second() {
    killed("everysec", Duration::from_secs(2)).await;
}
