-- Queues with live jobs, from ?1 on and before ?2: one step in the index for each.
WITH RECURSIVE live (name) AS (
    SELECT (SELECT min(j.queue_name) FROM {prefix}job_queue j WHERE j.queue_name >= ?1 AND j.queue_name < ?2)
    UNION ALL
    SELECT (SELECT min(j.queue_name) FROM {prefix}job_queue j WHERE j.queue_name > l.name AND j.queue_name < ?2)
    FROM live l WHERE l.name IS NOT NULL
)
SELECT name FROM live WHERE name IS NOT NULL
