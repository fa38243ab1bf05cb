-- Which transaction has last made a job leasable or changed a leasable job. A claim remembers which transactions it has seen to
-- the end, and finds what others have written since by this column (floors.rs says how).
ALTER TABLE {schema}.job_queue ADD COLUMN written xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id();
CREATE INDEX job_queue_written ON {schema}.job_queue (queue_name, priority, written)
    WHERE lease_until IS NULL AND attempts < max_attempts;

CREATE FUNCTION {schema}.set_written() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.written := pg_current_xact_id();
    RETURN NEW;
END
$$;
-- Holds for changes by hand, for programs of older versions and for logical replication, too.
CREATE TRIGGER job_queue_written BEFORE INSERT OR UPDATE ON {schema}.job_queue FOR EACH ROW
    WHEN (NEW.lease_until IS NULL AND NEW.written IS DISTINCT FROM pg_catalog.pg_current_xact_id())
    EXECUTE FUNCTION {schema}.set_written();
ALTER TABLE {schema}.job_queue ENABLE ALWAYS TRIGGER job_queue_written;

-- When the server was started: another one after a failover. What is known of the transactions of one server says nothing of another's.
CREATE FUNCTION {schema}.server_id() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint
$$;

-- What is ready below a floor: only what transactions have written that the floor does not know of. Made a part of each statement
-- that calls it, so that it sees what that statement sees.
CREATE FUNCTION {schema}.written_below(
    queue text, level bigint, floor_time timestamptz, floor_id bigint, floor_since xid8, undecided bigint[]
) RETURNS TABLE (priority integer, available_at timestamptz, id bigint) LANGUAGE sql STABLE AS $$
    SELECT r.priority, r.available_at, r.id FROM (
        SELECT j.priority, j.available_at, j.id FROM {schema}.job_queue j
        WHERE j.queue_name = queue AND j.priority = level AND j.lease_until IS NULL AND j.attempts < j.max_attempts
          AND j.written >= floor_since
        UNION ALL
        SELECT j.priority, j.available_at, j.id FROM unnest(undecided::text[]::xid8[]) u (xid) CROSS JOIN LATERAL (
            SELECT j.priority, j.available_at, j.id FROM {schema}.job_queue j
            WHERE j.queue_name = queue AND j.priority = level AND j.lease_until IS NULL AND j.attempts < j.max_attempts
              AND j.written = u.xid
            OFFSET 0 -- One probe for each: there are hardly ever any.
        ) j
        WHERE u.xid < floor_since
    ) r
    -- In words that no index knows: the index of ready jobs would lead through all that was leased before.
    WHERE r.available_at + interval '0' <= statement_timestamp() AND (r.available_at + interval '0', r.id + 0) < (floor_time, floor_id)
    ORDER BY r.available_at, r.id
$$;
