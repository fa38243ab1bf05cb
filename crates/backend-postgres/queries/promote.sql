-- Makes a waiting job available now, and leaves every other as it is (A3). Answers which of the two it was.
WITH promoted AS (
    UPDATE {schema}.job_queue SET available_at = statement_timestamp(), updated_at = statement_timestamp()
    WHERE id = $1::bigint AND lease_until IS NULL AND attempts < max_attempts AND available_at > statement_timestamp()
    RETURNING id
)
SELECT queue_name, EXISTS (SELECT FROM promoted) FROM {schema}.job_queue WHERE id = $1::bigint
