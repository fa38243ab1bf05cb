//! A worker that is running.

use std::convert::Infallible;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use leasehold_core::{Invalid, JobState, Problem, Queues, Store, Wakeups};
use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::call::{answer, later};
use crate::dispatch::{Dispatcher, Settings, Stop, Stopped};
use crate::execute::{Executor, MakeSpan};
use crate::heart::{Heart, HeartbeatOn};
use crate::leases::Leases;
use crate::outage::{LONGEST, Outage, with_causes};
use crate::report::{Reporter, WorkerEvent, WorkerStats};
use crate::router::Router;
use crate::source::Source;

/// How long a worker that has stopped waits for its last calls to end.
const LETTING_GO: Duration = Duration::from_secs(1);

/// What a builder has put together.
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) settings: Settings,
    pub(crate) sources: Vec<Source>,
    pub(crate) router: Router,
    pub(crate) timeout: Option<Duration>,
    pub(crate) make_span: MakeSpan,
    pub(crate) heartbeat: HeartbeatOn,
    pub(crate) sample_every: Option<Duration>,
}

/// A worker that is running. Clones are handles on the same worker. Dropping them all does not stop it.
#[derive(Clone)]
pub struct WorkerHandle {
    wake: Arc<Notify>,
    stop: Stop,
    grace: Duration,
    reporter: Reporter,
    stopped: watch::Receiver<Option<Stopped>>,
}

impl WorkerHandle {
    pub(crate) fn start(parts: Parts) -> Result<Self, Invalid> {
        let Parts { store, settings, sources, .. } = parts;
        let (reporter, leases, wake, stop) =
            (Reporter::new(), Arc::new(Leases::default()), Arc::new(Notify::new()), Stop::default());
        let grace = settings.grace;
        let ended = CancellationToken::new();
        // Whoever works for the worker has one of these, and drops it when it has let go of the store.
        let (busy, mut idle) = mpsc::channel::<Infallible>(1);
        let heart = Heart {
            store: Arc::clone(&store),
            leases: Arc::clone(&leases),
            lease: settings.lease,
            reporter: reporter.clone(),
            stop: ended.clone(),
            _busy: busy.clone(),
        };
        heart.start(parts.heartbeat).map_err(no_thread)?;
        let hints: Vec<Arc<Notify>> = sources.iter().map(|_| Arc::new(Notify::new())).collect();
        for (source, hint) in sources.iter().zip(&hints) {
            let listen = listen(Arc::clone(&store), source.queues.clone(), Arc::clone(hint), ended.clone());
            tokio::spawn(until_done(listen, busy.clone()));
        }
        if let Some(every) = parts.sample_every {
            let queues = sources.iter().map(|source| source.queues.clone()).collect();
            let sample = sample(Arc::clone(&store), queues, every, ended.clone());
            tokio::spawn(until_done(sample, busy.clone()));
        }
        let executor = Executor {
            router: parts.router,
            timeout: parts.timeout,
            make_span: parts.make_span,
            reporter: reporter.clone(),
        };
        let dispatcher = Dispatcher::new(
            store,
            settings,
            Arc::new(executor),
            leases,
            reporter.clone(),
            Arc::clone(&wake),
            stop.clone(),
            sources,
        );
        let (said, stopped) = watch::channel(None);
        // Also if the runtime is dropped: a heart on its own thread must not keep the leases of a worker that is gone.
        let ended = ended.drop_guard();
        tokio::spawn(async move {
            let stopped = dispatcher.run(hints).await;
            drop((ended, busy));
            // Not for ever: a store that does not answer may hold up the last heartbeat.
            drop(tokio::time::timeout(LETTING_GO, idle.recv()).await);
            said.send_replace(Some(stopped));
        });
        Ok(Self { wake, stop, grace, reporter, stopped })
    }

    /// Stops claiming, waits up to `grace` for the handlers that run, and gives back those that are still running then,
    /// their attempt refunded. Called again, or with no grace, it does not wait. When it returns, the worker has let go of
    /// its store, so that a file can be closed and opened by somebody else; if the store does not answer, after a second.
    ///
    /// # Cancel safety
    /// The worker stops all the same.
    pub async fn shutdown(&self, grace: Duration) -> Stopped {
        if self.stop.ends.set(later(Instant::now(), grace)).is_err() || grace.is_zero() {
            self.stop.waiting.cancel();
        }
        self.stop.claiming.cancel();
        self.join().await
    }

