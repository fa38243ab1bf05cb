//! How an operation of the store's is run: to its end, on a connection of its own, and again if the server has given up on it.
//!
//! A statement that nobody waits for any more leaves its connection in the middle of an answer, so an operation is a task. When its
//! future is dropped, the task has the server end the statement that is running, on a connection that the store has opened: no
//! statement goes on waiting for a lock. On a connection of a user's pool the operation runs to its end.
//!
//! Nobody settles what was leased for a caller that is gone. Such a claim is not committed; if it was already, its jobs are given back.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use diesel::sql_types::BigInt;
use diesel_async::AsyncMysqlConnection;
use diesel_async::pooled_connection::deadpool::Object;
use futures_util::future::BoxFuture;
use leasehold_core::{Result, StoreError};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::Shared;
use crate::cancel;
use crate::connect::Connector;
use crate::error::Failure;
use crate::packet::Packet;
use crate::session::Session;
use crate::statement::Statement;

/// How often an operation that the server has given up on is done again.
const TRIES: u32 = 20;
/// How often an operation whose connection was dead before anything was done, or whose server takes no writes, is tried on another.
const CONNECTIONS: u32 = 3;
/// How long to wait before that: doubled up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// How long an operation whose caller is gone may go on until its statement is ended once more: doubled up to the second.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// What an operation does. A plain function, so that it can be done again.
pub(crate) type Work<I, T> =
    for<'s, 'c> fn(&'s mut Session<'c>, &'s Shared, &'s I) -> BoxFuture<'s, Result<T, Failure>>;

/// Undoes what was done for a caller that is gone.
pub(crate) type Undo<T> = fn(Arc<Shared>, T) -> BoxFuture<'static, ()>;

impl Shared {
    /// How much a connection may send at once. Of one that the store has not opened the server is asked, once for all of them.
    pub(crate) async fn packet(&self, conn: &mut AsyncMysqlConnection) -> Result<Packet, Failure> {
        if let Some(packet) = cancel::packet(conn).or_else(|| self.packet.get().copied()) {
            return Ok(packet);
        }
        let text = "SELECT CAST(@@max_allowed_packet AS SIGNED)";
        let found: Vec<i64> = Statement::<BigInt>::new(text, Vec::new()).rows(conn).await?;
        let bytes = found.first().and_then(|bytes| usize::try_from(*bytes).ok()).unwrap_or_default();
        Ok(*self.packet.get_or_init(|| Packet::new(bytes)))
    }

    /// Runs `work`, to its end or until the caller is gone.
    pub(crate) async fn run<I, T>(
        self: &Arc<Self>,
        operation: &'static str,
        input: I,
        work: Work<I, T>,
    ) -> Result<T>
    where
        I: Send + Sync + 'static,
        T: Send + 'static,
    {
        self.run_for(operation, input, work, None).await
    }

    /// Runs `work`, which is of use to this caller only: if the caller is gone, it is not committed. If it was already, `undo` undoes it.
    pub(crate) async fn run_or_undo<I, T>(
        self: &Arc<Self>,
        operation: &'static str,
        input: I,
        work: Work<I, T>,
        undo: Undo<T>,
    ) -> Result<T>
    where
        I: Send + Sync + 'static,
        T: Send + 'static,
    {
        self.run_for(operation, input, work, Some(undo)).await
    }

    async fn run_for<I, T>(
        self: &Arc<Self>,
        operation: &'static str,
        input: I,
        work: Work<I, T>,
        undo: Option<Undo<T>>,
    ) -> Result<T>
    where
        I: Send + Sync + 'static,
        T: Send + 'static,
    {
        let shared = Arc::clone(self);
        let (waits, caller) = Caller::pair();
        let is_gone = undo.map(|_| Arc::clone(&waits.is_gone));
        let task = tokio::spawn(async move {
            let answer = shared.run_here(operation, &input, work, caller, is_gone.as_deref()).await?;
            Ok(Delivery { answer: Some(answer), undo, shared, runtime: Handle::current() })
        });
        // It panicked, or the runtime is going down.
        let answer = task.await.unwrap_or_else(|error| Err(StoreError::unknown(operation, error)));
        drop(waits);
        answer?.take().ok_or_else(|| StoreError::unknown(operation, "the answer is gone"))
    }

