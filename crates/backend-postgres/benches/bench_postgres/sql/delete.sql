DELETE FROM {schema}.job_queue WHERE id = ANY (:ids::bigint[]);
