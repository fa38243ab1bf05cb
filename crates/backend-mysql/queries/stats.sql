-- Live jobs by queue, state and attempts; dead letters by queue, as the state `dead_letter`; and a row of nothing.
SELECT j.queue_name, CASE
           WHEN j.lease_until > UTC_TIMESTAMP(6) THEN 'running'
           WHEN j.lease_until IS NOT NULL THEN 'expired'
           WHEN j.attempts >= j.max_attempts THEN 'exhausted'
           WHEN j.available_at <= UTC_TIMESTAMP(6) THEN 'ready'
           WHEN j.attempts = 0 THEN 'scheduled'
           ELSE 'retrying' END AS state,
       CAST(j.attempts AS SIGNED), COUNT(*), MIN(j.available_at), UTC_TIMESTAMP(6)
FROM {prefix}job_queue j FORCE INDEX (job_queue_ready) WHERE {queues}
GROUP BY j.queue_name, state, j.attempts
UNION ALL
SELECT j.queue_name, 'dead_letter', 0, COUNT(*), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)
FROM {prefix}job_history j FORCE INDEX (job_history_status)
WHERE j.status_final = 'dead_letter' AND {queues} GROUP BY j.queue_name
UNION ALL
SELECT LEFT('-', 0), 'none', 0, 0, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)
