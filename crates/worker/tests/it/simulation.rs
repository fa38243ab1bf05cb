//! Thousands of schedules of faults, each from a seed, on virtual time: whatever happens to the store and to the workers,
//! once it is over every job is finished, and what was done in its transaction was done once.
//!
//! A seed that fails is named. To run it alone:
//! `LEASEHOLD_SEED=17 cargo test -p leasehold-worker --test it simulation`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::support::wrapped::{Around, Op, Wrapped};
use async_trait::async_trait;
use leasehold_core::{
    Backoff, BatchSize, FinalStatus, FinishedJob, HistoryFilter, JobFilter, JobId, JobKind, Json, NewJob,
    QueuePattern, QueuePolicy, Receipt, ReceiptStatus, Result, Settled, Store, StoreError, TxStore, Verdict,
};
use leasehold_memory::MemoryStore;
use leasehold_worker::{Context, HeartbeatOn, QueueOptions, Worker, WorkerHandle};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::sleep;

/// How many schedules are tried with `LEASEHOLD_TEST_LONG` set; a tenth of them otherwise, in turn.
const SEEDS: u64 = 3000;
/// How long one may take by the clock on the wall: virtual time that does not pass is a loop that does not wait.
const PATIENCE: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(5);

#[test]
fn whatever_happens_every_job_is_finished_and_done_once() {
    silence();
    if let Ok(seed) = std::env::var("LEASEHOLD_SEED") {
        run(seed.parse().unwrap());
        return;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let seeds = seeds();
    println!("seeds {seeds:?}; LEASEHOLD_SEED=<number> runs one");
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(seed) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < seeds.end)
                {
                    run(seed);
                }
            });
        }
    });
}

/// All of them, or the tenth whose turn it is this minute.
fn seeds() -> Range<u64> {
    if std::env::var_os("LEASEHOLD_TEST_LONG").is_some() {
        return 0..SEEDS;
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let tenth = now.as_secs() / 60 % 10;
    tenth * SEEDS / 10..(tenth + 1) * SEEDS / 10
}

/// Else a seed that fails could not be looked into.
#[test]
fn a_seed_goes_the_same_way_each_time() {
    silence();
    for seed in 0..30 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

/// Panics that are part of the game are not shown.
fn silence() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref() != Some(&"simulated") {
            usual(info);
        }
    }));
}

/// Runs one schedule on a thread of its own, so that one that never ends is seen. The history that comes of it.
fn run(seed: u64) -> Vec<FinishedJob> {
    let (done, ended) = mpsc::channel();
    let name = format!("LEASEHOLD_SEED={seed}");
    let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
        fastrand::seed(seed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let history = runtime.unwrap().block_on(simulate(seed));
        done.send(history).unwrap();
    });
    match ended.recv_timeout(PATIENCE) {
        Ok(history) => history,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{name} does not end"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let panic = thread.unwrap().join().unwrap_err();
            let said = panic.downcast_ref::<String>().cloned();
            panic!("{name} fails: {}", said.unwrap_or_else(|| "see above".to_owned()));
        }
    }
}

async fn simulate(seed: u64) -> Vec<FinishedJob> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let world = World::new(&mut rng).await;
    world.enqueue(&mut rng).await;
    let mut workers = [world.worker(&mut rng), world.worker(&mut rng)];
    for _ in 0..rng.usize(2..8) {
        sleep(millis(&mut rng, 50..8000)).await;
        let one = rng.usize(..2);
        let (node, worker) = workers[one].clone();
        let what = rng.u32(..6);
        match what {
            0 => node.set(State::Crashed),
            1 => drop(tokio::spawn(async move { worker.shutdown(Duration::ZERO).await.unwrap() })),
            2 => {
                let grace = millis(&mut rng, 0..10_000);
                drop(tokio::spawn(async move { worker.shutdown(grace).await.unwrap() }));
            }
            3 => node.set(State::Paused),
            4 => node.set(State::Up),
            _ => world.enqueue(&mut rng).await,
        }
        if what < 3 {
            workers[one] = world.worker(&mut rng);
        }
    }
    world.heal();
    // Those that were paused go on, those that were up are still there; only a fresh one is sure to be well.
    workers.iter().filter(|(node, _)| node.is(State::Paused)).for_each(|(node, _)| node.set(State::Up));
    let (_, fresh) = world.worker(&mut rng);
    let history = world.finished().await;
    world.check(&history);
    let stopped = fresh.shutdown(Duration::from_secs(60)).await.unwrap();
    assert_eq!((stopped.released, stopped.abandoned), (0, 0), "there is nothing to give back");
    assert_eq!(fresh.stats().running, 0);
    history
}

