-- The indexes of the function redrive (queries/): dead letters in the order in which they are redriven, and by the unique key that they need.
-- `IF NOT EXISTS`: on a large history they can be built beforehand with CREATE INDEX CONCURRENTLY, during which jobs can still be finished.

-- All dead letters by id, whatever their queue (X1).
CREATE INDEX IF NOT EXISTS job_history_dead_id ON {schema}.job_history (id) WHERE status_final = 'dead_letter';
-- Whether a dead letter with a smaller id needs the same key (X4).
CREATE INDEX IF NOT EXISTS job_history_dead_key ON {schema}.job_history (queue_name, unique_key, id)
    WHERE status_final = 'dead_letter' AND unique_key IS NOT NULL;
