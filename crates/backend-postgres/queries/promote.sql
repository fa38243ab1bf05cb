-- Makes a waiting job available now, and leaves every other as it is (A3). Answers which of the two it was.
WITH waiting AS MATERIALIZED (
    SELECT j.id, j.queue_name, j.attempts, j.available_at FROM {schema}.job_queue j
    WHERE j.id = $1::bigint AND j.lease_until IS NULL AND j.attempts < j.max_attempts AND j.available_at > statement_timestamp()
    FOR UPDATE
), promoted AS (
    UPDATE {schema}.job_queue j SET available_at = statement_timestamp(), updated_at = statement_timestamp()
    FROM waiting w WHERE j.id = w.id
    RETURNING j.id
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT w.queue_name, w.attempts, c.due, c.jobs FROM waiting w
    CROSS JOIN LATERAL (VALUES ({schema}.due(w.available_at), -1), ({schema}.due(statement_timestamp()), 1)) AS c (due, jobs)
)
SELECT queue_name, EXISTS (SELECT FROM promoted) FROM {schema}.job_queue WHERE id = $1::bigint
