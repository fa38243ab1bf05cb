//! Putting a worker together.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Backoff, BoxError, Invalid, Job, JobKind, Kind, LeaseFor, Problem, QueueName, QueuePattern, Queues,
    Store, WorkerId, limits,
};
use tower::{Layer, Service};

use crate::context::{Context, Execution};
use crate::dispatch::Settings;
use crate::execute::MakeSpan;
use crate::handle::{Parts, WorkerHandle};
use crate::handler::{Handler, IntoVerdict, TxHandler};
use crate::heart::HeartbeatOn;
use crate::router::{self, Ending, HandlerService, Route, Router};
use crate::source::{Outages, Source};
use crate::span::job_span;

/// The most handlers that one worker runs at once.
const MAX_CONCURRENCY: usize = 100_000;

/// The settings and the handlers of a worker. What is wrong with them is said by [`start`](Self::start).
///
/// `S` is the state that handlers share; say [`state`](Self::state) before the first handler.
#[must_use = "call start()"]
pub struct WorkerBuilder<S = ()> {
    store: Arc<dyn Store>,
    state: Arc<S>,
    names: Vec<QueueName>,
    apart: Vec<(QueuePattern, QueueOptions)>,
    settings: Result<Settings, Invalid>,
    timeout: Option<Duration>,
    router: Router,
    make_span: MakeSpan,
    heartbeat: HeartbeatOn,
    sample_every: Option<Duration>,
}

/// What may be said about a queue or a pattern of queues.
///
/// ```
/// use leasehold_worker::QueueOptions;
///
/// let three_of_four_turns = QueueOptions::new().weight(3);
/// let two_at_a_time = QueueOptions::new().concurrency(2);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    weight: u32,
    concurrency: Option<usize>,
}

impl QueueOptions {
    /// A weight of 1, and no limit but the worker's own.
    pub fn new() -> Self {
        Self { weight: 1, concurrency: None }
    }

    /// How many turns it gets, in proportion to the others. 1 at least.
    #[must_use]
    pub fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// How many of its jobs *this worker* runs at once. For a limit over all workers, see
    /// [`QueuePolicy`](leasehold_core::QueuePolicy).
    #[must_use]
    pub fn concurrency(self, jobs: usize) -> Self {
        Self { concurrency: Some(jobs), ..self }
    }
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl WorkerBuilder {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            state: Arc::new(()),
            names: Vec::new(),
            apart: Vec::new(),
            settings: settings(),
            timeout: None,
            router: Router::default(),
            make_span: Arc::new(job_span),
            heartbeat: HeartbeatOn::default(),
            sample_every: None,
        }
    }
}

fn settings() -> Result<Settings, Invalid> {
    Ok(Settings {
        worker: WorkerId::new(format!("worker-{}-{:08x}", std::process::id(), fastrand::u32(..)))?,
        concurrency: 10,
        lease: LeaseFor::new(Duration::from_secs(60))?,
        poll: Duration::from_secs(1),
        claim_batch: 200,
        settle_batch: 200,
        settle_within: Duration::from_millis(2),
        grace: Duration::from_secs(30),
    })
}

