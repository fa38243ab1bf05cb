-- One page of finished jobs. `{direction}` and `{beyond}` are `ASC` and `>`, or `DESC` and `<`.
SELECT id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch, status_final, result,
     last_error, redrives, processed_by, created_at, started_at, finished_at
FROM {prefix}job_history h
WHERE (?1 IS NULL OR h.queue_name IN (SELECT value FROM json_each(?1)))
  AND (?2 IS NULL OR h.queue_name >= ?2 AND h.queue_name < ?3)
  AND (?4 IS NULL OR h.kind = ?4)
  AND (?5 IS NULL OR h.status_final IN (SELECT value FROM json_each(?5)))
  AND (?6 IS NULL OR h.unique_key = ?6)
  AND (?7 IS NULL OR h.finished_at >= ?7)
  AND (?8 IS NULL OR h.finished_at < ?8)
  AND h.id {beyond} ?9
ORDER BY h.id {direction} LIMIT ?10
