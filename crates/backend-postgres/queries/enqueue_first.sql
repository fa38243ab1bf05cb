-- Accepts one job that comes after a silence, as enqueue_one.sql does, and tells the listeners in the same transaction: that
-- saves them a round trip. Transactions that tell something wait for each other until they are on the disk, so only one at a
-- time does it; for the others `told` is false, and they are told of afterwards.
CREATE FUNCTION {schema}.enqueue_first(
    queue text, kind text, priority integer, payload text, headers text, attempts_allowed integer, delay_us bigint,
    at timestamptz, channel text, message text
) RETURNS TABLE (id bigint, told boolean) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    alone boolean := pg_try_advisory_xact_lock(hashtextextended($9, 0));
BEGIN
IF alone THEN
    PERFORM pg_notify($9, $10);
END IF;
RETURN QUERY
WITH accepted AS (
    INSERT INTO {schema}.job_queue
        (queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at, updated_at)
    VALUES ($1, $2, $3, $4::json, $5::json,
            coalesce($6, (SELECT p.max_attempts FROM {schema}.effective_policy($1) p
                          WHERE EXISTS (SELECT FROM {schema}.job_queue_config)), 5), -- E12
            greatest(statement_timestamp(), coalesce($8, least( -- E8
                statement_timestamp() + coalesce($7, 0) * interval '1 microsecond',
                timestamptz '9999-12-31 23:59:59.999999+00'))),
            statement_timestamp(), statement_timestamp())
    RETURNING id, available_at
), counted AS (
    INSERT INTO {schema}.job_queue_count (queue_name, attempts, due, jobs)
    SELECT $1, 0, {schema}.due(a.available_at), 1 FROM accepted a
)
SELECT a.id, alone FROM accepted a;
END
$$;