impl<S: Send + Sync + 'static> WorkerBuilder<S> {
    /// What the handlers share: they find it in [`Context::state`]. Say it before the first handler; those before have
    /// the former state.
    pub fn state<T>(self, state: T) -> WorkerBuilder<T> {
        WorkerBuilder {
            store: self.store,
            state: Arc::new(state),
            names: self.names,
            apart: self.apart,
            settings: self.settings,
            timeout: self.timeout,
            router: self.router,
            make_span: self.make_span,
            heartbeat: self.heartbeat,
            sample_every: self.sample_every,
        }
    }

    /// A queue to work on, or a pattern of queues such as `game:*`, each named once. Queues that are named without options are one source:
    /// one claim serves them all, in one order of priority. Each pattern is a source of its own, whose queues get fair
    /// turns.
    pub fn queue<Q>(self, queue: Q) -> Self
    where
        Q: TryInto<QueuePattern>,
        Invalid: From<Q::Error>,
    {
        match queue.try_into() {
            Ok(QueuePattern::Exact(name)) => {
                Self { names: self.names.into_iter().chain([name]).collect(), ..self }
            }
            Ok(pattern) => self.apart(pattern, QueueOptions::new()),
            Err(error) => self.refused(error.into()),
        }
    }

    /// Several queues or patterns: the same as [`queue`](Self::queue) for each.
    pub fn queues<Q>(self, queues: impl IntoIterator<Item = Q>) -> Self
    where
        Q: TryInto<QueuePattern>,
        Invalid: From<Q::Error>,
    {
        queues.into_iter().fold(self, Self::queue)
    }

    /// A queue or pattern with options: a source of its own, with its own claims.
    pub fn queue_with<Q>(self, queue: Q, options: QueueOptions) -> Self
    where
        Q: TryInto<QueuePattern>,
        Invalid: From<Q::Error>,
    {
        match queue.try_into() {
            Ok(pattern) => self.apart(pattern, options),
            Err(error) => self.refused(error.into()),
        }
    }

    fn apart(mut self, pattern: QueuePattern, options: QueueOptions) -> Self {
        if options.weight == 0 || options.concurrency == Some(0) {
            let field = if options.weight == 0 { "weight" } else { "queue_concurrency" };
            let problem =
                Problem::OutOfRange { value: "0".into(), min: "1".into(), max: u32::MAX.to_string() };
            return self.refused(Invalid::new(field, problem));
        }
        self.apart.push((pattern, options));
        self
    }

    /// The name under which jobs are leased: information, never authority. If nothing is said, one is made up.
    pub fn worker_id<W>(self, worker: W) -> Self
    where
        W: TryInto<WorkerId>,
        Invalid: From<W::Error>,
    {
        match worker.try_into() {
            Ok(worker) => self.with(|settings| settings.worker = worker),
            Err(error) => self.refused(error.into()),
        }
    }

    /// How many handlers run at once: 10 if nothing is said.
    pub fn concurrency(self, jobs: usize) -> Self {
        match in_range("concurrency", jobs, MAX_CONCURRENCY) {
            Ok(jobs) => self.with(|settings| settings.concurrency = jobs),
            Err(invalid) => self.refused(invalid),
        }
    }

    /// For how long a job is leased at a time: a minute if nothing is said. Heartbeats extend it while its handler runs, so
    /// it says how soon the jobs of a worker that died are tried again, not how long a handler may take.
    pub fn lease(self, length: Duration) -> Self {
        match LeaseFor::new(length) {
            Ok(lease) => self.with(|settings| settings.lease = lease),
            Err(invalid) => self.refused(invalid),
        }
    }

    /// How often an idle worker asks by itself whether there is anything: every second if nothing is said. Hints of the
    /// store make it look at once.
    pub fn poll_interval(self, interval: Duration) -> Self {
        if interval < Duration::from_millis(1) {
            let (value, min, max) = (format!("{interval:?}"), "1ms".to_owned(), "any".to_owned());
            return self.refused(Invalid::new("poll_interval", Problem::OutOfRange { value, min, max }));
        }
        self.with(|settings| settings.poll = interval)
    }

    /// How many jobs one claim asks for at most: 200 if nothing is said.
    pub fn claim_batch(self, jobs: usize) -> Self {
        match in_range("claim_batch", jobs, limits::BATCH as usize) {
            Ok(jobs) => self.with(|settings| settings.claim_batch = jobs),
            Err(invalid) => self.refused(invalid),
        }
    }

    /// Ended jobs are settled in one statement when there are so many, or when the first has waited so long: 200 and 2 ms
    /// if nothing is said.
    pub fn settle_batch(self, jobs: usize, within: Duration) -> Self {
        match in_range("settle_batch", jobs, limits::BATCH as usize) {
            Ok(jobs) => self.with(|settings| {
                settings.settle_batch = jobs;
                settings.settle_within = within;
            }),
            Err(invalid) => self.refused(invalid),
        }
    }

    /// How long a worker that is told to stop waits for its handlers, unless it is told otherwise then: 30 seconds if
    /// nothing is said.
    pub fn grace(self, grace: Duration) -> Self {
        self.with(|settings| settings.grace = grace)
    }

    /// How long a handler may take, of whatever kind. If nothing is said, as long as it likes: its lease is kept alive.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// How long the handler of this kind may take.
    pub fn timeout_of<K: JobKind>(self, timeout: Duration) -> Self {
        self.kind::<K>(|builder, kind| {
            builder.router.options.entry(kind).or_default().timeout = Some(timeout);
        })
    }

    /// When failed jobs of this kind are tried again, instead of what their queue's policy says.
    pub fn backoff_of<K: JobKind>(self, backoff: Backoff) -> Self {
        self.kind::<K>(|builder, kind| {
            builder.router.options.entry(kind).or_default().backoff = Some(backoff);
        })
    }

    /// The handler of jobs of kind `K`. What it returns is what the worker settles.
    pub fn handle<K: JobKind>(self, handler: impl Handler<K, S>) -> Self {
        let route = router::plain(handler, Arc::clone(&self.state));
        self.route::<K>(route)
    }

    /// The handler of jobs of kind `K` that settles them itself, in its own transaction, and returns the proof.
    ///
    /// After it the worker looks whether the transaction was committed. If not, the job is tried again at once; if the
    /// handler failed, or the answer to its commit was lost, the store is asked by receipt what became of the job.
    ///
    /// At REPEATABLE READ and SERIALIZABLE the first statement of the transaction must be
    /// [`lock_in`](leasehold_core::TxStore::lock_in). While the transaction has the job locked, a heartbeat is answered
    /// [`Pending`](leasehold_core::HeartbeatOutcome::Pending): the worker counts the handler as alive, and its token does not fire.
    pub fn handle_tx<K: JobKind>(self, handler: impl TxHandler<K, S>) -> Self {
        let route = router::transactional(handler, Arc::clone(&self.state));
        self.route::<K>(route)
    }

    fn route<K: JobKind>(self, route: Route) -> Self {
        let mut repeated = None;
        let builder = self.kind::<K>(|builder, kind| {
            if builder.router.routes.insert(kind.clone(), route).is_some() {
                repeated = Some(Problem::Repeated { what: format!("the kind {kind}") });
            }
        });
        match repeated {
            Some(problem) => builder.refused(Invalid::new("handle", problem)),
            None => builder,
        }
    }

    /// What is done with jobs of a kind that has no handler. If nothing is said, that is a failed attempt, since another
    /// version of the program may know the kind.
    pub fn fallback<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(Context<S>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output: IntoVerdict> + Send + 'static,
    {
        let route = router::fallback(handler, Arc::clone(&self.state));
        match self.router.fallback.replace(route) {
            Some(_) => {
                let problem = Problem::Repeated { what: "a fallback".to_owned() };
                self.refused(Invalid::new("fallback", problem))
            }
            None => self,
        }
    }

    /// Wraps the handlers that were named so far, the fallback too, in a tower layer.
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<HandlerService>,
        L::Service: Service<Execution, Response = Ending, Future: Send> + Clone + Send + Sync + 'static,
        <L::Service as Service<Execution>>::Error: Into<BoxError>,
    {
        self.router.layer(&layer);
        self
    }

    /// Makes the span in which a handler runs, instead of the usual one with `id`, `queue`, `kind`, `attempt` and
    /// `traceparent`: the place to attach it to a trace that came along in the headers.
    pub fn make_span(self, make: impl Fn(&Job) -> tracing::Span + Send + Sync + 'static) -> Self {
        Self { make_span: Arc::new(make), ..self }
    }

    /// Where heartbeats are sent from.
    pub fn heartbeat_on(self, heartbeat: HeartbeatOn) -> Self {
        Self { heartbeat, ..self }
    }

    /// Publishes the numbers of the queues as metrics, so often. If nothing is said, never: it is a question to the store.
    pub fn sample_queues(self, every: Duration) -> Self {
        Self { sample_every: Some(every), ..self }
    }

    /// Starts the worker on the runtime of the caller.
    ///
    /// # Errors
    /// [`Invalid`] names the first setting that was refused: `queue` for a queue or a pattern that is named twice, `handle`
    /// for a kind with two handlers, `queues` if there is none to work on, `handlers` if there is none and no fallback,
    /// `runtime` outside a tokio runtime, `concurrency` if the system has no thread for the heartbeats.
    pub fn start(self) -> Result<WorkerHandle, Invalid> {
        WorkerHandle::start(self.parts()?)
    }

    /// A worker that takes one step at a time, for tests: see [`testing`](crate::testing).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    #[cfg(feature = "testing")]
    pub fn test(self) -> Result<crate::testing::TestWorker, Invalid> {
        crate::testing::TestWorker::new(self.parts()?)
    }

    pub(crate) fn parts(self) -> Result<Parts, Invalid> {
        let settings = self.settings?;
        named_once(&self.names, &self.apart)?;
        if self.router.routes.is_empty() && self.router.fallback.is_none() {
            return Err(Invalid::new("handlers", Problem::Empty));
        }
        let mut sources = Vec::new();
        let outages = Outages::new();
        if !self.names.is_empty() {
            sources.push(Source::new(Queues::named(self.names)?, 1, None, outages.clone()));
        }
        let apart = self.apart.into_iter();
        sources.extend(apart.map(|(pattern, options)| {
            Source::new(pattern.into(), options.weight, options.concurrency, outages.clone())
        }));
        Ok(Parts {
            store: self.store,
            settings,
            sources,
            router: self.router,
            timeout: self.timeout,
            make_span: self.make_span,
            heartbeat: self.heartbeat,
            sample_every: self.sample_every,
        })
    }

    fn kind<K: JobKind>(mut self, say: impl FnOnce(&mut Self, Kind)) -> Self {
        match Kind::new(K::KIND) {
            Ok(kind) => {
                say(&mut self, kind);
                self
            }
            Err(invalid) => self.refused(invalid),
        }
    }

    fn with(mut self, say: impl FnOnce(&mut Settings)) -> Self {
        if let Ok(settings) = &mut self.settings {
            say(settings);
        }
        self
    }

    fn refused(self, invalid: Invalid) -> Self {
        Self { settings: self.settings.and(Err(invalid)), ..self }
    }
}

/// There is something to work on, and each queue or pattern is named once: two sources for one queue would each keep to its
/// limits alone.
fn named_once(names: &[QueueName], apart: &[(QueuePattern, QueueOptions)]) -> Result<(), Invalid> {
    let names = names.iter().map(QueuePattern::from);
    let mut patterns: Vec<QueuePattern> =
        names.chain(apart.iter().map(|(pattern, _)| pattern.clone())).collect();
    if patterns.is_empty() {
        return Err(Invalid::new("queues", Problem::Empty));
    }
    patterns.sort_unstable();
    match patterns.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(Invalid::new("queue", Problem::Repeated { what: two[0].to_string() })),
        None => Ok(()),
    }
}

fn in_range(field: &'static str, value: usize, max: usize) -> Result<usize, Invalid> {
    if (1..=max).contains(&value) {
        return Ok(value);
    }
    let (value, min, max) = (value.to_string(), 1.to_string(), max.to_string());
    Err(Invalid::new(field, Problem::OutOfRange { value, min, max }))
}
