DELETE FROM {schema}.job_queue WHERE id = ANY ($1::bigint[])
