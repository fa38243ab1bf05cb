-- Puts dead letters back into their queues, by id from the smallest. One whose unique key is taken, by a live job or by
-- a dead letter before it, stays and is named (X4). A key that is taken meanwhile makes the statement fail as a whole.
WITH dead AS (
    SELECT h.id, h.queue_name, h.unique_key FROM {schema}.job_history h
    WHERE h.status_final = 'dead_letter' -- X1
      AND ($1::text[] IS NULL OR h.queue_name = ANY ($1::text[]))
      AND ($2::text IS NULL OR h.queue_name >= $2::text AND h.queue_name < $3::text)
      AND ($4::text IS NULL OR h.kind = $4::text)
      AND ($5::bigint[] IS NULL OR h.id = ANY ($5::bigint[]))
), keyed AS (
    SELECT d.id,
           d.unique_key IS NOT NULL AND (
               EXISTS (SELECT FROM {schema}.job_queue j
                       WHERE j.queue_name = d.queue_name AND j.unique_key = d.unique_key)
               OR d.id <> min(d.id) OVER (PARTITION BY d.queue_name, d.unique_key)) AS taken
    FROM dead d
), picked AS MATERIALIZED (
    SELECT h.id FROM keyed k JOIN {schema}.job_history h ON h.id = k.id
    WHERE NOT k.taken AND h.status_final = 'dead_letter'
    ORDER BY k.id LIMIT $6::integer FOR UPDATE OF h SKIP LOCKED
), moved AS (
    DELETE FROM {schema}.job_history h USING picked p WHERE h.id = p.id RETURNING h.*
), redriven AS (
    INSERT INTO {schema}.job_queue
        (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, available_at, lease_epoch,
         first_leased_at, last_error, redrives, created_at, updated_at)
    SELECT m.id, m.queue_name, m.kind, m.priority, m.unique_key, m.payload, m.headers, 0, m.max_attempts,
           statement_timestamp(), m.lease_epoch, m.started_at, m.last_error, m.redrives + 1, m.created_at,
           statement_timestamp() -- X2, X3, X5
    FROM moved m
    RETURNING id, queue_name
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT r.queue_name, c.attempts, c.due, c.sign * count(*) FROM redriven r
    CROSS JOIN (VALUES (0, {schema}.due(statement_timestamp()), 1), (NULL, NULL, -1)) AS c (attempts, due, sign) GROUP BY 1, 2, 3, c.sign
)
SELECT r.id, r.queue_name FROM redriven r
UNION ALL
(SELECT k.id, NULL FROM keyed k
 WHERE k.taken
   AND ((SELECT count(*) FROM picked) < $6::integer OR k.id < (SELECT max(p.id) FROM picked p))
 ORDER BY k.id LIMIT $6::integer)
