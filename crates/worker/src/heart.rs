//! Heartbeats: on a thread, a runtime and a connection of their own, so that neither handlers that hog the processor nor a
//! pool that is used up can keep them from being sent.

use std::convert::Infallible;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use leasehold_core::{HeartbeatOutcome, LeaseFor, Receipt, ReceiptStatus, Store, StoreError};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::call::{answer, patience, sleep_until};
use crate::dispatch::Stop;
use crate::leases::Leases;
use crate::outage::{Outage, with_causes};
use crate::panics::log;
use crate::report::Reporter;
use crate::watch::Watch;

/// The name of this part of the worker.
const PART: &str = "heartbeats";
/// Into how many parts a heartbeat is split that fails.
const PARTS: usize = 16;

/// Where heartbeats are sent from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeartbeatOn {
    /// A thread with a runtime of its own, and a connection of its own if the store has one to give
    /// ([`Store::dedicated`]).
    #[default]
    OwnThread,
    /// A task of the worker's runtime: for tests with paused time. There, a handler that blocks the runtime loses its lease.
    Task,
}

/// What keeps the leases alive.
#[derive(Clone)]
pub(crate) struct Heart {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) lease: LeaseFor,
    pub(crate) reporter: Reporter,
    pub(crate) stop: CancellationToken,
    /// Dropped when the heart has let go of the store: the last of the fields.
    pub(crate) _busy: mpsc::Sender<Infallible>,
}

