-- The buckets of these queues.
SELECT queue_name, full_at, rate_per_sec, rate_burst FROM {prefix}job_queue_limit FORCE INDEX (PRIMARY)
WHERE queue_name IN ({list}) AND full_at IS NOT NULL
