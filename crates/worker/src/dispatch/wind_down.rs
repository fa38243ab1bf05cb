//! The end of a worker: what runs may end, the rest is given back, and nothing is lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Answer, Dispatcher, Stopped};
use crate::call::{later, sleep_until};
use crate::execute::Finished;
use crate::settle::released;

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
            let next = self.settle_at().map_or(grace_ends, |at| at.min(grace_ends));
            tokio::select! {
                biased;
                () = stop.waiting.cancelled() => break,
                Some(Ok(finished)) = self.executions.join_next(), if !self.executions.is_empty() => self.finished(finished),
                Some(Ok(answer)) = self.errands.join_next(), if !self.errands.is_empty() => self.answered_late(answer),
                () = sleep_until(Some(next)) => if Instant::now() >= grace_ends { break },
            }
        }
        self.end_handlers().await;
        self.give_back().await
    }

    fn is_done(&self) -> bool {
        self.running.is_empty() && self.errands.is_empty() && self.ended.iter().all(Vec::is_empty)
    }

    /// A claim that was under way when the worker was told to stop has brought jobs: they are not even started.
    fn answered_late(&mut self, answer: Answer) {
        match answer {
            Answer::Claimed { source, asked, jobs: Ok(jobs), .. } => {
                self.sources[source].claimed(asked, 0);
                self.put_back(source, jobs.into_iter().map(Arc::new).collect());
            }
            Answer::Settled { .. } => self.settlements -= 1,
            Answer::Reclaimed { reclaimed: Ok(reclaimed), .. } => self.reporter.reclaimed(reclaimed),
            Answer::Claimed { .. } | Answer::Told { .. } | Answer::Reclaimed { .. } => {}
        }
    }

    /// Drops the handlers that still run. Some end just now: what they have to say counts. One that does not let go of its
    /// thread cannot be dropped, and is left alone after a while.
    async fn end_handlers(&mut self) {
        self.executions.abort_all();
        let all = async {
            while let Some(ended) = self.executions.join_next().await {
                if let Ok(finished) = ended {
                    self.running.remove(&finished.job.receipt());
                    self.ended[0].push(finished);
                }
            }
        };
        if tokio::time::timeout(LAST, all).await.is_err() {
            tracing::warn!(handlers = self.executions.len(), "handlers hold on to their threads");
        }
        self.reporter.running(self.executions.len());
    }

    /// Gives back what was running with the attempt refunded, and settles what is left.
    async fn give_back(mut self) -> Stopped {
        let jobs = std::mem::take(&mut self.running);
        let mut stopped = Stopped { released: jobs.len(), abandoned: 0 };
        let mut left: Vec<Finished> = self.ended.iter_mut().flat_map(std::mem::take).collect();
        left.extend(jobs.into_values().map(|(job, source)| released(job, source)));
        let (mut sent, mut settled) = (left.len(), 0);
        let giving_back = async {
            loop {
                while !left.is_empty() {
                    let some: Vec<Finished> =
                        left.drain(..left.len().min(self.settings.settle_batch)).collect();
                    let count = some.len();
                    settled += count - self.settler.settle(some).await;
                }
                // Claims and settlements that are still under way.
                match self.errands.join_next().await {
                    Some(Ok(Answer::Claimed { source, jobs: Ok(jobs), .. })) => {
                        sent += jobs.len();
                        left.extend(jobs.into_iter().map(|job| released(Arc::new(job), source)));
                    }
                    Some(_) => {}
                    None => return,
                }
            }
        };
        let in_time = tokio::time::timeout(LAST, giving_back).await.is_ok();
        stopped.abandoned = sent - settled;
        if !in_time || stopped.abandoned > 0 {
            let jobs = stopped.abandoned;
            tracing::warn!(jobs, "the store does not answer; jobs come back when their leases have passed");
        }
        stopped
    }
}