    async fn run_here<I, T>(
        &self,
        operation: &'static str,
        input: &I,
        work: Work<I, T>,
        mut caller: Caller,
        unless: Option<&AtomicBool>,
    ) -> Result<T> {
        let mut pause = PAUSE.0;
        let (mut tries, mut connections) = (0, 0);
        loop {
            let lent = tokio::select! {
                biased;
                () = caller.is_leaving() => return Err(StoreError::unavailable(operation, "nobody waits for it")),
                lent = self.connections.get() => lent,
            };
            let mut conn = lent.map_err(|error| StoreError::unavailable(operation, error))?;
            let number = cancel::number(&mut conn);
            let packet = match self.packet(&mut conn).await {
                Ok(packet) => packet,
                Err(failure) => {
                    give_back(conn, false);
                    return Err(failure.told(operation));
                }
            };
            let mut session = Session::own(&mut conn, &self.sql, packet);
            session.is_lent = self.connector.is_none();
            session.unless = unless;
            let killed = self.connector.as_ref().zip(number);
            let done = caller.unless_gone(work(&mut session, self, input), operation, killed);
            let failure = match done.await {
                Ok(answer) => {
                    self.hub.wake(session.wake.iter().map(String::as_str));
                    let is_clean = session.free_names().await.is_ok() && !caller.is_gone;
                    give_back(conn, is_clean);
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            let in_doubt = session.is_in_doubt();
            let is_clean = !failure.is_lost()
                && !failure.is_read_only()
                && !failure.is_full()
                && session.roll_back().await.is_ok()
                && session.free_names().await.is_ok()
                && !caller.is_gone;
            if failure.is_read_only() {
                self.connections.retire(Object::metrics(&conn));
            }
            give_back(conn, is_clean);
            if caller.is_gone {
                return Err(failure.told_in_doubt(operation));
            }
            if failure.is_again() && tries < TRIES {
                tries += 1;
                if failure.is_deadlock() {
                    self.deadlocks.fetch_add(1, Ordering::Relaxed);
                }
                tracing::debug!(operation, tries, "the server has given up on it: again");
                tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                pause = (pause * 2).min(PAUSE.1);
            } else if connections < CONNECTIONS && (failure.is_read_only() || failure.is_lost() && !in_doubt)
            {
                connections += 1;
            } else if in_doubt {
                return Err(failure.told_in_doubt(operation));
            } else {
                return Err(failure.told(operation));
            }
        }
    }
}

/// An answer on its way to the caller. If it does not arrive, it is undone.
struct Delivery<T> {
    answer: Option<T>,
    undo: Option<Undo<T>>,
    shared: Arc<Shared>,
    /// It may be dropped outside of any.
    runtime: Handle,
}

impl<T> Delivery<T> {
    fn take(mut self) -> Option<T> {
        self.answer.take()
    }
}

impl<T> Drop for Delivery<T> {
    fn drop(&mut self) {
        if let (Some(answer), Some(undo)) = (self.answer.take(), self.undo) {
            self.runtime.spawn(undo(Arc::clone(&self.shared), answer));
        }
    }
}

/// Held by the future of an operation. With it goes the caller.
struct Waits {
    is_gone: Arc<AtomicBool>,
    _gone: oneshot::Sender<Infallible>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }
}

/// Whoever waits for an operation.
struct Caller {
    /// Ends when the future of the operation is dropped. Nothing is ever sent.
    gone: oneshot::Receiver<Infallible>,
    is_gone: bool,
}

impl Caller {
    fn pair() -> (Waits, Self) {
        let (sender, gone) = oneshot::channel();
        let waits = Waits { is_gone: Arc::default(), _gone: sender };
        (waits, Self { gone, is_gone: false })
    }

    /// Returns when the caller is gone.
    async fn is_leaving(&mut self) {
        if !self.is_gone {
            self.is_gone = (&mut self.gone).await.is_err();
        }
    }

    /// The answer of `work`. If the caller goes away meanwhile, the statement that is running is ended, on the connection with this number. That
    /// is repeated, since it may come between two statements.
    async fn unless_gone<T>(
        &mut self,
        mut work: BoxFuture<'_, Result<T, Failure>>,
        operation: &'static str,
        killed: Option<(&Connector, u32)>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            answer = &mut work => return answer,
            () = self.is_leaving() => {}
        }
        let Some((connector, number)) = killed else { return work.await };
        let mut patience = PATIENCE.0;
        loop {
            cancel::kill(connector, number, operation).await;
            if let Ok(answer) = tokio::time::timeout(patience, &mut work).await {
                return answer;
            }
            patience = (2 * patience).min(PATIENCE.1);
        }
    }
}

/// A connection of which nobody knows in what state it is does not go back to the pool.
fn give_back(conn: Object<AsyncMysqlConnection>, is_clean: bool) {
    if !is_clean {
        drop(Object::take(conn));
    }
}
