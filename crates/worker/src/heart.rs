//! Heartbeats: on a thread, a runtime and a connection of their own, so that neither handlers that hog the processor nor a
//! pool that is used up can keep them from being sent.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use leasehold_core::{HeartbeatOutcome, LeaseFor, Receipt, ReceiptStatus, Store, limits};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::call::{answer, patience, sleep_until};
use crate::leases::Leases;
use crate::outage::{Outage, with_causes};
use crate::report::Reporter;

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
    pub(crate) fn start(self, on: HeartbeatOn) -> std::io::Result<()> {
        match on {
            HeartbeatOn::Task => {
                tokio::spawn(self.beat(None));
            }
            HeartbeatOn::OwnThread => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let thread = std::thread::Builder::new().name("leasehold-heart".to_owned());
                thread.spawn(move || runtime.block_on(self.with_own_connection()))?;
            }
        }
        Ok(())
    }

    async fn with_own_connection(self) {
        let dedicated = tokio::select! {
            biased;
            dedicated = self.connect() => dedicated,
            // Until then on the connections that everybody uses.
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
        loop {
            self.pass();
            let due = self.leases.due(Instant::now());
            for receipts in due.beats.chunks(limits::BATCH as usize) {
                self.extend(&*store, receipts, &mut outage).await;
            }
            if self.stop.is_cancelled() {
                return;
            }
            if !due.beats.is_empty() {
                continue;
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.leases.sooner.notified() => {}
                () = sleep_until(due.next) => {}
            }
        }
    }

    /// Whatever happens to the heartbeats: a handler whose time has run out is told. Gives the time of the next one.
    fn pass(&self) -> Option<Instant> {
        let passed = self.leases.pass(Instant::now());
        for receipt in passed.lost {
            self.reporter.lease_lost(receipt, "it could not be extended in time");
        }
        passed.next
    }

    async fn extend(&self, store: &dyn Store, receipts: &[Receipt], outage: &mut Outage) {
        let sent = Instant::now();
        let patience = self.leases.patience(receipts, sent);
        let call = answer("heartbeat", patience, async || store.heartbeat(receipts, self.lease).await);
        match self.meanwhile_passing(call).await {
            Ok(outcomes) => {
                outage.over();
                self.reporter.heartbeat(receipts.len(), sent.elapsed());
                let outcomes = outcomes.into_iter().chain(std::iter::repeat(HeartbeatOutcome::Pending));
                let mut lost = Vec::new();
                for (receipt, outcome) in receipts.iter().zip(outcomes) {
                    match outcome {
                        HeartbeatOutcome::Extended { left, .. } => self.leases.extended(receipt, sent, left),
                        HeartbeatOutcome::Lost => lost.push(*receipt),
                        // A transaction is deciding about the job: it may be the handler's own.
                        _ => self.leases.try_again(receipt, Instant::now()),
                    }
                }
                self.lose(store, &lost).await;
            }
            Err(error) => {
                outage.failed(&with_causes(&error));
                let now = Instant::now();
                receipts.iter().for_each(|receipt| self.leases.try_again(receipt, now));
            }
        }
    }

    /// Waits for an answer, and does not let it keep any handler from being told that its time has run out.
    async fn meanwhile_passing<T>(&self, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        loop {
            let next = self.pass();
            tokio::select! {
                biased;
                answer = &mut call => return answer,
                () = self.leases.sooner.notified() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    /// Leases that the store does not extend: lost, unless the handler itself has settled the job and is not back yet.
    async fn lose(&self, store: &dyn Store, lost: &[Receipt]) {
        let running: Vec<Receipt> =
            lost.iter().copied().filter(|receipt| self.leases.is_running(receipt)).collect();
        let statuses = match running.is_empty() {
            true => Vec::new(),
            false => {
                let patience = self.leases.patience(&running, Instant::now());
                let call = answer("receipts", patience, async || store.receipts(&running).await);
                // Who cannot be asked about is lost.
                self.meanwhile_passing(call).await.unwrap_or_default()
            }
        };
        let own = |receipt: &Receipt| {
            let asked = running.iter().zip(&statuses).find(|(asked, _)| *asked == receipt);
            matches!(asked, Some((_, ReceiptStatus::Finished { .. } | ReceiptStatus::Requeued)))
        };
        for receipt in lost {
            if own(receipt) {
                self.leases.let_go([receipt]);
            } else if self.leases.lose(receipt) {
                self.reporter.lease_lost(*receipt, "the store says so");
            }
        }
    }
}
