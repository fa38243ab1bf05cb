-- Which of these queues have rows already. Locks nothing.
SELECT queue_name FROM {prefix}job_queue_limit FORCE INDEX (PRIMARY) WHERE queue_name IN ({list})
