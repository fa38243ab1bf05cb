-- Where these live jobs are, for whoever tells events of them.
SELECT j.id, j.queue_name, j.lease_epoch, j.lease_until IS NOT NULL, statement_timestamp() FROM {schema}.job_queue j
WHERE j.id = ANY ($1::bigint[])
