-- Queues with finished jobs, from ?1 on and before ?2: one step in the index for each.
WITH RECURSIVE queue (name) AS (
    SELECT (SELECT min(h.queue_name) FROM {prefix}job_history h WHERE h.queue_name >= ?1 AND h.queue_name < ?2)
    UNION ALL
    SELECT (SELECT min(h.queue_name) FROM {prefix}job_history h WHERE h.queue_name > q.name AND h.queue_name < ?2)
    FROM queue q WHERE q.name IS NOT NULL
)
SELECT name FROM queue WHERE name IS NOT NULL
