//! The end of a worker: what runs may end, the rest is given back, and nothing is lost.

use std::time::Duration;

use leasehold_core::Verdict;
use tokio::task::{Id, JoinError};
use tokio::time::Instant;

use super::{Dispatcher, Stopped};
use crate::call::{later, sleep_until};
use crate::execute::Finished;
use crate::panics::log;
use crate::settle::{Done, End, not_started};

/// How long handlers that are stopped may take to end, and how long jobs may take that are given back.
const LAST: Duration = Duration::from_secs(5);

impl Dispatcher {
    /// No more claims. Waits for what runs, and gives back the rest.
    pub(super) async fn wind_down(mut self) -> Stopped {
        let stop = self.stop.clone();
        let grace = later(Instant::now(), self.settings.grace);
        let grace_ends = stop.ends.get().copied().unwrap_or(grace);
        while !self.is_done() {
            self.settle();
            let next = self.settlements.next_time().map_or(grace_ends, |at| at.min(grace_ends));
            tokio::select! {
                biased;
                () = stop.waiting.cancelled() => break,
                Some(ended) = self.executions.join_next_with_id() => self.execution_ended(ended),
                Some(answer) = self.errands.next() => self.answered(answer),
                () = sleep_until(Some(next)) => if Instant::now() >= grace_ends { break },
            }
        }
        self.end_handlers().await;
        self.settle_the_rest().await
    }

    fn is_done(&self) -> bool {
        self.running.is_empty() && self.errands.is_empty() && self.settlements.is_empty()
    }

    /// Drops the handlers that still run. Some end just now: what they have to say counts. One that does not let go of its
    /// thread cannot be dropped. It goes on, so its job is left to its lease, and its token fires.
    async fn end_handlers(&mut self) {
        self.executions.abort_all();
        let ends = Instant::now() + LAST;
        while let Ok(Some(ended)) = tokio::time::timeout_at(ends, self.executions.join_next_with_id()).await {
            self.dropped(ended);
        }
        for (receipt, _) in std::mem::take(&mut self.running) {
            self.leases.cancel(&receipt);
            self.leases.let_go([&receipt]);
            self.stopped.abandoned += 1;
        }
        if self.stopped.abandoned > 0 {
            log!(warn, handlers = self.stopped.abandoned, "handlers hold on to their threads");
        }
        self.reporter.running(self.stopped.abandoned);
    }

    /// The task of an execution has ended, because it was told to or by itself.
    fn dropped(&mut self, ended: Result<(Id, Finished), JoinError>) {
        let cancelled = ended.as_ref().is_err_and(JoinError::is_cancelled);
        let Some(receipt) =
            ended.as_ref().err().filter(|_| cancelled).and_then(|error| self.tasks.remove(&error.id()))
        else {
            return self.execution_ended(ended);
        };
        if let Some(running) = self.running.remove(&receipt) {
            self.leases.ended(&receipt);
            self.sources[running.source].ended();
            self.releasing.insert(receipt);
            self.settlements.add_now(not_started(running.job, running.source, Verdict::release()));
        }
    }

    /// Settles what is left, for a while.
    async fn settle_the_rest(mut self) -> Stopped {
        let ends = Instant::now() + LAST;
        self.settlements.hurry();
        while !self.is_done() && Instant::now() < ends {
            self.settle();
            let next = self.settlements.next_time().map_or(ends, |at| at.min(ends));
            tokio::select! {
                biased;
                Some(answer) = self.errands.next() => self.answered(answer),
                () = sleep_until(Some(next)) => {}
            }
        }
        let under_way = self.errands.settlements().map(|sent| sent.jobs.len()).sum::<usize>();
        let unsettled = self.settlements.waiting() + under_way;
        self.stopped.abandoned += unsettled;
        if unsettled > 0 || !self.errands.is_empty() {
            let jobs = unsettled;
            log!(warn, jobs, "the store does not answer; jobs come back when their leases have passed");
        }
        self.stopped
    }

    /// Jobs for which nothing is left to do.
    pub(super) fn count_ends(&mut self, done: &[Done]) {
        if self.stop.claiming.is_cancelled() {
            let released =
                |done: &&Done| done.end == End::Settled && self.releasing.contains(&done.job.receipt);
            self.stopped.released += done.iter().filter(released).count();
            self.stopped.abandoned += done.iter().filter(|done| done.end == End::GivenUp).count();
        }
    }
}
