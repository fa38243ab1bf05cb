//! Calls to the store that are under way, each in a task of its own.

use std::collections::HashMap;
use std::sync::Arc;

use leasehold_core::{Job, NextAvailable, Reclaimed, StoreError};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::Dispatcher;
use crate::panics::message;
use crate::settle::{Round, Unsettled};

/// A call that is under way, and what it has taken to itself.
pub(super) enum Errand {
    Claim(Claim),
    Ask { source: usize },
    Reclaim { source: Option<usize> },
    Settle(Arc<Sent>),
}

/// A claim that is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub(super) number: u64,
    pub(super) source: usize,
    pub(super) asked: usize,
    pub(super) sent: Instant,
}

/// A batch of verdicts that is under way. The verdicts are with the task; this is what is left if it dies.
pub(super) struct Sent {
    pub(super) jobs: Vec<Unsettled>,
    /// Whether it was sent before.
    pub(super) again: bool,
}

/// What comes back from the store.
pub(super) enum Answer {
    Claimed { claim: Claim, jobs: Result<Vec<Job>, StoreError> },
    Told { source: usize, next: Result<Option<NextAvailable>, StoreError> },
    Reclaimed { source: Option<usize>, reclaimed: Result<Vec<Reclaimed>, StoreError> },
    Settled { sent: Arc<Sent>, round: Round },
}

/// The tasks, and what each is about.
#[derive(Default)]
pub(super) struct Errands {
    tasks: JoinSet<Answer>,
    about: HashMap<Id, Errand>,
}

impl Errands {
    pub(super) fn send(&mut self, errand: Errand, call: impl Future<Output = Answer> + Send + 'static) {
        let id = self.tasks.spawn(call).id();
        self.about.insert(id, errand);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The next answer; `None` if nothing is under way.
    pub(super) async fn next(&mut self) -> Option<Answer> {
        loop {
            let ended = self.tasks.join_next_with_id().await?;
            if let Some(answer) = self.landed(ended) {
                return Some(answer);
            }
        }
    }

    /// An answer that is there already.
    pub(super) fn try_next(&mut self) -> Option<Answer> {
        loop {
            let ended = self.tasks.try_join_next_with_id()?;
            if let Some(answer) = self.landed(ended) {
                return Some(answer);
            }
        }
    }

    /// The batches of verdicts that are under way.
    pub(super) fn settlements(&self) -> impl Iterator<Item = &Sent> {
        self.about.values().filter_map(|errand| match errand {
            Errand::Settle(sent) => Some(&**sent),
            _ => None,
        })
    }

    /// A task that panicked is a call that failed.
    fn landed(&mut self, ended: Result<(Id, Answer), JoinError>) -> Option<Answer> {
        match ended {
            Ok((id, answer)) => {
                self.about.remove(&id);
                Some(answer)
            }
            Err(error) => {
                let errand = self.about.remove(&error.id())?;
                let text = error.try_into_panic().map_or_else(|error| error.to_string(), message);
                Some(errand.failed(text))
            }
        }
    }
}

impl Errand {
    /// The answer in place of the one that a dead task does not give.
    fn failed(self, text: String) -> Answer {
        match self {
            Self::Claim(claim) => Answer::Claimed { claim, jobs: Err(StoreError::backend("dequeue", text)) },
            Self::Ask { source } => {
                Answer::Told { source, next: Err(StoreError::backend("next_available_at", text)) }
            }
            Self::Reclaim { source } => {
                Answer::Reclaimed { source, reclaimed: Err(StoreError::backend("reclaim", text)) }
            }
            Self::Settle(sent) => Answer::Settled { round: Round::died(&sent.jobs, &text), sent },
        }
    }
}

impl Dispatcher {
    pub(super) fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Claimed { claim, jobs } => self.claimed(claim, jobs),
            Answer::Told { source, next } => self.told(source, next),
            Answer::Reclaimed { source, reclaimed } => self.reclaimed(source, reclaimed),
            Answer::Settled { sent, round } => self.settled(&sent, round),
        }
    }
}
