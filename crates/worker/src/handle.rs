//! A worker that is running.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Invalid, Problem, Store};
use tokio::runtime::Handle;
use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::call::later;
use crate::dispatch::{Dispatcher, Settings, Stop, Stopped};
use crate::execute::{Executor, MakeSpan};
use crate::heart::{Heart, HeartbeatOn};
use crate::hints::listen;
use crate::leases::Leases;
use crate::panics::log;
use crate::report::{Labels, Reporter, WorkerEvent, WorkerStats};
use crate::router::Router;
use crate::sample::sample;
use crate::source::Source;
use crate::watch::{Watch, WorkerDied};

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

impl Parts {
    pub(crate) fn labels(&self) -> Labels {
        Labels {
            worker: self.settings.worker.clone(),
            queues: self.sources.iter().map(|source| source.queues.clone()).collect(),
            kinds: self.router.routes.keys().cloned().collect(),
        }
    }
}

/// A worker that is running. Clones are handles on the same worker. Dropping them all does not stop it.
#[derive(Clone)]
pub struct WorkerHandle {
    wake: Arc<Notify>,
    stop: Stop,
    grace: Duration,
    reporter: Reporter,
    stopped: watch::Receiver<Option<Result<Stopped, WorkerDied>>>,
}

impl WorkerHandle {
    pub(crate) fn start(parts: Parts) -> Result<Self, Invalid> {
        let runtime = Handle::try_current().map_err(|_| no_runtime())?;
        let reporter = Reporter::new(parts.labels());
        let Parts { store, settings, sources, .. } = parts;
        let (leases, wake, stop) = (Arc::new(Leases::default()), Arc::new(Notify::new()), Stop::default());
        let (grace, watch) = (settings.grace, Watch::default());
        let ended = CancellationToken::new();
        // Each part of the worker has one of these, and drops it when it has let go of the store.
        let (busy, mut idle) = mpsc::channel::<Infallible>(1);
        let heart = Heart {
            store: Arc::clone(&store),
            leases: Arc::clone(&leases),
            lease: settings.lease,
            reporter: reporter.clone(),
            stop: ended.clone(),
            _busy: busy.clone(),
        };
        heart.start(parts.heartbeat, watch.clone(), stop.clone()).map_err(no_thread)?;
        let hints: Vec<Arc<Notify>> = sources.iter().map(|_| Arc::new(Notify::new())).collect();
        for (source, hint) in sources.iter().zip(&hints) {
            let listen = listen(Arc::clone(&store), source.queues.clone(), Arc::clone(hint), ended.clone());
            runtime.spawn(until_done(listen, busy.clone()));
        }
        if let Some(every) = parts.sample_every {
            let queues = sources.iter().map(|source| source.queues.clone()).collect();
            let sample = sample(Arc::clone(&store), queues, every, ended.clone());
            runtime.spawn(until_done(sample, busy.clone()));
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
        let (ended, watched) = (ended.drop_guard(), stop.clone());
        runtime.spawn(async move {
            let stopped = watch.over("dispatcher", &watched, dispatcher.run(hints)).await;
            drop((ended, busy));
            // Not for ever: a store that does not answer may hold up the last heartbeat.
            drop(tokio::time::timeout(LETTING_GO, idle.recv()).await);
            said.send_replace(Some(watch.verdict(stopped)));
        });
        Ok(Self { wake, stop, grace, reporter, stopped })
    }

    /// Stops claiming, waits up to `grace` for the handlers that run, and gives back those that are still running then,
    /// their attempt refunded. Called again, or with no grace, it does not wait. When it returns, the worker has let go of
    /// its store, so that a file can be closed and opened again; if the store does not answer, after a second.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    ///
    /// # Cancel safety
    /// The worker stops all the same.
    pub async fn shutdown(&self, grace: Duration) -> Result<Stopped, WorkerDied> {
        if self.stop.ends.set(later(Instant::now(), grace)).is_err() || grace.is_zero() {
            self.stop.waiting.cancel();
        }
        self.stop.claiming.cancel();
        self.join().await
    }

    /// Waits until the worker has stopped, because it was told to or because it died.
    ///
    /// # Errors
    /// [`WorkerDied`]: it has ended by itself.
    pub async fn join(&self) -> Result<Stopped, WorkerDied> {
        let mut stopped = self.stopped.clone();
        let gone = || WorkerDied::new("runtime", "it was dropped");
        let stopped = stopped.wait_for(Option::is_some).await.map_err(|_| gone())?;
        stopped.clone().unwrap_or_else(|| Err(gone()))
    }

    /// Runs until the process is told to end (SIGTERM or SIGINT), then shuts down with the builder's grace. A second signal
    /// does not wait.
    ///
    /// # Errors
    /// The operating system's, if signals cannot be heard; [`WorkerDied`] as the source of another, if the worker has ended by
    /// itself.
    pub async fn run_until_signal(&self) -> std::io::Result<Stopped> {
        let mut signals = crate::signals::Signals::new()?;
        tokio::select! {
            stopped = self.join() => return stopped.map_err(std::io::Error::other),
            () = signals.next() => {}
        }
        log!(info, grace = ?self.grace, "told to stop; a second signal stops at once");
        let stopped = tokio::select! {
            stopped = self.shutdown(self.grace) => stopped,
            () = signals.next() => self.shutdown(Duration::ZERO).await,
        };
        stopped.map_err(std::io::Error::other)
    }

    /// Looks for jobs now. Any number of calls while the worker is busy is one look.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// The worker in numbers, since it was started.
    pub fn stats(&self) -> WorkerStats {
        self.reporter.stats()
    }

    /// What happens from now on. A receiver that is too slow misses some, and is told how many.
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

fn no_runtime() -> Invalid {
    Invalid::new("runtime", Problem::Malformed { expected: "a tokio runtime in which start() is called" })
}

fn no_thread(error: std::io::Error) -> Invalid {
    log!(error, %error, "no thread for the heartbeats");
    Invalid::new("concurrency", Problem::Malformed { expected: "a system with a thread to spare" })
}
