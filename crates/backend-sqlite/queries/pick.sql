-- The first ?3 jobs of the queue ?1 that can be leased at ?2, in the order in which they are leased (D6).
--
-- The index is walked level by level: the highest priority that the queue has, the next lower, and so on, each only as
-- long as jobs are still wanted. Neither jobs that wait for a later time nor the length of the queue cost anything. The
-- rows come in the order of the walk; to ask for it by ORDER BY would sort the whole backlog.
WITH RECURSIVE level (priority) AS (
    SELECT (SELECT j.priority FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_ready
            WHERE j.queue_name = ?1 AND j.lease_until IS NULL AND j.attempts < j.max_attempts
            ORDER BY j.priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT j.priority FROM {prefix}job_queue j INDEXED BY {prefix}job_queue_ready
            WHERE j.queue_name = ?1 AND j.lease_until IS NULL AND j.attempts < j.max_attempts
              AND j.priority < l.priority
            ORDER BY j.priority DESC LIMIT 1)
    FROM level l WHERE l.priority IS NOT NULL
)
SELECT j.id, j.priority, j.available_at
FROM level l CROSS JOIN {prefix}job_queue j INDEXED BY {prefix}job_queue_ready
WHERE j.queue_name = ?1 AND j.priority = l.priority
  AND j.lease_until IS NULL AND j.attempts < j.max_attempts AND j.available_at <= ?2 -- D1
LIMIT ?3
