-- One page of live jobs. `{direction}` and `{beyond}` are `ASC` and `>`, or `DESC` and `<`. `{named}` is in words that the
-- index of one queue's jobs knows, if there is one queue; otherwise the jobs are read by id.
SELECT id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, available_at, lease_until, locked_by,
    lease_epoch, first_leased_at, last_error, redrives, created_at, updated_at
FROM {prefix}job_queue j
WHERE {named}
  AND (?2 IS NULL OR j.queue_name >= ?2 AND j.queue_name < ?3)
  AND (?4 IS NULL OR j.kind = ?4)
  AND (?5 IS NULL OR CASE
          WHEN j.lease_until > ?10 THEN 'running'
          WHEN j.lease_until IS NOT NULL THEN 'expired'
          WHEN j.attempts >= j.max_attempts THEN 'exhausted'
          WHEN j.available_at <= ?10 THEN 'ready'
          WHEN j.attempts = 0 THEN 'scheduled'
          ELSE 'retrying' END IN (SELECT value FROM json_each(?5)))
  AND (?6 IS NULL OR j.unique_key = ?6)
  AND (?7 IS NULL OR j.locked_by = ?7)
  AND j.id {beyond} ?8
ORDER BY j.id {direction} LIMIT ?9
