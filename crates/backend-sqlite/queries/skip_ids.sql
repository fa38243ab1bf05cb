-- Ids up to this are not given any more. A row is there: it came with the first job.
UPDATE sqlite_sequence SET seq = max(seq, ?1) WHERE name = '{prefix}job_queue'