impl Heart {
    /// Starts to beat, until the token fires.
    ///
    /// # Errors
    /// The operating system's, if it has no thread to give.
    pub(crate) fn start(self, on: HeartbeatOn, watch: Watch, stop: Stop) -> std::io::Result<()> {
        match on {
            HeartbeatOn::Task => {
                tokio::spawn(async move { watch.over(PART, &stop, self.beat(None)).await });
            }
            HeartbeatOn::OwnThread => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let thread = std::thread::Builder::new().name("leasehold-heart".to_owned());
                thread
                    .spawn(move || runtime.block_on(watch.over(PART, &stop, self.with_own_connection())))?;
            }
        }
        Ok(())
    }

    async fn with_own_connection(self) {
        let dedicated = tokio::select! {
            biased;
            dedicated = self.connect() => dedicated,
            // Until then on the connections that are there.
            () = self.clone().beat(None) => return,
        };
        self.beat(dedicated).await;
    }

    /// Asks for a connection of its own until there is an answer.
    async fn connect(&self) -> Option<Arc<dyn Store>> {
        let mut outage = Outage::new("connect for heartbeats");
        loop {
            match answer("dedicated", patience(self.lease), async || self.store.dedicated().await).await {
                Ok(dedicated) => {
                    outage.over();
                    if let Some(store) = &dedicated {
                        // It is open before the first heartbeat needs it. If it is not, that heartbeat will say so.
                        let _ = answer("now", patience(self.lease), async || store.now().await).await;
                    }
                    return dedicated;
                }
                Err(error) => tokio::time::sleep(outage.failed(&with_causes(&error))).await,
            }
        }
    }

    async fn beat(self, dedicated: Option<Arc<dyn Store>>) {
        let store = dedicated.unwrap_or_else(|| Arc::clone(&self.store));
        let mut outage = Outage::new("heartbeat");
        let mut under_way = FuturesUnordered::new();
        // What another connection was asked for is asked for again.
        self.leases.none_is_beating();
        loop {
            self.pass();
            let due = self.leases.due(Instant::now());
            under_way.extend(due.beats.into_iter().map(|receipts| self.extend(&*store, receipts)));
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                Some(answered) = under_way.next() => match answered {
                    Ok(()) => outage.over(),
                    Err(error) => drop(outage.failed(&with_causes(&error))),
                },
                () = self.leases.sooner.notified() => {}
                () = sleep_until(due.next) => {}
            }
        }
    }

    /// Whatever happens to the heartbeats: a handler whose time has run out is told.
    fn pass(&self) {
        for receipt in self.leases.pass(Instant::now()) {
            self.reporter.lease_lost(receipt, "it could not be extended in time");
        }
    }

    /// Extends these leases in one call. If that fails for a reason that may be in one of them, in several.
    fn extend<'a>(
        &'a self,
        store: &'a dyn Store,
        receipts: Vec<Receipt>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let extending = async move {
            let sent = Instant::now();
            let patience = self.leases.patience(&receipts, sent);
            let call = async || store.heartbeat(&receipts, self.lease).await;
            match answer("heartbeat", patience, call).await {
                Ok(outcomes) => {
                    self.reporter.heartbeat(receipts.len(), sent.elapsed());
                    self.learn(store, &receipts, outcomes, sent).await;
                    Ok(())
                }
                Err(error) if receipts.len() > 1 && !error.is_retryable() => {
                    self.extend_parts(store, &receipts, error).await
                }
                Err(error) => {
                    let now = Instant::now();
                    receipts.iter().for_each(|receipt| self.leases.try_again(receipt, now));
                    Err(error)
                }
            }
        };
        extending.boxed()
    }

    /// Extends these leases in parts at once. Where some parts succeed and others do not, the leases of the others are
    /// extended one by one from now on.
    async fn extend_parts(
        &self,
        store: &dyn Store,
        receipts: &[Receipt],
        error: StoreError,
    ) -> Result<(), StoreError> {
        let parts: Vec<&[Receipt]> = receipts.chunks(receipts.len().div_ceil(PARTS)).collect();
        let extending = parts.iter().map(|part| self.extend(store, part.to_vec()));
        let answers = futures_util::future::join_all(extending).await;
        if answers.iter().all(Result::is_err) {
            return Err(error);
        }
        for (part, _) in parts.iter().zip(&answers).filter(|(_, answer)| answer.is_err()) {
            for receipt in *part {
                self.leases.extend_alone(receipt);
                log!(warn, %receipt, error = with_causes(&error), "a lease cannot be extended");
            }
        }
        Ok(())
    }

    async fn learn(
        &self,
        store: &dyn Store,
        receipts: &[Receipt],
        outcomes: Vec<HeartbeatOutcome>,
        sent: Instant,
    ) {
        let outcomes = outcomes.into_iter().map(Some).chain(std::iter::repeat(None));
        let mut lost = Vec::new();
        for (receipt, outcome) in receipts.iter().zip(outcomes) {
            match outcome {
                Some(HeartbeatOutcome::Extended { left, .. }) => self.leases.extended(receipt, sent, left),
                Some(HeartbeatOutcome::Lost) => lost.push(*receipt),
                Some(_) => self.leases.locked(receipt, sent, Instant::now()),
                None => self.leases.try_again(receipt, Instant::now()),
            }
        }
        self.lose(store, &lost).await;
    }

    /// Leases that the store does not extend: lost, unless the handler itself has settled the job and is not back yet.
    async fn lose(&self, store: &dyn Store, lost: &[Receipt]) {
        let running: Vec<Receipt> =
            lost.iter().copied().filter(|receipt| self.leases.is_running(receipt)).collect();
        let statuses = match running.is_empty() {
            true => Vec::new(),
            false => {
                let patience = self.leases.patience(&running, Instant::now());
                let call = async || store.receipts(&running).await;
                // If the store does not say, they are lost.
                answer("receipts", patience, call).await.unwrap_or_default()
            }
        };
        let status = |receipt: &Receipt| {
            running.iter().zip(&statuses).find(|(asked, _)| *asked == receipt).map(|(_, status)| *status)
        };
        for receipt in lost {
            if self.is_own_doing(store, receipt, status(receipt)).await {
                self.leases.let_go([receipt]);
            } else if self.leases.lose(receipt) {
                self.reporter.lease_lost(*receipt, "the store says so");
            }
        }
    }

    /// Whether the handler has settled the job itself.
    async fn is_own_doing(
        &self,
        store: &dyn Store,
        receipt: &Receipt,
        status: Option<ReceiptStatus>,
    ) -> bool {
        match status {
            Some(ReceiptStatus::Finished { .. } | ReceiptStatus::Requeued) => true,
            // In a queue that keeps no history.
            Some(ReceiptStatus::Gone) if self.leases.is_transactional(receipt) => {
                let patience = self.leases.patience(&[*receipt], Instant::now());
                let record = answer("get", patience, async || store.get(receipt.job).await).await;
                matches!(record, Ok(None))
            }
            _ => false,
        }
    }
}
