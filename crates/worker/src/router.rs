//! Which handler does which kind of jobs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Backoff, BoxError, JobKind, Kind, Settled, Verdict};
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::context::{Context, Execution};
use crate::handler::{Handler, IntoVerdict, TxHandler};

/// A handler as layers see it: from an [`Execution`] to an [`Ending`].
pub type HandlerService = BoxCloneSyncService<Execution, Ending, BoxError>;

/// How an execution ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// The worker is to settle the job so.
    Verdict(Verdict),
    /// The handler has settled the job itself.
    Settled(Settled),
}

/// Why a job did not get as far as its handler.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unhandled {
    #[error("no handler for jobs of kind {0}")]
    UnknownKind(Kind),
    #[error("the payload is not what the handler of {kind} takes")]
    Undecodable {
        kind: Kind,
        #[source]
        source: serde_json::Error,
    },
}

/// What is done with one kind of jobs.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) service: HandlerService,
    /// Whether the handler settles its jobs itself.
    pub(crate) transactional: bool,
}

/// What was said about one kind, whether it has a handler or not.
#[derive(Clone, Copy, Default)]
pub(crate) struct KindOptions {
    pub(crate) timeout: Option<Duration>,
    pub(crate) backoff: Option<Backoff>,
}

/// Every route.
#[derive(Default)]
pub(crate) struct Router {
    pub(crate) routes: HashMap<Kind, Route>,
    pub(crate) fallback: Option<Route>,
    pub(crate) options: HashMap<Kind, KindOptions>,
}

impl Router {
    /// The route for jobs of this kind: its own, or the fallback.
    pub(crate) fn route(&self, kind: &Kind) -> Option<&Route> {
        self.routes.get(kind).or(self.fallback.as_ref())
    }

    /// Whether the handler of this kind settles its jobs itself.
    pub(crate) fn is_transactional(&self, kind: &Kind) -> bool {
        self.route(kind).is_some_and(|route| route.transactional)
    }

    pub(crate) fn options(&self, kind: &Kind) -> KindOptions {
        self.options.get(kind).copied().unwrap_or_default()
    }

    /// Wraps every handler there is so far.
    pub(crate) fn layer<L>(&mut self, layer: &L)
    where
        L: Layer<HandlerService>,
        L::Service: Service<Execution, Response = Ending, Future: Send> + Clone + Send + Sync + 'static,
        <L::Service as Service<Execution>>::Error: Into<BoxError>,
    {
        for route in self.routes.values_mut().chain(&mut self.fallback) {
            let layered = layer.layer(route.service.clone()).map_err(Into::into);
            route.service = BoxCloneSyncService::new(layered);
        }
    }
}

/// The route of a handler whose verdict the worker settles.
pub(crate) fn plain<K: JobKind, S: Send + Sync + 'static>(
    handler: impl Handler<K, S>,
    state: Arc<S>,
) -> Route {
    let service = service_fn(move |execution: Execution| {
        let (handler, state) = (handler.clone(), Arc::clone(&state));
        async move {
            let payload: K = payload(&execution)?;
            Ok(Ending::Verdict(handler.call(payload, Context::new(execution, state)).await))
        }
    });
    Route { service: BoxCloneSyncService::new(service), transactional: false }
}

/// The route of a handler that settles its jobs itself.
pub(crate) fn transactional<K: JobKind, S: Send + Sync + 'static>(
    handler: impl TxHandler<K, S>,
    state: Arc<S>,
) -> Route {
    let service = service_fn(move |execution: Execution| {
        let (handler, state) = (handler.clone(), Arc::clone(&state));
        async move {
            let payload: K = payload(&execution)?;
            let settled = handler.call(payload, Context::new(execution, state)).await;
            Ok(settled.map_or_else(Ending::Verdict, Ending::Settled))
        }
    });
    Route { service: BoxCloneSyncService::new(service), transactional: true }
}

/// The route of jobs that have no other.
pub(crate) fn fallback<S, F, Fut>(handler: F, state: Arc<S>) -> Route
where
    S: Send + Sync + 'static,
    F: Fn(Context<S>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: IntoVerdict> + Send + 'static,
{
    let service = service_fn(move |execution: Execution| {
        let work = handler(Context::new(execution, Arc::clone(&state)));
        async move { Ok(Ending::Verdict(work.await.into_verdict())) }
    });
    Route { service: BoxCloneSyncService::new(service), transactional: false }
}

fn payload<K: JobKind>(execution: &Execution) -> Result<K, BoxError> {
    let job = execution.job();
    job.payload.to().map_err(|source| Unhandled::Undecodable { kind: job.kind.clone(), source }.into())
}
