//! Jobs that are enqueued one by one at the same time go to the server together.
//!
//! A server does a statement for ten jobs in little more time than one for a single job. So only a few callers send their
//! job themselves; those who come meanwhile wait, and are sent together as soon as one of the few is done. Who comes
//! alone never waits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use leasehold_core::{BoxError, Enqueued, NewJob, Result, StoreError};
use tokio::sync::oneshot;

/// So many jobs are sent together at most.
const JOBS: usize = 100;

/// Jobs are sent together up to this size of their payloads, and one beyond it.
const BYTES: usize = 256 * 1024;

/// Who sends jobs to the server.
#[async_trait]
pub trait Courier: Send + Sync + 'static {
    /// Accepts all of these jobs or none. The answers are in the order of the jobs.
    async fn send(self: &Arc<Self>, jobs: &[NewJob]) -> Result<Vec<Enqueued>>;
}

/// Jobs on their way, and those that wait until some of them have arrived.
#[derive(Debug)]
pub struct Gatherer {
    flights: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    flying: usize,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    job: NewJob,
    answer: oneshot::Sender<Answer>,
}

/// What a caller that waits is told.
#[derive(Debug)]
enum Answer {
    /// The job went together with others, and this came of it.
    Sent(Result<Enqueued>),
    /// The job was not sent, and no other task is going to send it: the caller does it.
    NotSent,
}

impl Gatherer {
    /// One that lets so many statements be under way before jobs wait for each other.
    pub fn new(flights: usize) -> Arc<Self> {
        Arc::new(Self { flights, state: Mutex::default() })
    }

    /// Has one job accepted, by itself or together with others that come at the same time.
    ///
    /// # Errors
    /// Those of `sender`. If the job went together with others and the server refused them, each is tried by itself, so
    /// that nobody suffers for the job of somebody else.
    pub async fn enqueue<S: Courier>(self: &Arc<Self>, sender: &Arc<S>, job: &NewJob) -> Result<Enqueued> {
        loop {
            let answer = match self.board(sender, job) {
                Boarding::Now(_flight) => return one(sender.send(std::slice::from_ref(job)).await?),
                Boarding::Wait(answer) => answer.await,
            };
            match answer {
                Ok(Answer::Sent(answer)) => return answer,
                Ok(Answer::NotSent) => {}
                Err(_) => return Err(StoreError::unknown("enqueue", "the task that sent the job has ended")),
            }
        }
    }

    fn board<S: Courier>(self: &Arc<Self>, sender: &Arc<S>, job: &NewJob) -> Boarding<S> {
        let mut state = self.state();
        if state.flying < self.flights {
            state.flying += 1;
            return Boarding::Now(Flight {
                gatherer: Arc::clone(self),
                sender: Arc::clone(sender),
                has_begun: true,
            });
        }
        let (answer, waiting) = oneshot::channel();
        state.waiting.push(Waiting { job: job.clone(), answer });
        Boarding::Wait(waiting)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Boarding<S: Courier> {
    Now(Flight<S>),
    Wait(oneshot::Receiver<Answer>),
}

/// The right to have a statement under way. It goes over to those who wait, if there are any.
struct Flight<S: Courier> {
    gatherer: Arc<Gatherer>,
    sender: Arc<S>,
    /// False for one that was spawned and not polled yet.
    has_begun: bool,
}

impl<S: Courier> Flight<S> {
    /// Sends those who wait, for as long as there are any.
    async fn fly(mut self) {
        self.has_begun = true;
        loop {
            let group = self.gatherer.state().group();
            if group.is_empty() {
                return;
            }
            deliver(&self.sender, group).await;
        }
    }
}

impl<S: Courier> Drop for Flight<S> {
    /// Spawns the task that sends the waiting jobs. A runtime that is shutting down drops such a task inside `spawn`,
    /// so no lock may be held there, and a task that was dropped before its first poll must not spawn another.
    fn drop(&mut self) {
        let runtime = tokio::runtime::Handle::try_current().ok().filter(|_| self.has_begun);
        let mut state = self.gatherer.state();
        let (next, left) = match runtime {
            Some(runtime) if !state.waiting.is_empty() => (Some(runtime), Vec::new()),
            _ => (None, state.land()),
        };
        drop(state);
        if let Some(runtime) = next {
            let (gatherer, sender) = (Arc::clone(&self.gatherer), Arc::clone(&self.sender));
            drop(runtime.spawn(Self { gatherer, sender, has_begun: false }.fly()));
        }
        for waiting in left {
            let _gone = waiting.answer.send(Answer::NotSent);
        }
    }
}

impl State {
    /// Ends a flight that no other follows. Those who still wait are given back, to be told.
    fn land(&mut self) -> Vec<Waiting> {
        self.flying -= 1;
        std::mem::take(&mut self.waiting)
    }

    /// Those who go next, in the order they came. Who has gone away meanwhile is left out.
    fn group(&mut self) -> Vec<Waiting> {
        self.waiting.retain(|waiting| !waiting.answer.is_closed());
        let mut bytes = 0;
        let fits = |waiting: &&Waiting| {
            let fits = bytes < BYTES;
            bytes += waiting.job.payload().as_str().len();
            fits
        };
        let count = self.waiting.iter().take(JOBS).take_while(fits).count();
        self.waiting.drain(..count).collect()
    }
}

/// Sends a group, and tells everybody in it.
async fn deliver<S: Courier>(sender: &Arc<S>, group: Vec<Waiting>) {
    let (jobs, callers): (Vec<NewJob>, Vec<_>) =
        group.into_iter().map(|waiting| (waiting.job, waiting.answer)).unzip();
    match sender.send(&jobs).await {
        Ok(answers) => {
            for (caller, answer) in callers.into_iter().zip(answers) {
                let _gone = caller.send(Answer::Sent(Ok(answer)));
            }
        }
        Err(error) if error.is_unknown() || error.is_retryable() => {
            let error = Repeated::from(error);
            for caller in callers {
                let _gone = caller.send(Answer::Sent(Err(error.again())));
            }
        }
        Err(_) if jobs.len() > 1 => {
            for (caller, job) in callers.into_iter().zip(jobs) {
                if !caller.is_closed() {
                    let _gone = caller.send(Answer::Sent(sender.send(&[job]).await.and_then(one)));
                }
            }
        }
        Err(error) => {
            if let Some(caller) = callers.into_iter().next() {
                let _gone = caller.send(Answer::Sent(Err(error)));
            }
        }
    }
}

fn one(answers: Vec<Enqueued>) -> Result<Enqueued> {
    let missing = || StoreError::backend("enqueue", "the statement left the job out of its answer");
    answers.into_iter().next().ok_or_else(missing)
}

/// An error that several callers hear of.
struct Repeated {
    make: fn(&'static str, BoxError) -> StoreError,
    operation: &'static str,
    source: Arc<dyn std::error::Error + Send + Sync>,
}

impl Repeated {
    fn again(&self) -> StoreError {
        (self.make)(self.operation, Box::new(Arc::clone(&self.source)))
    }
}

impl From<StoreError> for Repeated {
    fn from(error: StoreError) -> Self {
        let (make, operation, source): (fn(_, BoxError) -> _, _, _) = match error {
            StoreError::Unavailable { operation, source } => (StoreError::unavailable, operation, source),
            StoreError::Unknown { operation, source } => (StoreError::unknown, operation, source),
            other => (StoreError::unknown, "enqueue", BoxError::from(other)),
        };
        Self { make, operation, source: source.into() }
    }
}

#[cfg(test)]
mod tests;
