//! The number of a job tells its queue.
//!
//! A receipt names a job and no queue, and the keys of a job are with those of its queue. So the last six digits of the
//! number are those of the queue, and no index is needed: job 17000042 is number 17 of the sequence of its shard, and in queue 42. The number of a
//! queue tells its shard in turn: it is the rest when divided by their count. So jobs of two shards never have the same id.

use leasehold_core::JobId;

const QUEUES: i64 = 1_000_000;

/// The number of the job's queue; `None` if no job has this id.
pub(crate) fn queue(id: JobId) -> Option<u32> {
    u32::try_from(id.get() % QUEUES).ok().filter(|queue| id.get() > QUEUES && *queue > 0)
}

/// The id of the job with this number in the sequence of its shard, in the queue with this number.
pub(crate) fn of(sequence: i64, queue: i64) -> JobId {
    JobId::new(sequence * QUEUES + queue)
}

/// As keys and indexes have it: text that sorts as numbers do.
pub(crate) fn text(id: JobId) -> String {
    format!("{:019}", id.get())
}

/// The id that was written so.
pub(crate) fn parse(text: &str) -> Option<JobId> {
    text.parse().ok().map(JobId::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_tells_its_queue() {
        let (first, second) = (JobId::new(17_999_999), JobId::new(18_000_001));
        assert_eq!((queue(first), queue(second)), (Some(999_999), Some(1)));
        assert_eq!(of(18, 1), second);
        assert_eq!(parse(&text(second)), Some(second));
        assert!(text(first) < text(second));
    }

    #[test]
    fn what_is_no_id_has_no_queue() {
        for id in [i64::MIN, -7, 0, 1, 999_999, 1_000_000, 3_000_000] {
            assert_eq!(queue(JobId::new(id)), None, "{id}");
        }
    }
}
