-- Something became leasable in the queues of these names or patterns, as a JSON array.
INSERT INTO {prefix}job_hint (name) SELECT value FROM json_each(?1) RETURNING seq
