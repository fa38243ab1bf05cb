-- What version 1 of this crate made. Never changed: a test migrates from it.
CREATE TABLE IF NOT EXISTS job_migration (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
) STRICT;
-- The queue, the history, the policies and the keys of transactions.
-- `` is replaced by the prefix of the tables' names. Times are microseconds since 1970, in UTC.
-- Every index of SQLite ends with the id of the row: it need not be named to be the last thing sorted by.

CREATE TABLE job_queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- E10: never given twice
    queue_name TEXT NOT NULL,
    kind TEXT NOT NULL,
    priority INTEGER NOT NULL,
    unique_key TEXT,
    payload TEXT NOT NULL,
    headers TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    available_at INTEGER NOT NULL,
    lease_until INTEGER,
    locked_by TEXT,
    lease_epoch INTEGER NOT NULL DEFAULT 0,
    first_leased_at INTEGER,
    last_error TEXT,
    redrives INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    CONSTRAINT job_queue_id_positive CHECK (id > 0),
    CONSTRAINT job_queue_priority_small CHECK (priority BETWEEN -2147483648 AND 2147483647),
    CONSTRAINT job_queue_name_length CHECK (length(queue_name) BETWEEN 1 AND 128),
    CONSTRAINT job_queue_kind_length CHECK (length(kind) BETWEEN 1 AND 128),
    CONSTRAINT job_queue_attempts_counted CHECK (attempts BETWEEN 0 AND max_attempts),
    CONSTRAINT job_queue_max_attempts_allowed CHECK (max_attempts BETWEEN 1 AND 1000),
    CONSTRAINT job_queue_lease_whole CHECK ((lease_until IS NULL) = (locked_by IS NULL))
) STRICT;

-- What can be leased, in the order in which it is leased (D6).
CREATE INDEX job_queue_ready ON job_queue (queue_name, priority DESC, available_at)
    WHERE lease_until IS NULL AND attempts < max_attempts;
-- What is leased: for limits, reclaim and sleeping.
CREATE INDEX job_queue_leased ON job_queue (queue_name, lease_until) WHERE lease_until IS NOT NULL;
-- What the next reclaim makes a dead letter: hardly ever anything.
CREATE INDEX job_queue_exhausted ON job_queue (queue_name)
    WHERE lease_until IS NULL AND attempts >= max_attempts;
-- Fifo order, and lists of one queue.
CREATE INDEX job_queue_fifo ON job_queue (queue_name);
-- One live job per queue and key (E5).
CREATE UNIQUE INDEX job_queue_unique ON job_queue (queue_name, unique_key)
    WHERE unique_key IS NOT NULL;

CREATE TABLE job_history (
    id INTEGER PRIMARY KEY,
    queue_name TEXT NOT NULL,
    kind TEXT NOT NULL,
    priority INTEGER NOT NULL,
    unique_key TEXT,
    payload TEXT NOT NULL,
    headers TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    lease_epoch INTEGER NOT NULL,
    status_final TEXT NOT NULL,
    result TEXT,
    last_error TEXT,
    redrives INTEGER NOT NULL,
    processed_by TEXT,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER NOT NULL,
    CONSTRAINT job_history_status_known CHECK (status_final IN ('completed', 'dead_letter', 'discarded')),
    CONSTRAINT job_history_document_kept CHECK (status_final = 'dead_letter' OR result IS NOT NULL),
    CONSTRAINT job_history_error_kept CHECK (status_final <> 'dead_letter' OR last_error IS NOT NULL)
) STRICT;

-- What is old enough to be pruned, queue by queue, since each has its own retention.
CREATE INDEX job_history_finished ON job_history (queue_name, finished_at);
-- What can be redriven: of one queue, and of all.
CREATE INDEX job_history_dead ON job_history (queue_name) WHERE status_final = 'dead_letter';
CREATE INDEX job_history_dead_all ON job_history (id) WHERE status_final = 'dead_letter';

-- What operators have said, by queue name or by prefix with a star at its end.
CREATE TABLE job_queue_config (
    pattern TEXT PRIMARY KEY NOT NULL,
    paused INTEGER,
    concurrency_limit INTEGER,
    rate_per_sec REAL,
    rate_burst INTEGER,
    max_lease_us INTEGER,
    backoff_base_us INTEGER,
    backoff_jitter REAL,
    backoff_min_us INTEGER,
    backoff_max_us INTEGER,
    max_attempts INTEGER,
    queue_order TEXT,
    retention_us INTEGER,
    archive TEXT,
    on_expiry TEXT,
    updated_at INTEGER NOT NULL,
    CONSTRAINT job_queue_config_paused_known CHECK (paused IN (0, 1)),
    CONSTRAINT job_queue_config_rate_whole CHECK ((rate_per_sec IS NULL) = (rate_burst IS NULL)),
    CONSTRAINT job_queue_config_order_known CHECK (queue_order IN ('priority', 'fifo')),
    CONSTRAINT job_queue_config_archive_known CHECK (archive IN ('all', 'dead_only')),
    CONSTRAINT job_queue_config_on_expiry_known CHECK (on_expiry IN ('retry_now', 'backoff'))
) STRICT, WITHOUT ROWID;

-- The token bucket of each queue with a rate limit that was ever claimed from: when it is full again, and for which rate
-- that was worked out.
CREATE TABLE job_queue_limit (
    queue_name TEXT PRIMARY KEY NOT NULL,
    full_at INTEGER NOT NULL,
    rate_per_sec REAL NOT NULL,
    rate_burst INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE job_idempotency (
    key TEXT PRIMARY KEY NOT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO job_migration (version, name) VALUES (1, 'queue');
