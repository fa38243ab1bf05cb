-- Live jobs by queue, state and attempts; dead letters by queue, as the state `dead_letter`. The last row has the time and no queue.
--
-- Jobs that wait are not counted here: job_queue_count has their number. What is leased is counted, and what becomes available
-- before the minute is over, since that is known by minutes only.
CREATE FUNCTION {schema}.stats(queues text[], queues_from text, queues_to text) RETURNS TABLE (
    queue_name text, state text, attempts integer, count bigint, first_available_at timestamptz, now timestamptz
) {planned_by_hash} AS $$
#variable_conflict use_column
BEGIN
RETURN QUERY
WITH RECURSIVE counted AS MATERIALIZED (
    SELECT c.queue_name, c.attempts, sum(c.jobs) AS jobs,
           coalesce(sum(c.jobs) FILTER (WHERE c.due > statement_timestamp()), 0) AS later,
           coalesce(bool_or(c.due = date_trunc('minute', statement_timestamp())), false) AS has_soon
    FROM {schema}.job_queue_count c
    WHERE ($1::text[] IS NULL OR c.queue_name = ANY ($1::text[]))
      AND ($2::text IS NULL OR c.queue_name >= $2::text AND c.queue_name < $3::text)
    GROUP BY c.queue_name, c.attempts
), level (name, priority, available_at, has_soon) AS ( -- The first job of each priority of each queue.
    SELECT c.queue_name, 2147483648, NULL::timestamptz, bool_or(c.has_soon) FROM counted c
    WHERE c.attempts IS NOT NULL GROUP BY c.queue_name HAVING sum(c.jobs) > 0
    UNION ALL
    SELECT l.name, n.priority, n.available_at, l.has_soon FROM level l CROSS JOIN LATERAL (
        SELECT j.priority::bigint AS priority, j.available_at FROM {schema}.job_queue j
        WHERE j.queue_name = l.name AND j.lease_until IS NULL AND j.attempts < j.max_attempts AND j.priority < l.priority
        ORDER BY j.priority DESC, j.available_at, j.id LIMIT 1) n
), soon AS ( -- What comes within the minute.
    SELECT l.name, j.attempts, count(*) AS jobs FROM level l CROSS JOIN LATERAL (
        SELECT j.attempts FROM {schema}.job_queue j
        WHERE j.queue_name = l.name AND j.priority = l.priority AND j.lease_until IS NULL AND j.attempts < j.max_attempts
          AND j.available_at > statement_timestamp()
          AND j.available_at < date_trunc('minute', statement_timestamp()) + interval '1 minute'
        ORDER BY j.available_at
    ) j
    WHERE l.has_soon
    GROUP BY 1, 2
), waiting AS MATERIALIZED (
    SELECT c.queue_name, c.attempts, c.jobs, c.later + coalesce(s.jobs, 0) AS later
    FROM counted c
    LEFT JOIN soon s ON s.name = c.queue_name AND s.attempts = c.attempts
    WHERE c.attempts IS NOT NULL
)
SELECT w.queue_name, 'ready'::text AS state, w.attempts, (w.jobs - w.later)::bigint AS count, f.available_at AS first_available_at,
       statement_timestamp() AS now
FROM waiting w
LEFT JOIN (SELECT l.name, min(l.available_at) AS available_at FROM level l GROUP BY 1) f ON f.name = w.queue_name
WHERE w.jobs > w.later
UNION ALL
SELECT w.queue_name, CASE w.attempts WHEN 0 THEN 'scheduled' ELSE 'retrying' END, w.attempts, w.later::bigint, NULL,
       statement_timestamp()
FROM waiting w WHERE w.later > 0
UNION ALL
SELECT j.queue_name, CASE WHEN j.lease_until > statement_timestamp() THEN 'running' ELSE 'expired' END, j.attempts, count(*), NULL,
       statement_timestamp()
FROM ( -- In the order of one index, lest the planner take another: it would read every job.
    SELECT j.queue_name, j.lease_until, j.attempts FROM {schema}.job_queue j
    WHERE j.lease_until IS NOT NULL
      AND ($1::text[] IS NULL OR j.queue_name = ANY ($1::text[]))
      AND ($2::text IS NULL OR j.queue_name >= $2::text AND j.queue_name < $3::text)
    ORDER BY j.queue_name, j.lease_until
) j
GROUP BY 1, 2, 3
UNION ALL
SELECT j.queue_name, 'exhausted', j.attempts, count(*), NULL, statement_timestamp()
FROM (
    SELECT j.queue_name, j.attempts FROM {schema}.job_queue j
    WHERE j.lease_until IS NULL AND j.attempts >= j.max_attempts
      AND ($1::text[] IS NULL OR j.queue_name = ANY ($1::text[]))
      AND ($2::text IS NULL OR j.queue_name >= $2::text AND j.queue_name < $3::text)
    ORDER BY j.queue_name, j.id
) j
GROUP BY 1, 3
UNION ALL
SELECT c.queue_name, 'dead_letter', 0, c.jobs::bigint, NULL, statement_timestamp()
FROM counted c WHERE c.attempts IS NULL AND c.jobs > 0
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, statement_timestamp();
END
$$;
