-- Dead letters after the id ?6, by id (X1).
SELECT h.id, h.queue_name, h.unique_key FROM {prefix}job_history h INDEXED BY {prefix}job_history_dead_all
WHERE h.status_final = 'dead_letter'
  AND (?1 IS NULL OR h.queue_name IN (SELECT value FROM json_each(?1)))
  AND (?2 IS NULL OR h.queue_name >= ?2 AND h.queue_name < ?3)
  AND (?4 IS NULL OR h.kind = ?4)
  AND (?5 IS NULL OR h.id IN (SELECT value FROM json_each(?5)))
  AND h.id > ?6
ORDER BY h.id LIMIT ?7
