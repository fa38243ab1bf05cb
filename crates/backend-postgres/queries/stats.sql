-- Live jobs by queue, state and attempts; dead letters by queue, as the state `dead_letter`.
SELECT j.queue_name, s.state, j.attempts, count(*) AS count, min(j.available_at) AS first_available_at,
       statement_timestamp() AS now
FROM {schema}.job_queue j
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN j.lease_until > statement_timestamp() THEN 'running'
        WHEN j.lease_until IS NOT NULL THEN 'expired'
        WHEN j.attempts >= j.max_attempts THEN 'exhausted'
        WHEN j.available_at <= statement_timestamp() THEN 'ready'
        WHEN j.attempts = 0 THEN 'scheduled'
        ELSE 'retrying' END AS state
) s
WHERE ($1::text[] IS NULL OR j.queue_name = ANY ($1::text[]))
  AND ($2::text IS NULL OR j.queue_name >= $2::text AND j.queue_name < $3::text)
GROUP BY j.queue_name, s.state, j.attempts
UNION ALL
SELECT h.queue_name, 'dead_letter', 0, count(*), NULL, statement_timestamp()
FROM {schema}.job_history h
WHERE h.status_final = 'dead_letter'
  AND ($1::text[] IS NULL OR h.queue_name = ANY ($1::text[]))
  AND ($2::text IS NULL OR h.queue_name >= $2::text AND h.queue_name < $3::text)
GROUP BY h.queue_name
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, statement_timestamp()
