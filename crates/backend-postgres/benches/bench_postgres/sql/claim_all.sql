UPDATE {schema}.job_queue SET
    lease_until = now() + interval '10 minutes', locked_by = 'bench', attempts = attempts + 1,
    lease_epoch = lease_epoch + 1, first_leased_at = now(), updated_at = now()
