//! The numbers of the queues, as metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{JobState, QueueStats, Queues, Store};
use tokio_util::sync::CancellationToken;

use crate::call::answer;
use crate::outage::LONGEST;
use crate::panics::contain;
use crate::report::queue_label;

/// Publishes the numbers of the queues.
pub(crate) async fn sample(
    store: Arc<dyn Store>,
    queues: Vec<Queues>,
    every: Duration,
    stop: CancellationToken,
) {
    let mut tick = tokio::time::interval(every.max(Duration::from_millis(1)));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        for queues in &queues {
            // A store that does not answer is told about by those who need it.
            let stats = answer("stats", every.max(LONGEST), async || store.stats(queues).await).await;
            if let Ok(stats) = stats {
                publish(queues, &stats);
            }
        }
    }
}

/// Every label of these queues gets a value: a queue that the store does not name has no jobs.
fn publish(queues: &Queues, stats: &[QueueStats]) {
    let mut numbers: BTreeMap<String, [f64; 4]> = BTreeMap::new();
    match queues {
        Queues::Named(names) => numbers.extend(names.iter().map(|name| (name.to_string(), [0.0; 4]))),
        Queues::Matching(prefix) => drop(numbers.insert(format!("{prefix}*"), [0.0; 4])),
    }
    for stats in stats {
        let count = |state| stats.states.get(&state).copied().unwrap_or_default() as f64;
        let waiting = count(JobState::Scheduled) + count(JobState::Retrying);
        let more = [count(JobState::Ready), count(JobState::Running), waiting, stats.dead_letters as f64];
        let sum = numbers.entry(queue_label(queues, &stats.queue).into_owned()).or_default();
        sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
    for (queue, [ready, running, waiting, dead_letters]) in numbers {
        contain(|| {
            metrics::gauge!("leasehold_ready", "queue" => queue.clone()).set(ready);
            metrics::gauge!("leasehold_running", "queue" => queue.clone()).set(running);
            metrics::gauge!("leasehold_waiting", "queue" => queue.clone()).set(waiting);
            metrics::gauge!("leasehold_dead_letters", "queue" => queue).set(dead_letters);
        });
    }
}