/// Everything that there is one of.
struct World {
    store: MemoryStore,
    chaos: Arc<Chaos>,
    deeds: Arc<Deeds>,
    names: AtomicU64,
}

/// Which faults there are in this schedule, each in so many of a hundred calls.
struct Chaos {
    rng: Mutex<fastrand::Rng>,
    odds: Mutex<Odds>,
}

#[derive(Clone, Copy, Default)]
struct Odds {
    unavailable: u32,
    backend: u32,
    unknown_before: u32,
    unknown_after: u32,
    panics: u32,
    delays: u32,
    longest_delay: u64,
    hangs: u32,
    /// Of heartbeats alone.
    lost_beats: u32,
    /// Of verdicts alone: the row is locked by another transaction.
    locked: u32,
}

/// What handlers do wrong in this schedule, and what all of them did.
struct Deeds {
    rng: Mutex<fastrand::Rng>,
    errors: u32,
    panics: u32,
    slow: u32,
    obedient: u32,
    forgotten: u32,
    lost_commits: u32,
    healed: std::sync::atomic::AtomicBool,
    plain: Mutex<Vec<JobId>>,
    executions: AtomicU64,
    enqueued: Mutex<Vec<JobId>>,
}

/// A process that runs a worker.
#[derive(Clone)]
struct Node(Arc<(Mutex<State>, Notify)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    /// Nothing of it goes on until it is up again.
    Paused,
    /// Nothing of it goes on.
    Crashed,
}

impl Node {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(State::Up), Notify::new())))
    }

    /// The dead stay dead.
    fn set(&self, state: State) {
        if !self.is(State::Crashed) {
            *self.0.0.lock().unwrap() = state;
            self.0.1.notify_waiters();
        }
    }

    fn is(&self, state: State) -> bool {
        *self.0.0.lock().unwrap() == state
    }

    /// Whatever the process does, it does while it is up.
    async fn up(&self) {
        loop {
            let changed = self.0.1.notified();
            if self.is(State::Up) {
                return;
            }
            changed.await;
        }
    }
}

/// The way from one process to the store.
struct Link {
    node: Node,
    chaos: Arc<Chaos>,
}

impl Chaos {
    fn odds(&self) -> Odds {
        *self.odds.lock().unwrap()
    }

    fn happens(&self, percent: u32) -> bool {
        percent > 0 && self.rng.lock().unwrap().u32(..100) < percent
    }

