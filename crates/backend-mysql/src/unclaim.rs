//! Giving back jobs that were leased for a caller that was gone by then.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Job, Receipt, SettleOutcome, Verdict};
use tokio::time::Instant;

use crate::Shared;
use crate::settle::settle;

/// How long to wait before a job that could not be given back is tried again: doubled up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Gives back the jobs, with their attempts, until their leases end by themselves.
pub(crate) async fn unclaim(shared: Arc<Shared>, jobs: Vec<Job>) {
    let Some(left) = jobs.iter().filter_map(left).max() else { return };
    let end = Instant::now() + left;
    let mut items: Vec<(Receipt, Verdict)> =
        jobs.iter().map(|job| (job.receipt(), Verdict::release())).collect();
    let mut pause = PAUSE.0;
    loop {
        let work = shared.run("dequeue", items.clone(), |session, _, items| Box::pin(settle(session, items)));
        if let Ok(outcomes) = work.await {
            let mut pending = outcomes.iter().map(SettleOutcome::is_pending);
            items.retain(|_| pending.next().unwrap_or_default());
        }
        if items.is_empty() || Instant::now() + pause > end {
            break;
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(PAUSE.1);
    }
    tracing::debug!(
        jobs = jobs.len(),
        left = items.len(),
        "the future of a claim was dropped: its jobs are given back"
    );
}

/// How long the lease lasts from when it was granted.
fn left(job: &Job) -> Option<Duration> {
    job.lease.as_ref().and_then(|lease| (lease.until - job.updated_at).to_std().ok())
}
