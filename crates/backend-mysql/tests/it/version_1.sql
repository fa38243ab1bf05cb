CREATE TABLE IF NOT EXISTS job_migration (
    version INT NOT NULL,
    step INT NOT NULL,
    name VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    applied_at DATETIME(6) NOT NULL,
    PRIMARY KEY (version, step)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE IF NOT EXISTS job_queue (
id BIGINT NOT NULL AUTO_INCREMENT,
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
place BIGINT GENERATED ALWAYS AS (CASE WHEN attempts < max_attempts THEN -priority END) STORED,
reclaim_at DATETIME(6) GENERATED ALWAYS AS (
CASE WHEN lease_until IS NOT NULL THEN lease_until WHEN attempts >= max_attempts THEN '1970-01-01 00:00:00' END
) STORED,
PRIMARY KEY (id),
KEY job_queue_ready (queue_name, lease_until, place, available_at, id),
KEY job_queue_reclaim (reclaim_at, queue_name, id),
KEY job_queue_fifo (queue_name, id),
UNIQUE KEY job_queue_unique (queue_name, unique_key),
CONSTRAINT job_queue_name_length CHECK (LENGTH(queue_name) >= 1),
CONSTRAINT job_queue_kind_length CHECK (LENGTH(kind) >= 1),
CONSTRAINT job_queue_attempts_counted CHECK (attempts >= 0 AND attempts <= max_attempts),
CONSTRAINT job_queue_max_attempts_allowed CHECK (max_attempts >= 1 AND max_attempts <= 1000),
CONSTRAINT job_queue_lease_whole CHECK ((lease_until IS NULL) = (locked_by IS NULL))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO job_migration (version, step, name, applied_at) VALUES (1, 1, 'queue', UTC_TIMESTAMP(6));
CREATE TABLE IF NOT EXISTS job_history (
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
KEY job_history_finished (queue_name, finished_at, id),
KEY job_history_status (status_final, queue_name, id),
CONSTRAINT job_history_status_known CHECK (status_final IN ('completed', 'dead_letter', 'discarded')),
CONSTRAINT job_history_document_kept CHECK (status_final = 'dead_letter' OR result IS NOT NULL),
CONSTRAINT job_history_error_kept CHECK (status_final <> 'dead_letter' OR last_error IS NOT NULL)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO job_migration (version, step, name, applied_at) VALUES (1, 2, 'queue', UTC_TIMESTAMP(6));
CREATE TABLE IF NOT EXISTS job_queue_config (
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
CONSTRAINT job_queue_config_rate_whole CHECK ((rate_per_sec IS NULL) = (rate_burst IS NULL)),
CONSTRAINT job_queue_config_order_known CHECK (queue_order IN ('priority', 'fifo')),
CONSTRAINT job_queue_config_archive_known CHECK (archive IN ('all', 'dead_only')),
CONSTRAINT job_queue_config_on_expiry_known CHECK (on_expiry IN ('retry_now', 'backoff'))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO job_migration (version, step, name, applied_at) VALUES (1, 3, 'queue', UTC_TIMESTAMP(6));
CREATE TABLE IF NOT EXISTS job_queue_limit (
queue_name VARBINARY(128) NOT NULL,
full_at DATETIME(6),
rate_per_sec DOUBLE,
rate_burst INT,
PRIMARY KEY (queue_name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO job_migration (version, step, name, applied_at) VALUES (1, 4, 'queue', UTC_TIMESTAMP(6));
CREATE TABLE IF NOT EXISTS job_idempotency (
idempotency_key VARBINARY(255) NOT NULL,
created_at DATETIME(6) NOT NULL,
PRIMARY KEY (idempotency_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO job_migration (version, step, name, applied_at) VALUES (1, 5, 'queue', UTC_TIMESTAMP(6));
