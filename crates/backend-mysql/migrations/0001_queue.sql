-- The queue, the history, the policies and the keys of transactions.
-- `{prefix}` is replaced by the prefix of the tables' names. Times are in UTC. Names and keys are bytes, since every collation
-- that both servers have folds something: case, or spaces at the end. JSON is text, since both servers would change it.
-- Every index of InnoDB ends with the primary key: it need not be named to be the last thing sorted by.

CREATE TABLE IF NOT EXISTS {prefix}job_queue (
    id BIGINT NOT NULL AUTO_INCREMENT, -- E10: never given twice
    queue_name VARBINARY(128) NOT NULL,
    kind VARBINARY(128) NOT NULL,
    priority INT NOT NULL,
    unique_key VARBINARY(255),
    payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    headers LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    attempts INT NOT NULL DEFAULT 0,
    max_attempts INT NOT NULL,
    available_at DATETIME(6) NOT NULL,
    lease_until DATETIME(6),
    locked_by VARBINARY(128),
    lease_epoch BIGINT NOT NULL DEFAULT 0,
    first_leased_at DATETIME(6),
    last_error LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    redrives INT NOT NULL DEFAULT 0,
    created_at DATETIME(6) NOT NULL,
    updated_at DATETIME(6) NOT NULL,
    -- The order in which jobs are leased, from small to large; nothing for those whose attempts are spent.
    place BIGINT GENERATED ALWAYS AS (CASE WHEN attempts < max_attempts THEN -priority END) STORED,
    -- When a reclaim takes the job: when its lease has passed, or at once if its attempts are spent.
    reclaim_at DATETIME(6) GENERATED ALWAYS AS (
        CASE WHEN lease_until IS NOT NULL THEN lease_until WHEN attempts >= max_attempts THEN '1970-01-01 00:00:00' END
    ) STORED,
    PRIMARY KEY (id),
    -- What can be leased, in the order in which it is leased (D6), and what is leased.
    KEY job_queue_ready (queue_name, lease_until, place, available_at, id),
    -- What the next reclaim takes.
    KEY job_queue_reclaim (reclaim_at, queue_name, id),
    -- Fifo order, and lists of one queue.
    KEY job_queue_fifo (queue_name, id),
    -- One live job per queue and key (E5).
    UNIQUE KEY job_queue_unique (queue_name, unique_key),
    CONSTRAINT {prefix}job_queue_name_length CHECK (LENGTH(queue_name) >= 1),
    CONSTRAINT {prefix}job_queue_kind_length CHECK (LENGTH(kind) >= 1),
    CONSTRAINT {prefix}job_queue_attempts_counted CHECK (attempts >= 0 AND attempts <= max_attempts),
    CONSTRAINT {prefix}job_queue_max_attempts_allowed CHECK (max_attempts >= 1 AND max_attempts <= 1000),
    CONSTRAINT {prefix}job_queue_lease_whole CHECK ((lease_until IS NULL) = (locked_by IS NULL))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {prefix}job_history (
    id BIGINT NOT NULL,
    queue_name VARBINARY(128) NOT NULL,
    kind VARBINARY(128) NOT NULL,
    priority INT NOT NULL,
    unique_key VARBINARY(255),
    payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    headers LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    attempts INT NOT NULL,
    max_attempts INT NOT NULL,
    lease_epoch BIGINT NOT NULL,
    status_final VARBINARY(16) NOT NULL,
    result LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    last_error LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    redrives INT NOT NULL,
    processed_by VARBINARY(128),
    created_at DATETIME(6) NOT NULL,
    started_at DATETIME(6),
    finished_at DATETIME(6) NOT NULL,
    PRIMARY KEY (id),
    -- What is old enough to be pruned, queue by queue, since each has its own retention.
    KEY job_history_finished (queue_name, finished_at, id),
    -- What can be redriven.
    KEY job_history_status (status_final, queue_name, id),
    CONSTRAINT {prefix}job_history_status_known CHECK (status_final IN ('completed', 'dead_letter', 'discarded')),
    CONSTRAINT {prefix}job_history_document_kept CHECK (status_final = 'dead_letter' OR result IS NOT NULL),
    CONSTRAINT {prefix}job_history_error_kept CHECK (status_final <> 'dead_letter' OR last_error IS NOT NULL)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What operators have said, by queue name or by prefix with a star at its end.
CREATE TABLE IF NOT EXISTS {prefix}job_queue_config (
    pattern VARBINARY(129) NOT NULL,
    paused TINYINT(1),
    concurrency_limit INT,
    rate_per_sec DOUBLE,
    rate_burst INT,
    max_lease_us BIGINT,
    backoff_base_us BIGINT,
    backoff_jitter DOUBLE,
    backoff_min_us BIGINT,
    backoff_max_us BIGINT,
    max_attempts INT,
    queue_order VARBINARY(16),
    retention_us BIGINT,
    archive VARBINARY(16),
    on_expiry VARBINARY(16),
    updated_at DATETIME(6) NOT NULL,
    PRIMARY KEY (pattern),
    CONSTRAINT {prefix}job_queue_config_rate_whole CHECK ((rate_per_sec IS NULL) = (rate_burst IS NULL)),
    CONSTRAINT {prefix}job_queue_config_order_known CHECK (queue_order IN ('priority', 'fifo')),
    CONSTRAINT {prefix}job_queue_config_archive_known CHECK (archive IN ('all', 'dead_only')),
    CONSTRAINT {prefix}job_queue_config_on_expiry_known CHECK (on_expiry IN ('retry_now', 'backoff'))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- A row for each queue with limits that was ever claimed from. Who claims from it locks the row. With a rate limit it is the
-- token bucket: when it is full again, and for which rate that was worked out.
CREATE TABLE IF NOT EXISTS {prefix}job_queue_limit (
    queue_name VARBINARY(128) NOT NULL,
    full_at DATETIME(6),
    rate_per_sec DOUBLE,
    rate_burst INT,
    PRIMARY KEY (queue_name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {prefix}job_idempotency (
    idempotency_key VARBINARY(255) NOT NULL,
    created_at DATETIME(6) NOT NULL,
    PRIMARY KEY (idempotency_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
