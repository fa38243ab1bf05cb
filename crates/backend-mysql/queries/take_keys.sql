-- Gives unique keys to jobs. Their rows are locked.
INSERT INTO {prefix}job_unique (queue_name, unique_key, job_id) VALUES {list}
ON DUPLICATE KEY UPDATE job_id = VALUES(job_id), version = version + 1
