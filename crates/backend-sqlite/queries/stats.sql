-- Live jobs by queue, state and attempts; dead letters by queue, as the state `dead_letter`.
SELECT j.queue_name, CASE
           WHEN j.lease_until > ?4 THEN 'running'
           WHEN j.lease_until IS NOT NULL THEN 'expired'
           WHEN j.attempts >= j.max_attempts THEN 'exhausted'
           WHEN j.available_at <= ?4 THEN 'ready'
           WHEN j.attempts = 0 THEN 'scheduled'
           ELSE 'retrying' END AS state,
       j.attempts, count(*), min(j.available_at)
FROM {prefix}job_queue j
WHERE (?1 IS NULL OR j.queue_name IN (SELECT value FROM json_each(?1)))
  AND (?2 IS NULL OR j.queue_name >= ?2 AND j.queue_name < ?3)
GROUP BY j.queue_name, state, j.attempts
UNION ALL
SELECT h.queue_name, 'dead_letter', 0, count(*), NULL
FROM {prefix}job_history h INDEXED BY {prefix}job_history_dead
WHERE h.status_final = 'dead_letter'
  AND (?1 IS NULL OR h.queue_name IN (SELECT value FROM json_each(?1)))
  AND (?2 IS NULL OR h.queue_name >= ?2 AND h.queue_name < ?3)
GROUP BY h.queue_name
