SELECT EXISTS (SELECT FROM {schema}.job_history WHERE id = $1::bigint)