    async fn delay(&self) {
        let odds = self.odds();
        if self.happens(odds.delays) {
            let millis = self.rng.lock().unwrap().u64(..=odds.longest_delay);
            sleep(Duration::from_millis(millis)).await;
        }
        if self.happens(odds.hangs) {
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Around for Link {
    async fn before(&self, op: Op, _: usize) -> Result<()> {
        self.node.up().await;
        self.chaos.delay().await;
        self.node.up().await;
        let (chaos, odds) = (&self.chaos, self.chaos.odds());
        if chaos.happens(odds.unavailable) {
            return Err(StoreError::unavailable("simulated", "cannot be reached"));
        }
        if chaos.happens(odds.backend) {
            return Err(StoreError::backend("simulated", "the disk is full"));
        }
        if chaos.happens(odds.unknown_before) || (op == Op::Heartbeat && chaos.happens(odds.lost_beats)) {
            return Err(StoreError::unknown("simulated", "the request was lost"));
        }
        assert!(!chaos.happens(odds.panics), "simulated");
        Ok(())
    }

    async fn after(&self, _: Op, _: usize) -> Result<()> {
        self.node.up().await;
        self.chaos.delay().await;
        self.node.up().await;
        if self.chaos.happens(self.chaos.odds().unknown_after) {
            return Err(StoreError::unknown("simulated", "the answer was lost"));
        }
        Ok(())
    }

    fn skips(&self, _: &Receipt) -> bool {
        self.chaos.happens(self.chaos.odds().locked)
    }
}

#[derive(Serialize, Deserialize)]
struct Plain;

impl JobKind for Plain {
    const KIND: &'static str = "plain";
}

#[derive(Serialize, Deserialize)]
struct Transactional;

impl JobKind for Transactional {
    const KIND: &'static str = "transactional";
}

/// What handlers share.
struct App {
    node: Node,
    store: MemoryStore,
    deeds: Arc<Deeds>,
}

impl App {
    /// Some of the work. An error is a handler that gives up because its lease is lost.
    async fn work(&self, context: &Context<App>) -> Result<(), String> {
        let slow = self.deeds.happens(self.deeds.slow);
        let obedient = self.deeds.happens(self.deeds.obedient);
        for _ in 0..if slow { 8 } else { 1 } {
            let step = self.deeds.millis(if slow { 3000 } else { 300 });
            sleep(step).await;
            self.node.up().await;
            self.believes(context).await;
            if obedient && context.is_cancelled() {
                return Err("cancelled".to_owned());
            }
        }
        assert!(!self.deeds.happens(self.deeds.panics), "simulated");
        if self.deeds.happens(self.deeds.errors) {
            return Err("simulated".to_owned());
        }
        Ok(())
    }

    /// A lease that a handler may believe in is one that the store grants.
    async fn believes(&self, context: &Context<App>) {
        let left = context.lease_left();
        if left.is_zero() {
            return;
        }
        assert!(!context.is_cancelled());
        let (now, status) =
            (self.store.now().await.unwrap(), self.store.receipts(&[context.receipt()]).await.unwrap()[0]);
        // By the store's clock, which counts microseconds.
        let enough = now + left - Duration::from_micros(1);
        if !matches!(status, ReceiptStatus::Held { until } if until >= enough) {
            self.deeds
                .deceived(format!("{} believes in {left:?} more at {now}: {status:?}", context.receipt()));
        }
    }
}

async fn plain(_: Plain, context: Context<App>) -> Result<Verdict, String> {
    let app = context.state();
    app.work(&context).await?;
    if app.deeds.happens(app.deeds.errors / 4) {
        return Ok(Verdict::snooze(app.deeds.millis(2000)).unwrap());
    }
    app.deeds.plain.lock().unwrap().push(context.id());
    Ok(Verdict::done())
}

async fn transactional(_: Transactional, context: Context<App>) -> Result<Settled, String> {
    let app = context.state();
    let (store, deeds) = (&app.store, &app.deeds);
    let mut tx = store.begin();
    // A key of its own for each execution: nothing but the commit keeps the deed from being done twice.
    let execution = deeds.executions.fetch_add(1, Ordering::Relaxed);
    tx.put(format!("{}/{execution}", context.id()), Json::null()).unwrap();
    app.work(&context).await?;
    let settled = store.ack_in(&mut tx, &context.receipt(), Json::null()).await.map_err(|e| e.to_string())?;
    sleep(deeds.millis(200)).await;
    app.node.up().await;
    if deeds.happens(deeds.forgotten) {
        return Ok(settled);
    }
    tx.commit().map_err(|error| error.to_string())?;
    sleep(deeds.millis(200)).await;
    app.node.up().await;
    if deeds.happens(deeds.lost_commits) {
        return Err("the answer to the commit was lost".to_owned());
    }
    assert!(!deeds.happens(deeds.panics), "simulated");
    Ok(settled)
}

impl Deeds {
    fn happens(&self, percent: u32) -> bool {
        !self.healed.load(Ordering::Relaxed) && self.rng.lock().unwrap().u32(..100) < percent
    }

    fn millis(&self, most: u64) -> Duration {
        let most = if self.healed.load(Ordering::Relaxed) { most.min(300) } else { most };
        Duration::from_millis(self.rng.lock().unwrap().u64(..=most))
    }

    /// A panic of a handler is nothing to a worker: what must not be is remembered.
    fn deceived(&self, how: String) {
        DECEIVED.with_borrow_mut(|deceived| deceived.push(how));
    }
}

thread_local! {
    static DECEIVED: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl World {
    async fn new(rng: &mut fastrand::Rng) -> Self {
        let store = crate::support::store();
        let (base, max) = (Duration::from_millis(500), Duration::from_secs(4));
        let backoff = Some(Backoff::new(base, 0.2, base, max).unwrap());
        let all: QueuePattern = "*".parse().unwrap();
        store.set_policy(&all, &QueuePolicy { backoff, ..QueuePolicy::default() }).await.unwrap();
        let fifo = QueuePolicy { order: Some(leasehold_core::QueueOrder::Fifo), ..QueuePolicy::default() };
        store.set_policy(&"fifo:*".parse().unwrap(), &QueuePolicy { backoff, ..fifo }).await.unwrap();
        let mut some = |most: u32| if rng.bool() { rng.u32(1..=most) } else { 0 };
        let odds = Odds {
            unavailable: some(40),
            backend: some(60),
            unknown_before: some(25),
            unknown_after: some(25),
            panics: some(10),
            delays: some(60),
            longest_delay: 1 + u64::from(some(7000)),
            hangs: some(5),
            lost_beats: some(70),
            locked: some(80),
        };
        let deeds = Deeds {
            errors: some(40),
            panics: some(30),
            slow: some(40),
            obedient: some(100),
            forgotten: some(30),
            lost_commits: some(30),
            rng: Mutex::new(rng.fork()),
            healed: false.into(),
            plain: Mutex::default(),
            executions: AtomicU64::new(0),
            enqueued: Mutex::default(),
        };
        let chaos = Chaos { rng: Mutex::new(rng.fork()), odds: Mutex::new(odds) };
        Self { store, chaos: Arc::new(chaos), deeds: Arc::new(deeds), names: AtomicU64::new(0) }
    }

    async fn enqueue(&self, rng: &mut fastrand::Rng) {
        let job = |rng: &mut fastrand::Rng| {
            let queue = ["a", "b", "fifo:1", "fifo:2"][rng.usize(..4)];
            let job = if rng.bool() { NewJob::of(queue, &Plain) } else { NewJob::of(queue, &Transactional) };
            // Few attempts, so that some end as dead letters, or as many as it takes.
            let job = job.max_attempts(if rng.u32(..4) == 0 { rng.u32(1..4) } else { 1000 });
            let job = if rng.u32(..4) == 0 { job.delay(millis(rng, 0..6000)) } else { job };
            job.build().unwrap()
        };
        let jobs: Vec<NewJob> = (0..rng.usize(1..12)).map(|_| job(rng)).collect();
        let ids = self.store.enqueue(&jobs).await.unwrap();
        self.deeds.enqueued.lock().unwrap().extend(ids.iter().map(|enqueued| enqueued.id));
    }

    fn worker(&self, rng: &mut fastrand::Rng) -> (Node, WorkerHandle) {
        let node = Node::new();
        let link = Arc::new(Link { node: node.clone(), chaos: Arc::clone(&self.chaos) });
        let app = App { node: node.clone(), store: self.store.clone(), deeds: Arc::clone(&self.deeds) };
        let builder = Worker::builder(Wrapped::new(&self.store, &link))
            .state(app)
            .queue("a")
            .queue_with("b", QueueOptions::new().concurrency(rng.usize(1..3)).weight(rng.u32(1..4)))
            .queue("fifo:*")
            .worker_id(format!("worker-{}", self.names.fetch_add(1, Ordering::Relaxed)))
            .concurrency(rng.usize(1..7))
            .claim_batch(rng.usize(1..5))
            .settle_batch(rng.usize(1..5), millis(rng, 0..20))
            .lease(LEASE)
            .heartbeat_on(HeartbeatOn::Task)
            .handle::<Plain>(plain)
            .handle_tx::<Transactional>(transactional);
        let builder = if rng.bool() { builder.timeout(Duration::from_secs(9)) } else { builder };
        (node, builder.start().unwrap())
    }

    /// From now on nothing goes wrong any more.
    fn heal(&self) {
        *self.chaos.odds.lock().unwrap() = Odds::default();
        self.deeds.healed.store(true, Ordering::Relaxed);
    }

    /// The history, once the queues are empty.
    async fn finished(&self) -> Vec<FinishedJob> {
        for _ in 0..600 {
            if self.store.jobs(&JobFilter::default()).await.unwrap().items.is_empty() {
                let filter = HistoryFilter { limit: BatchSize::MAX, ..HistoryFilter::default() };
                return self.store.history(&filter).await.unwrap().items;
            }
            sleep(Duration::from_secs(1)).await;
        }
        let left = self.store.jobs(&JobFilter::default()).await.unwrap().items;
        panic!("ten minutes after all is well, {} jobs are not finished, such as {:?}", left.len(), left[0]);
    }

    fn check(&self, history: &[FinishedJob]) {
        let enqueued = self.deeds.enqueued.lock().unwrap();
        let ids: Vec<JobId> = history.iter().map(|job| job.id).collect();
        assert_eq!(ids, *enqueued, "every job is in the history, once");
        let mut deeds: BTreeMap<JobId, usize> = BTreeMap::new();
        for key in self.store.values().keys() {
            *deeds.entry(key.split_once('/').unwrap().0.parse().unwrap()).or_default() += 1;
        }
        let plain = self.deeds.plain.lock().unwrap();
        for job in history {
            let completed = job.outcome.status() == FinalStatus::Completed;
            let done = deeds.get(&job.id).copied().unwrap_or_default();
            if job.kind.as_str() == Transactional::KIND {
                assert_eq!(done, usize::from(completed), "deeds of {job:?}");
            } else if completed {
                assert!(plain.contains(&job.id), "{job:?} is completed, and nobody has done it");
            }
            assert!(completed || job.max_attempts.get() < 1000, "{job:?} has attempts left");
        }
        DECEIVED.with_borrow(|deceived| assert!(deceived.is_empty(), "{deceived:?}"));
    }
}

fn millis(rng: &mut fastrand::Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.u64(range))
}
