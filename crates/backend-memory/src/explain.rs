//! Why a job is not running.

use leasehold_core::{Explanation, FinishedJob, Job, JobId, JobState, Outcome, QueueOrder};

use crate::queue::Queue;
use crate::state::State;

/// The first reason that holds, in the order of [`Explanation`].
pub(crate) fn explain(state: &State, id: JobId) -> Explanation {
    let Some(row) = state.jobs.get(&id) else {
        return state.history.get(id).map_or(Explanation::Unknown, ended); // Y1
    };
    let queue = &state.queues[row.slot];
    let alone = explain_alone(state, &row.job, queue);
    alone.or_else(|| explain_limits(state, &row.job, queue)).unwrap_or_else(|| explain_order(&row.job, queue))
}

fn ended(job: &FinishedJob) -> Explanation {
    match &job.outcome {
        Outcome::DeadLetter { error } => {
            Explanation::DeadLetter { at: job.finished_at, error: error.clone() }
        }
        outcome => Explanation::Finished { status: outcome.status(), at: job.finished_at },
    }
}

/// The reasons that the job itself gives, and whether its queue is paused (Y2, Y3, Y4).
fn explain_alone(state: &State, job: &Job, queue: &Queue) -> Option<Explanation> {
    let until = job.available_at;
    Some(match (job.state(state.now), &job.lease) {
        (JobState::Expired, Some(lease)) => {
            Explanation::LeaseExpired { by: lease.worker.clone(), since: lease.until }
        }
        (_, Some(lease)) => Explanation::Leased { by: lease.worker.clone(), until: lease.until },
        (JobState::Exhausted, None) => Explanation::Exhausted,
        _ if queue.policy.paused => Explanation::Paused,
        (JobState::Scheduled, None) => Explanation::Scheduled { until },
        (JobState::Retrying, None) => Explanation::Retrying { until, error: job.last_error.clone() },
        _ => return None,
    })
}

/// The reasons that the queue's policy gives (Y4, and Y5 of a Fifo queue).
fn explain_limits(state: &State, job: &Job, queue: &Queue) -> Option<Explanation> {
    if queue.policy.order == QueueOrder::Fifo {
        let before = queue.first_leased().or(queue.live.first().copied());
        if let Some(job) = before.filter(|before| *before != job.id) {
            return Some(Explanation::WaitsBehind { job });
        }
    }
    let reached = |limit: u32| queue.leases() >= limit as usize;
    if let Some(limit) = queue.policy.concurrency_limit.filter(|limit| reached(limit.get())) {
        return Some(Explanation::ConcurrencyLimit { limit });
    }
    queue.next_token_at(state.now).map(|until| Explanation::RateLimit { until })
}

/// Whether the queue gives out another job before (Y5).
fn explain_order(job: &Job, queue: &Queue) -> Explanation {
    match queue.first_ready() {
        Some((_, _, first)) if *first != job.id && queue.policy.order == QueueOrder::Priority => {
            Explanation::WaitsBehind { job: *first }
        }
        _ => Explanation::Next,
    }
}
