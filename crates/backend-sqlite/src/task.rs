//! An operation on its way to a thread that runs it, and the answer on its way back.

use std::panic::{AssertUnwindSafe, catch_unwind};

use leasehold_core::{Result, StoreError};
use tokio::sync::oneshot;

use crate::error::Failure;
use crate::session::Session;

/// How the transaction ended that an operation was in.
#[derive(Debug, Clone)]
pub(crate) enum End {
    /// What was done is there to stay.
    Committed,
    /// Nothing was done.
    NotDone(String),
    /// Nobody knows whether it was done.
    Unknown(String),
}

/// An operation of any sort.
pub(crate) trait Task: Send {
    /// Runs it. An error means that the whole transaction is gone, with whatever else was in it.
    fn run(&mut self, session: &mut Session<'_>) -> Result<(), Failure>;

    /// Tells whoever waits for it how it ended. If nobody does any more, that is that.
    fn answer(self: Box<Self>, end: &End);
}

/// A task, and what the caller waits for.
pub(crate) fn task<T, W>(operation: &'static str, work: W) -> (Box<dyn Task>, Answer<T>)
where
    T: Send + 'static,
    W: FnOnce(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let pending = Pending { operation, work: Some(work), result: None, sender };
    (Box::new(pending), Answer { operation, receiver })
}

/// What a caller waits for.
pub(crate) struct Answer<T> {
    operation: &'static str,
    receiver: oneshot::Receiver<Result<T>>,
}

impl<T> Answer<T> {
    pub(crate) async fn get(self) -> Result<T> {
        let gone = |_| StoreError::unavailable(self.operation, "the thread of the database has ended");
        self.receiver.await.map_err(gone)?
    }
}

struct Pending<T, W> {
    operation: &'static str,
    work: Option<W>,
    result: Option<Result<T>>,
    sender: oneshot::Sender<Result<T>>,
}

impl<T, W> Task for Pending<T, W>
where
    T: Send + 'static,
    W: FnOnce(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
{
    fn run(&mut self, session: &mut Session<'_>) -> Result<(), Failure> {
        let Some(work) = self.work.take() else {
            return Ok(());
        };
        // A panic must not be the end of the thread that serves everybody.
        let done = catch_unwind(AssertUnwindSafe(|| session.whole(work)));
        let done = done.unwrap_or_else(|_| Err(Failure::TransactionLost("the operation panicked".into())));
        let end = match &done {
            Err(Failure::TransactionLost(error)) => Err(Failure::TransactionLost(error.to_string().into())),
            _ => Ok(()),
        };
        self.result = Some(done.map_err(|failure| failure.told(self.operation)));
        end
    }

    fn answer(self: Box<Self>, end: &End) {
        let operation = self.operation;
        let answer = match (self.result, end) {
            (Some(Err(error)), _) => Err(error),
            (Some(Ok(answer)), End::Committed) => Ok(answer),
            (_, End::Unknown(error)) => Err(StoreError::unknown(operation, error.clone())),
            (_, End::NotDone(error)) => Err(StoreError::unavailable(operation, error.clone())),
            (None, End::Committed) => Err(StoreError::unavailable(operation, "it was not run")),
        };
        drop(self.sender.send(answer));
    }
}
