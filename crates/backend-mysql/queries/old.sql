-- Finished jobs of a queue that ended by a time, the oldest first (U1, U2).
SELECT h.id FROM {prefix}job_history h FORCE INDEX (job_history_finished)
WHERE h.queue_name = ? AND h.finished_at <= ?
  AND (? IS NULL OR FIND_IN_SET(h.status_final, ?) > 0)
ORDER BY h.finished_at, h.id LIMIT ?
