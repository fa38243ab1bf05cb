-- Up to ?2 jobs to be reclaimed at ?1: leases that have passed, queue by queue (R1), and jobs whose attempts are spent.
WITH RECURSIVE leasing (name) AS (
    SELECT (SELECT j.queue_name FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_leased
            WHERE j.lease_until IS NOT NULL AND j.queue_name > '' ORDER BY j.queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT j.queue_name FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_leased
            WHERE j.lease_until IS NOT NULL AND j.queue_name > l.name ORDER BY j.queue_name LIMIT 1)
    FROM leasing l WHERE l.name IS NOT NULL
)
SELECT id, queue_name, kind, attempts, max_attempts, locked_by, last_error IS NOT NULL FROM (
    SELECT j.* FROM leasing l CROSS JOIN {prefix}job_queue j INDEXED BY {prefix}job_queue_leased
    WHERE j.queue_name = l.name AND j.lease_until IS NOT NULL AND j.lease_until <= ?1
    LIMIT ?2)
UNION ALL
SELECT id, queue_name, kind, attempts, max_attempts, NULL, last_error IS NOT NULL FROM (
    SELECT j.* FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_exhausted
    WHERE j.lease_until IS NULL AND j.attempts >= j.max_attempts
    LIMIT ?2)
LIMIT ?2 -- R5
