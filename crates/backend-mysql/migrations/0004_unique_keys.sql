-- Two changes: unique keys get a table of their own, and claims over a prefix do not visit queues whose jobs are for later.

-- Unique keys get a table of their own. In the unique index on job_queue the check of a key also locked the gap before its entry, at every isolation
-- level, and jobs without a key are in that gap: while two transactions wanted one key, no job could be enqueued. In a primary key the same check
-- locks the entry alone.

-- A row for each unique key that a live job has, or had: prune removes the others. The key is taken while the job with this id is live.
-- job_id: the job that has taken it last. version: raised whenever it is taken.
CREATE TABLE IF NOT EXISTS {prefix}job_unique (
    queue_name VARBINARY(128) NOT NULL,
    unique_key VARBINARY(255) NOT NULL,
    job_id BIGINT NOT NULL,
    version BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (queue_name, unique_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- unique_held: whether the program that has enqueued the job knows job_unique. Jobs that are there already count as if it did.
-- ready_queue: the queue of a waiting job for now, empty for one for later, and null for any other. For later is what was not available when it was
-- last written: that does not change by itself, so an index can go by it.
-- reclaim_at: when time alone changes something: a reclaim takes the job, or a job for later comes due.
-- One statement, since each would copy the table.
ALTER TABLE {prefix}job_queue
    ADD COLUMN unique_held TINYINT NOT NULL DEFAULT 1,
    ADD COLUMN ready_queue VARBINARY(128) GENERATED ALWAYS AS (
        CASE WHEN lease_until IS NULL AND attempts < max_attempts
             THEN CASE WHEN available_at <= updated_at THEN queue_name ELSE '' END END
    ) STORED,
    MODIFY COLUMN reclaim_at DATETIME(6) GENERATED ALWAYS AS (
        CASE WHEN lease_until IS NOT NULL THEN lease_until
             WHEN attempts >= max_attempts THEN '1970-01-01 00:00:00'
             WHEN available_at > updated_at THEN available_at END
    ) STORED,
    DROP INDEX job_queue_reclaim,
    ADD INDEX job_queue_reclaim (ready_queue, reclaim_at, queue_name, id);

-- From now on programs of older versions cannot enqueue jobs with unique keys: they would enqueue duplicates.
ALTER TABLE {prefix}job_queue
    ADD CONSTRAINT {prefix}job_queue_keys_need_version_4 CHECK (unique_key IS NULL OR unique_held = 1),
    ALTER COLUMN unique_held SET DEFAULT 0;

INSERT IGNORE INTO {prefix}job_unique (queue_name, unique_key, job_id)
SELECT queue_name, unique_key, id FROM {prefix}job_queue WHERE unique_key IS NOT NULL;

ALTER TABLE {prefix}job_queue DROP INDEX job_queue_unique;
