DELETE FROM {schema}.job_queue_config WHERE pattern = $1::text
