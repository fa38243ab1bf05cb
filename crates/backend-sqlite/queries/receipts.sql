-- What is known of each receipt's job, wherever it is (G5).
SELECT i.key, j.lease_epoch, j.lease_until, h.lease_epoch, h.status_final
FROM json_each(?1) i
LEFT JOIN {prefix}job_queue j ON j.id = i.value
LEFT JOIN {prefix}job_history h ON h.id = i.value