    /// Waits until the worker has stopped, by whomever it was told to.
    pub async fn join(&self) -> Stopped {
        let mut stopped = self.stopped.clone();
        match stopped.wait_for(Option::is_some).await {
            Ok(stopped) => stopped.unwrap_or_default(),
            // Its runtime is gone, and it with it.
            Err(_) => Stopped::default(),
        }
    }

    /// Runs until the process is told to end (SIGTERM or SIGINT), then shuts down with the builder's grace. A second signal
    /// does not wait.
    ///
    /// # Errors
    /// The operating system's, if signals cannot be heard.
    pub async fn run_until_signal(&self) -> std::io::Result<Stopped> {
        let mut signals = crate::signals::Signals::new()?;
        tokio::select! {
            stopped = self.join() => return Ok(stopped),
            () = signals.next() => {}
        }
        tracing::info!(grace = ?self.grace, "told to stop; a second signal stops at once");
        tokio::select! {
            stopped = self.shutdown(self.grace) => Ok(stopped),
            () = signals.next() => Ok(self.shutdown(Duration::ZERO).await),
        }
    }

    /// Looks for jobs now. Any number of calls while the worker is busy is one look.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// The worker in numbers, since it was started.
    pub fn stats(&self) -> WorkerStats {
        self.reporter.stats()
    }

    /// What happens from now on. Who is too slow misses some, and is told how many.
    pub fn events(&self) -> broadcast::Receiver<WorkerEvent> {
        self.reporter.events()
    }
}

impl fmt::Debug for WorkerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerHandle").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Runs a task, and drops `busy` when all that it held is dropped.
async fn until_done(task: impl Future<Output = ()>, busy: mpsc::Sender<Infallible>) {
    task.await;
    drop(busy);
}

fn no_thread(error: std::io::Error) -> Invalid {
    tracing::error!(%error, "no thread for the heartbeats");
    Invalid::new("concurrency", Problem::Malformed { expected: "a system with a thread to spare" })
}

/// Passes the store's hints on, and subscribes again when the stream ends.
async fn listen(store: Arc<dyn Store>, queues: Queues, hint: Arc<Notify>, stop: CancellationToken) {
    let mut outage = Outage::new("wakeups");
    let listening = async {
        loop {
            let hints = AssertUnwindSafe(async { store.wakeups(&queues).await }).catch_unwind().await;
            let error = match hints {
                Ok(Ok(hints)) => {
                    if outage.is_on() {
                        hint.notify_one(); // Some may have been missed.
                    }
                    let passing = AssertUnwindSafe(pass_on(hints, &hint, &mut outage)).catch_unwind().await;
                    passing
                        .map_or("the stream of hints panicked", |()| "the stream of hints has ended")
                        .into()
                }
                Ok(Err(error)) => with_causes(&error),
                Err(_) => "the store panicked".to_owned(),
            };
            tokio::time::sleep(outage.failed(&error)).await;
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = listening => {}
    }
}

/// Passes hints on until they end. An outage is over when they have lasted: a stream that always ends at once is
/// subscribed to less and less often.
async fn pass_on(mut hints: Wakeups, hint: &Notify, outage: &mut Outage) {
    let mut lasting = pin!(tokio::time::sleep(LONGEST));
    loop {
        tokio::select! {
            biased;
            next = hints.next() => match next {
                Some(()) => hint.notify_one(),
                None => return,
            },
            () = &mut lasting, if outage.is_on() => outage.over(),
        }
    }
}

/// Publishes the numbers of the queues.
async fn sample(store: Arc<dyn Store>, queues: Vec<Queues>, every: Duration, stop: CancellationToken) {
    let mut tick = tokio::time::interval(every.max(Duration::from_millis(1)));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        for queues in &queues {
            // A store that does not answer is told about by those who need it.
            let stats = answer("stats", every.max(LONGEST), async || store.stats(queues).await).await;
            for stats in stats.unwrap_or_default() {
                let count = |state| stats.states.get(&state).copied().unwrap_or_default() as f64;
                let queue = stats.queue.to_string();
                metrics::gauge!("leasehold_ready", "queue" => queue.clone()).set(count(JobState::Ready));
                metrics::gauge!("leasehold_running", "queue" => queue.clone()).set(count(JobState::Running));
                let waiting = count(JobState::Scheduled) + count(JobState::Retrying);
                metrics::gauge!("leasehold_waiting", "queue" => queue.clone()).set(waiting);
                metrics::gauge!("leasehold_dead_letters", "queue" => queue).set(stats.dead_letters as f64);
            }
        }
    }
}
