-- Forgets finished jobs of the queue ?1 that ended by ?2, at most ?5, the oldest first (U1, U2).
DELETE FROM {prefix}job_history WHERE id IN (
    SELECT h.id FROM {prefix}job_history h INDEXED BY {prefix}job_history_finished
    WHERE h.queue_name = ?1 AND h.finished_at <= ?2
      AND (?3 IS NULL OR h.status_final IN (SELECT value FROM json_each(?3)))
      AND (?4 IS NULL OR h.id IN (SELECT value FROM json_each(?4)))
    ORDER BY h.finished_at LIMIT ?5)
