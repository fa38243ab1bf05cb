//! The number of a job tells its queue.
//!
//! A receipt names a job and no queue, and the keys of a job are in the slot of its queue. So the last six digits of the
//! number are those of the queue, and no index is needed: job 17000042 is the 17th of all, and in queue 42.

use leasehold_core::JobId;

const QUEUES: i64 = 1_000_000;

/// The job that was the `sequence`-th of all, in the queue of this number.
pub(crate) fn compose(sequence: i64, queue: u32) -> JobId {
    JobId::new(sequence.saturating_mul(QUEUES).saturating_add(i64::from(queue)))
}

/// The number of the job's queue; `None` if no job has this id.
pub(crate) fn queue(id: JobId) -> Option<usize> {
    usize::try_from(id.get() % QUEUES).ok().filter(|queue| id.get() > QUEUES && *queue > 0)
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
    fn ids_rise_with_the_sequence_and_tell_the_queue() {
        let (first, second) = (compose(17, 999_999), compose(18, 1));
        assert!(first < second);
        assert_eq!((queue(first), queue(second)), (Some(999_999), Some(1)));
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
