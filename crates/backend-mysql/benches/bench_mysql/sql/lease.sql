UPDATE job_queue SET lease_until = UTC_TIMESTAMP(6) + INTERVAL 60 SECOND, locked_by = 'bench', attempts = attempts + 1,
    lease_epoch = lease_epoch + 1, first_leased_at = UTC_TIMESTAMP(6), updated_at = UTC_TIMESTAMP(6)
WHERE id IN ({list})
