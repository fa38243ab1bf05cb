-- Puts dead letters back into their queues, by id from the smallest. One whose unique key is taken stays and is named (X4): by a live job, or by
-- a dead letter with a smaller id that the request asks for, too. A key that is taken meanwhile makes the statement fail as a whole.
--
-- A request takes one of three ways to the dead letters: by their ids, queue by queue, or by the index of all of them. The last two walk an
-- index in the order of ids and stop at the limit, so that the time does not depend on how many dead letters there are. Whether a key is taken is
-- a scalar subquery, which is run for each dead letter that is looked at. For an EXISTS in its place the planner may hash all keys first.
CREATE FUNCTION {schema}.redrive(names text[], name_from text, name_to text, of_kind text, ids bigint[], wanted integer)
RETURNS TABLE (id bigint, queue_name text) {planned_anew} AS $$
#variable_conflict use_column
BEGIN
RETURN QUERY
WITH RECURSIVE matching (name) AS ( -- The queues of a prefix that have dead letters.
    (SELECT h.queue_name FROM {schema}.job_history h
     WHERE h.status_final = 'dead_letter' AND h.queue_name >= $2::text AND h.queue_name < $3::text
       AND $2::text <> '' AND $5::bigint[] IS NULL
     ORDER BY h.queue_name, h.id LIMIT 1)
    UNION ALL
    SELECT n.name FROM matching m CROSS JOIN LATERAL (
        SELECT h.queue_name AS name FROM {schema}.job_history h
        WHERE h.status_final = 'dead_letter' AND h.queue_name > m.name AND h.queue_name < $3::text
        ORDER BY h.queue_name, h.id LIMIT 1) n
), queue AS MATERIALIZED (
    SELECT m.name FROM matching m
    UNION ALL
    SELECT DISTINCT n.name FROM unnest($1::text[]) AS n (name) WHERE $5::bigint[] IS NULL
), named AS MATERIALIZED ( -- The dead letters of the ids: no more than a request may have.
    SELECT h.id,
           h.unique_key IS NOT NULL AND h.id <> min(h.id) OVER (PARTITION BY h.queue_name, h.unique_key)
           OR coalesce((SELECT true FROM {schema}.job_queue j
                        WHERE j.queue_name = h.queue_name AND j.unique_key = h.unique_key LIMIT 1), false) AS is_taken
    FROM (SELECT h.* FROM {schema}.job_history h
          WHERE $5::bigint[] IS NOT NULL AND h.id = ANY ($5::bigint[]) AND h.status_final = 'dead_letter' OFFSET 0) h -- X1
    WHERE ($1::text[] IS NULL OR h.queue_name = ANY ($1::text[]))
      AND ($2::text IS NULL OR h.queue_name >= $2::text AND h.queue_name < $3::text)
      AND ($4::text IS NULL OR h.kind = $4::text)
), free AS ( -- Of several queues each may have all the smallest ids, so up to the limit are found and locked in each of them.
    SELECT x.id FROM (
        SELECT h.id FROM {schema}.job_history h
        WHERE h.id = ANY (ARRAY(SELECT n.id FROM named n WHERE NOT n.is_taken)) AND h.status_final = 'dead_letter'
        ORDER BY h.id LIMIT $6::integer FOR UPDATE SKIP LOCKED) x
    UNION ALL
    SELECT x.id FROM queue q CROSS JOIN LATERAL (
        SELECT h.id FROM {schema}.job_history h
        WHERE h.queue_name = q.name AND h.status_final = 'dead_letter' AND ($4::text IS NULL OR h.kind = $4::text)
          AND (SELECT true FROM {schema}.job_queue j
               WHERE j.queue_name = h.queue_name AND j.unique_key = h.unique_key LIMIT 1) IS NULL
          AND (SELECT true FROM {schema}.job_history e
               WHERE e.queue_name = h.queue_name AND e.unique_key = h.unique_key AND e.id < h.id
                 AND e.status_final = 'dead_letter' AND ($4::text IS NULL OR e.kind = $4::text) LIMIT 1) IS NULL
        ORDER BY h.id LIMIT $6::integer FOR UPDATE SKIP LOCKED) x
    UNION ALL
    SELECT x.id FROM (
        SELECT h.id FROM {schema}.job_history h
        WHERE $2::text = '' AND $5::bigint[] IS NULL
          AND h.status_final = 'dead_letter' AND ($4::text IS NULL OR h.kind = $4::text)
          AND (SELECT true FROM {schema}.job_queue j
               WHERE j.queue_name = h.queue_name AND j.unique_key = h.unique_key LIMIT 1) IS NULL
          AND (SELECT true FROM {schema}.job_history e
               WHERE e.queue_name = h.queue_name AND e.unique_key = h.unique_key AND e.id < h.id
                 AND e.status_final = 'dead_letter' AND ($4::text IS NULL OR e.kind = $4::text) LIMIT 1) IS NULL
        ORDER BY h.id LIMIT $6::integer FOR UPDATE SKIP LOCKED) x
), picked AS MATERIALIZED (
    SELECT f.id FROM free f ORDER BY f.id LIMIT $6::integer
), looked AS MATERIALIZED ( -- Up to which id dead letters were looked at.
    SELECT CASE WHEN count(*) < $6::integer THEN 9223372036854775807 ELSE max(p.id) END AS id FROM picked p
), conflict AS (
    SELECT n.id FROM named n WHERE n.is_taken AND n.id <= (SELECT l.id FROM looked l)
    UNION ALL
    SELECT x.id FROM queue q CROSS JOIN LATERAL (
        SELECT h.id FROM {schema}.job_history h
        WHERE h.queue_name = q.name AND h.status_final = 'dead_letter' AND ($4::text IS NULL OR h.kind = $4::text)
          AND h.unique_key IS NOT NULL AND h.id <= (SELECT l.id FROM looked l)
          AND coalesce(
              (SELECT true FROM {schema}.job_queue j
               WHERE j.queue_name = h.queue_name AND j.unique_key = h.unique_key LIMIT 1),
              (SELECT true FROM {schema}.job_history e
               WHERE e.queue_name = h.queue_name AND e.unique_key = h.unique_key AND e.id < h.id
                 AND e.status_final = 'dead_letter' AND ($4::text IS NULL OR e.kind = $4::text) LIMIT 1))
        ORDER BY h.id LIMIT $6::integer) x
    UNION ALL
    SELECT x.id FROM (
        SELECT h.id FROM {schema}.job_history h
        WHERE $2::text = '' AND $5::bigint[] IS NULL
          AND h.status_final = 'dead_letter' AND ($4::text IS NULL OR h.kind = $4::text)
          AND h.unique_key IS NOT NULL AND h.id <= (SELECT l.id FROM looked l)
          AND coalesce(
              (SELECT true FROM {schema}.job_queue j
               WHERE j.queue_name = h.queue_name AND j.unique_key = h.unique_key LIMIT 1),
              (SELECT true FROM {schema}.job_history e
               WHERE e.queue_name = h.queue_name AND e.unique_key = h.unique_key AND e.id < h.id
                 AND e.status_final = 'dead_letter' AND ($4::text IS NULL OR e.kind = $4::text) LIMIT 1))
        ORDER BY h.id LIMIT $6::integer) x
), moved AS (
    DELETE FROM {schema}.job_history h WHERE h.id = ANY (ARRAY(SELECT p.id FROM picked p)) RETURNING h.*
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
(SELECT c.id, NULL FROM conflict c ORDER BY c.id LIMIT $6::integer);
END
$$;
