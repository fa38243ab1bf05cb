//! Heartbeats: on a thread, a runtime and a connection of their own, so that neither handlers that hog the processor nor a
//! pool that is used up can keep them from being sent.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{HeartbeatOutcome, LeaseFor, Receipt, Store};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

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
        let mut outage = Outage::new("heartbeat");
        let dedicated = loop {
            match self.store.dedicated().await {
                Ok(dedicated) => break dedicated,
                Err(error) => {
                    let pause = outage.failed(&with_causes(&error));
                    tokio::select! {
                        () = self.stop.cancelled() => return,
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        };
        outage.over();
        if let Some(store) = &dedicated {
            // The connection is open before the first heartbeat needs it. If not, that will say so.
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = tokio::time::timeout(self.patience(), store.now()) => {}
            }
        }
        self.beat(dedicated).await;
    }

    async fn beat(self, dedicated: Option<Arc<dyn Store>>) {
        let store = dedicated.unwrap_or_else(|| Arc::clone(&self.store));
        let mut outage = Outage::new("heartbeat");
        loop {
            let due = self.leases.due(Instant::now());
            for receipt in &due.lost {
                self.reporter.lease_lost(*receipt, "it could not be extended in time");
            }
            if !due.beats.is_empty() {
                self.extend(&*store, &due.beats, &mut outage).await;
                continue;
            }
            let next = async {
                match due.next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.leases.sooner.notified() => {}
                () = next => {}
            }
        }
    }

    async fn extend(&self, store: &dyn Store, receipts: &[Receipt], outage: &mut Outage) {
        for receipts in receipts.chunks(leasehold_core::limits::BATCH as usize) {
            let sent = Instant::now();
            let answer = tokio::time::timeout(self.patience(), store.heartbeat(receipts, self.lease)).await;
            let now = Instant::now();
            let again = || receipts.iter().for_each(|receipt| self.leases.try_again(receipt, now));
            match answer {
                Ok(Ok(outcomes)) => {
                    outage.over();
                    self.reporter.heartbeat(receipts.len(), now - sent);
                    for (receipt, outcome) in receipts.iter().zip(outcomes) {
                        self.learn(receipt, sent, outcome);
                    }
                }
                Ok(Err(error)) => {
                    outage.failed(&with_causes(&error));
                    again();
                }
                Err(_) => {
                    outage.failed(&"no answer in time");
                    again();
                }
            }
        }
    }

    fn learn(&self, receipt: &Receipt, sent: Instant, outcome: HeartbeatOutcome) {
        match outcome {
            HeartbeatOutcome::Extended { left, .. } => self.leases.extended(receipt, sent, left),
            HeartbeatOutcome::Lost => {
                if self.leases.lose(receipt) {
                    self.reporter.lease_lost(*receipt, "the store says so");
                }
            }
            // A transaction is deciding about the job: it may be the handler's own.
            _ => self.leases.try_again(receipt, Instant::now()),
        }
    }

    /// For how long an answer is awaited.
    fn patience(&self) -> Duration {
        (self.lease.get() / 3).max(Duration::from_millis(10))
    }
}
