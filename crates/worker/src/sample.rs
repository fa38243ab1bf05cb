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

#[cfg(test)]
mod tests {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    use super::*;

    /// Queues that have one label are counted together.
    #[test]
    fn each_gauge_is_the_sum_of_its_states() {
        let stats = |queue: &str, counts: [u64; 4], dead_letters| {
            let mut stats = QueueStats::empty(queue.parse().unwrap(), chrono::DateTime::UNIX_EPOCH);
            let states = [JobState::Ready, JobState::Running, JobState::Scheduled, JobState::Retrying];
            stats.states = states.into_iter().zip(counts).collect();
            QueueStats { dead_letters, ..stats }
        };
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        metrics::with_local_recorder(&recorder, || {
            let both = [stats("room:1", [1, 2, 3, 4], 5), stats("room:2", [10, 20, 30, 40], 50)];
            publish(&Queues::Matching(leasehold_core::QueuePrefix::new("room:").unwrap()), &both);
        });
        let gauges: BTreeMap<String, f64> = snapshotter
            .snapshot()
            .into_vec()
            .into_iter()
            .filter_map(|(key, _, _, value)| {
                let DebugValue::Gauge(value) = value else { return None };
                let label = key.key().labels().map(metrics::Label::value).collect::<Vec<_>>().join(",");
                Some((format!("{} {label}", key.key().name()), value.into_inner()))
            })
            .collect();
        let expected = [("dead_letters", 55.0), ("ready", 11.0), ("running", 22.0), ("waiting", 77.0)];
        let expected = expected.map(|(name, sum)| (format!("leasehold_{name} room:*"), sum));
        assert_eq!(gauges, BTreeMap::from(expected));
    }
}
